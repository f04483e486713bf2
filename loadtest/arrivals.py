"""When callers come: the plan of a run, made up front from its seed. Pure.

Calls come when the plan says so, not when an earlier one was answered well: a server that answers slowly is offered no
less for it (no coordinated omission). Only a *line* waits, for its own last call, as a person does who calls again.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from random import Random

import msgspec

MAX_CALLS = 200_000
"""Of one run: beyond that it is a mistake in the options."""

BETWEEN_S = 0.5
"""From a line's call to its next: the server needs a moment to give its place to somebody else."""

SHORTEST_SHARE = 0.5
"""A line begins no call that would have less than this share of its length before the run is over: the one before lasts
until then."""


class Pattern(enum.StrEnum):
    """How callers come; the values are part of scenarios and of the JSON document."""

    LINES = "lines"
    """N lines, each placing call after call: N are up all the time."""
    POISSON = "poisson"
    """Independent callers: exponential gaps, at the rate that has N calls up on average."""
    BURST = "burst"
    """N at one moment, and again every ``every_s``."""


class Arrival(msgspec.Struct, frozen=True):
    """One call that is to be offered."""

    number: int
    """Of the call in the run, from 0, in order of time."""
    at_s: float
    """In the run."""
    length_s: float
    """After so long the caller says goodbye."""
    line: int | None = None
    """Calls of one line do not overlap: the next waits for the one before."""


def plan_arrivals(
    pattern: Pattern,
    *,
    calls: int,
    ramp_s: float,
    hold_s: float,
    length_s: float,
    jitter: float = 0.0,
    every_s: float | None = None,
    seed: int = 0,
) -> tuple[Arrival, ...]:
    """Every call of a run in order of time: ``calls`` at once (on average, or at a moment), reached over ``ramp_s`` and
    offered until ``ramp_s + hold_s``. ``length_s`` is the length of a call, each longer or shorter by up to the share
    ``jitter``; a line's last call ends with the run. Raises :class:`ValueError`."""
    lasting = all(map(math.isfinite, (ramp_s, hold_s, length_s)))
    if not lasting or calls < 1 or ramp_s < 0 or hold_s <= 0 or length_s <= 0 or not 0 <= jitter < 1:
        raise ValueError("a run needs at least one call, a length of time, and a jitter below 1")
    if every_s is not None and every_s <= 0:
        raise ValueError("bursts need time between them")
    rounds = max(1.0, (ramp_s + hold_s) / length_s if pattern is not Pattern.BURST else hold_s / (every_s or hold_s))
    if calls * rounds > MAX_CALLS:
        raise ValueError(f"that would be {calls * rounds:.0f} calls, and at most {MAX_CALLS} are planned")
    random = Random(f"arrivals {seed}")
    match pattern:
        case Pattern.LINES:
            planned = _lines(random, calls, ramp_s, hold_s, length_s, jitter)
        case Pattern.POISSON:
            planned = _poisson(random, calls, ramp_s, hold_s, length_s, jitter)
        case Pattern.BURST:
            planned = _bursts(random, calls, hold_s, length_s, jitter, every_s)
    planned.sort(key=lambda arrival: arrival.at_s)
    return tuple(
        Arrival(number, arrival.at_s, arrival.length_s, arrival.line) for number, arrival in enumerate(planned)
    )


def share_arrivals(arrivals: Sequence[Arrival], generators: int) -> list[tuple[Arrival, ...]]:
    """Each generator's part: neighbours in time go to different ones, a line stays with one."""
    shares: list[list[Arrival]] = [[] for _ in range(generators)]
    for arrival in arrivals:
        key = arrival.number if arrival.line is None else arrival.line
        shares[key % generators].append(arrival)
    return [tuple(share) for share in shares]


def most_at_once(arrivals: Sequence[Arrival]) -> int:
    """How many calls the plan has up at one moment, at most."""
    edges = sorted(
        [(arrival.at_s, 1) for arrival in arrivals] + [(arrival.at_s + arrival.length_s, -1) for arrival in arrivals]
    )
    up = most = 0
    for _, step in edges:
        up += step
        most = max(most, up)
    return most


def _varied(random: Random, length_s: float, jitter: float) -> float:
    return length_s * (1 + jitter * (2 * random.random() - 1))


def _lines(random: Random, calls: int, ramp_s: float, hold_s: float, length_s: float, jitter: float) -> list[Arrival]:
    end_s = ramp_s + hold_s
    planned: list[Arrival] = []
    for line in range(calls):
        at_s = ramp_s * line / calls
        while at_s < end_s:
            length = _varied(random, length_s, jitter)
            if end_s - (at_s + length + BETWEEN_S) < length_s * SHORTEST_SHARE:
                length = end_s - at_s
            planned.append(Arrival(0, at_s, length, line))
            at_s += length + BETWEEN_S
    return planned


def _poisson(random: Random, calls: int, ramp_s: float, hold_s: float, length_s: float, jitter: float) -> list[Arrival]:
    """At the ramp's end it is as if they had come at the full rate for ever: those who are up then came by chance in
    the ramp, a Poisson number of them, each with what would be left of its call. From there on they come at that rate.
    (At the rate alone, it would take a call's length more until so many are up.)"""
    rate = calls / length_s
    planned: list[Arrival] = []
    up_s = random.expovariate(1.0)
    while up_s < calls:
        up_s += random.expovariate(1.0)
        at_s = ramp_s * random.random()
        planned.append(Arrival(0, at_s, ramp_s - at_s + _left(random, length_s, jitter)))
    at_s = ramp_s + random.expovariate(rate)
    while at_s < ramp_s + hold_s:
        planned.append(Arrival(0, at_s, _varied(random, length_s, jitter)))
        at_s += random.expovariate(rate)
    return planned


def _left(random: Random, length_s: float, jitter: float) -> float:
    """What is left of a call that is met at a moment by chance: longer ones are met more often."""
    while True:
        length = _varied(random, length_s, jitter)
        if random.random() * length_s * (1 + jitter) <= length:
            return random.random() * length


def _bursts(
    random: Random, calls: int, hold_s: float, length_s: float, jitter: float, every_s: float | None
) -> list[Arrival]:
    times = [0.0]
    while every_s is not None and times[-1] + every_s < hold_s:
        times.append(times[-1] + every_s)
    return [Arrival(0, at_s, _varied(random, length_s, jitter)) for at_s in times for _ in range(calls)]
