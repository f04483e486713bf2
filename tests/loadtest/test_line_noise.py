"""Noise on the agent's line passes neither for its voice nor for its silence, and what it does wrong is still heard."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from loadtest.call import SLOT_MS, CallTape, Transport
from loadtest.line_noise import (
    ABOVE_NOISE_DB,
    LOUD_DBFS,
    STEADY_DB,
    STEADY_MS,
    VOICED_DBFS,
    LineNoise,
    power_at,
    voice_from_dbfs,
)
from loadtest.measure import TurnTiming, measure_turns
from loadtest.script import Interrupt, Say, Step, WaitAgent
from tests.loadtest.noisy_line import RATE_HZ, Agent, Pcm16, call, caller_line
from tests.virtual_time import virtual

WIRES = (Transport.SIP, Transport.TWILIO, Transport.WEBSOCKET)


def noise_of(dbfs: float | None) -> Callable[[int], Pcm16]:
    """Another white noise each slot."""
    samples = RATE_HZ * SLOT_MS // 1000
    level = 0.0 if dbfs is None else 32768.0 * 10.0 ** (dbfs / 20.0)
    return lambda slot: np.rint(np.random.default_rng(slot).normal(0.0, level, samples)).astype(np.int16)


def conversation() -> tuple[Step, ...]:
    return (
        WaitAgent(),
        Say(caller_line()),
        WaitAgent(),
        Say(caller_line()),
        Interrupt(caller_line(), 600.0),
        WaitAgent(),
    )


def timed(tape: CallTape) -> list[TurnTiming]:
    return measure_turns(tape.caller, tape.agent, tape.rate_hz, tape.marks, noise_dbfs=tape.noise_dbfs)


@virtual
@pytest.mark.parametrize("transport", WIRES)
@pytest.mark.parametrize("dbfs", [-60.0, -55.0, -45.0, -40.0])
async def test_times_are_those_of_a_line_without_noise(transport: Transport, dbfs: float) -> None:
    quiet = await call(Agent(noise_of(None)), transport, conversation())
    noisy = await call(Agent(noise_of(dbfs)), transport, conversation())
    assert (quiet.noise_dbfs, quiet.end_cause) == (None, noisy.end_cause)
    if dbfs < -56:
        assert noisy.noise_dbfs is None, "it changes nothing"
    else:
        assert noisy.noise_dbfs is not None
        assert dbfs - 1.0 <= noisy.noise_dbfs <= dbfs + STEADY_DB, "a voice's soft end may be within it"
    known, found = timed(quiet), timed(noisy)
    assert len(known) == len(found) == 3
    for before, now in zip(known, found, strict=True):
        for name in ("voice_to_voice_ms", "stop_ms"):
            was, this = getattr(before, name), getattr(now, name)
            assert (was is None) == (this is None), name
            assert this is None or abs(this - was) <= 2 * SLOT_MS, name
    assert known[0].voice_to_voice_ms is not None
    assert known[2].stop_ms is not None


@virtual
@pytest.mark.parametrize("transport", WIRES)
async def test_an_agent_that_does_not_stop_is_heard_through_the_noise(transport: Transport) -> None:
    tape = await call(Agent(noise_of(-45.0), stubborn=True), transport, conversation())
    stop_ms = timed(tape)[2].stop_ms
    assert stop_ms is None or stop_ms > 400.0


def slots(noise: LineNoise, dbfs: float, ms: int) -> list[bool]:
    return [noise.hear(power_at(dbfs)) for _ in range(ms // SLOT_MS)]


def test_what_is_loud_is_voice_however_steady_it_is() -> None:
    noise = LineNoise(SLOT_MS)
    assert all(slots(noise, LOUD_DBFS + 0.1, 60_000))
    assert noise.dbfs is None


def test_what_sets_in_after_quiet_is_voice_until_it_was_steady() -> None:
    noise = LineNoise(SLOT_MS)
    assert not any(slots(noise, -90.0, 100))
    heard = slots(noise, -45.0, 2 * STEADY_MS)
    assert heard == [True] * (STEADY_MS // SLOT_MS - 1) + [False] * (STEADY_MS // SLOT_MS + 1)
    assert noise.dbfs == pytest.approx(-45.0)


def test_what_might_be_noise_from_the_first_is_no_voice() -> None:
    assert not any(slots(LineNoise(SLOT_MS), -45.0, 2 * STEADY_MS))


def test_what_changes_its_level_is_no_noise() -> None:
    noise = LineNoise(SLOT_MS)
    slots(noise, -90.0, 100)
    heard = [noise.hear(power_at(-40.0 if slot % 5 else -49.0)) for slot in range(500)]
    assert all(heard)
    assert noise.dbfs is None


def test_a_gap_says_nothing_of_the_line() -> None:
    noise = LineNoise(SLOT_MS)
    slots(noise, -90.0, 100)
    for _ in range(10):
        assert all(slots(noise, -45.0, STEADY_MS - SLOT_MS))
        noise.hear_nothing()
    assert noise.dbfs is None


def test_the_loudest_noise_counts_for_the_rest_of_the_call() -> None:
    noise = LineNoise(SLOT_MS)
    for dbfs in (-40.0, -52.0):
        slots(noise, dbfs, STEADY_MS)
    assert noise.dbfs == pytest.approx(-40.0)
    assert not noise.is_voice(power_at(-40.0 + ABOVE_NOISE_DB - 0.1))
    assert noise.is_voice(power_at(-40.0 + ABOVE_NOISE_DB + 0.1))


def test_voice_is_above_the_noise_and_above_silence() -> None:
    assert voice_from_dbfs(None) == voice_from_dbfs(-70.0) == VOICED_DBFS
    assert voice_from_dbfs(-40.0) == -40.0 + ABOVE_NOISE_DB
