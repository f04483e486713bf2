"""A day of calls in seconds: the policy against first in, first out and a global lock, on a table of costs.

Discrete events in virtual time, one server (the GPU's thread), fixed seeds. See :mod:`engines.executor.load` for the
load and the grades, :mod:`engines.executor.tables` for the costs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engines.executor.baselines import Fifo, Lock
from engines.executor.load import Grade, Scheduler, Turn, World, arrivals
from engines.executor.policy import Agenda
from engines.executor.tables import CostTable

MAX_CALLS = 200
GOODPUT = 0.99
SECONDS = 600.0
SEEDS = (1, 2, 3)
HOPELESS = 0.2
"""A run ends when so many of its calls have had a turn that came too late."""


@dataclass(frozen=True, slots=True)
class Result:
    """How one policy did with so many calls."""

    policy: str
    calls: int
    goodput: float
    turns_per_s: float
    first_audio_p50_ms: float
    first_audio_p95_ms: float
    busy: float
    """Share of the time in which a quantum ran."""
    rows_per_step: float
    """Replies that shared a decode step, on average."""

    @property
    def passed(self) -> bool:
        return self.goodput >= GOODPUT


def _edf(table: CostTable) -> Scheduler:
    return Agenda(table.costs())


POLICIES: Mapping[str, Callable[[CostTable], Scheduler]] = {
    "edf": _edf,
    "fifo": lambda table: Fifo(),
    "lock": lambda table: Lock(),
}


def simulate(
    policy: str, table: CostTable, calls: int, *, seconds: float = SECONDS, seeds: tuple[int, ...] = SEEDS
) -> Result:
    """So many calls for so long, once a seed. Gives up early once more calls have failed than goodput allows: the
    result is then of the turns seen so far."""
    run = _Run(policy, table, calls, seconds)
    for seed in seeds:
        run.once(seed)
        if run.failed > (1 - GOODPUT) * calls * len(seeds):
            break
    return run.result()


class _Run:
    def __init__(self, policy: str, table: CostTable, calls: int, seconds: float) -> None:
        self._policy, self._table, self._calls, self._seconds = policy, table, calls, seconds
        self._waits: list[float] = []
        self._good = self._offered = 0
        self._elapsed_s = self._busy_s = 0.0
        self._steps = self._rows = 0
        self.failed = 0

    def once(self, seed: int) -> None:
        scheduler = POLICIES[self._policy](self._table)
        world = World(self._table, scheduler, seed, batched=self._policy != "lock")
        turns = arrivals(self._calls, self._seconds, seed)
        grades = [Grade() for _ in range(self._calls)]
        now, come = 0.0, 0
        while come < len(turns) or world.turns:
            while come < len(turns) and turns[come].at <= now:
                ended = world.begin(turns[come], now)
                come += 1
                if ended is not None:
                    self._grade(ended, grades)
            choice = scheduler.choose(now)
            if choice is None:
                now = turns[come].at
                continue
            seconds = world.seconds(choice)
            now += seconds
            self._busy_s += seconds
            if choice.kind.name == "decode":
                self._steps += 1
                self._rows += len(choice.keys)
            scheduler.observe(choice, seconds)
            for turn in world.complete(choice, now):
                self._grade(turn, grades)
            if sum(grade.too_late > 0 for grade in grades) > 1 + HOPELESS * self._calls:
                break
        self._elapsed_s += now
        self._offered += self._calls
        self._good += sum(grade.good for grade in grades)
        self.failed = self._offered - self._good

    def _grade(self, turn: Turn, grades: list[Grade]) -> None:
        grades[turn.call].add(turn)
        if turn.counts:
            self._waits.append(turn.wait_s)

    def result(self) -> Result:
        waits = sorted(self._waits) or [0.0]
        return Result(
            policy=self._policy,
            calls=self._calls,
            goodput=self._good / self._offered,
            turns_per_s=len(self._waits) / self._elapsed_s if self._elapsed_s else 0.0,
            first_audio_p50_ms=statistics.median(waits) * 1000,
            first_audio_p95_ms=waits[int(0.95 * (len(waits) - 1))] * 1000,
            busy=self._busy_s / self._elapsed_s if self._elapsed_s else 0.0,
            rows_per_step=self._rows / self._steps if self._steps else 0.0,
        )


def max_calls(
    policy: str,
    table: CostTable,
    *,
    most: int = MAX_CALLS,
    seconds: float = SECONDS,
    seeds: tuple[int, ...] = SEEDS,
) -> Result:
    """The most calls at which goodput is 99 %, and how it was with them. With none, the result for one call."""
    first = best = simulate(policy, table, 1, seconds=seconds, seeds=seeds)
    if not first.passed:
        return first
    low, high = 1, most + 1
    step = 2
    while high - low > 1:
        calls = min(low * step, high - 1) if high > most else (low + high) // 2
        result = simulate(policy, table, calls, seconds=seconds, seeds=seeds)
        if result.passed:
            low, best = calls, result
        else:
            high = calls
    return best
