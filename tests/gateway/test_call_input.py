"""What comes into a call: audio in any amount, and detectors that lose it or get stuck."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from engines.vad.scripted import EnergyVad
from gateway.caller_audio import ROOM_S
from streaming.events import (
    CommitInput,
    CreateResponse,
)
from tests.gateway.call_rig import (
    PLAIN,
    CallRig,
    Engines,
    hush,
    voice,
)
from tests.loop_turns import others
from tests.virtual_time import virtual


@virtual
async def test_five_minutes_in_one_piece_hold_up_nobody() -> None:
    engines = Engines()
    rig = CallRig(PLAIN, engines)
    deepest = 0
    feed = rig.call._caller._vad.feed

    def watched(pcm: np.ndarray) -> None:
        nonlocal deepest
        feed(pcm)
        deepest = max(deepest, rig.call._caller._vad.backlog_samples)

    rig.call._caller._vad.feed = watched  # type: ignore[method-assign]
    async with others() as other:
        await rig.call.hear(np.concatenate([voice(60_000), hush(1_000)] * 5))
    assert other.turns >= 300, "a turn of the loop for each second of audio"
    assert deepest <= 3 * 16_000 + 512
    assert rig.call._caller._ring.end_samples == 5 * 61 * 16_000
    assert len(rig.call._caller._ring._buffer) == 12 * 16_000
    await rig.end()


@virtual
async def test_a_commit_is_of_all_that_was_said_also_what_the_detector_has_not_come_to() -> None:
    rig = CallRig(PLAIN)
    rig.call.answered()
    await rig.call.hear(voice(1_500))
    assert rig.call._caller._scored_samples < rig.call.heard_samples - 512
    await rig.call.caught_up()
    assert rig.call._caller._scored_samples >= rig.call.heard_samples - 512
    rig.call.handle(CommitInput(rig.call.heard_samples))
    await asyncio.sleep(4)
    assert [entry.text for entry in rig.record.transcript][:1] == ["hello there"]
    await rig.end()


@virtual
async def test_a_commit_does_not_wait_for_ever_for_a_deaf_detector() -> None:
    rig = CallRig(PLAIN, Engines(vad=DeafVad()))
    await rig.call.hear(voice(500))
    began = asyncio.get_running_loop().time()
    await rig.call.caught_up()
    assert ROOM_S <= asyncio.get_running_loop().time() - began < ROOM_S + 1
    waiting = asyncio.create_task(rig.call.caught_up())
    await asyncio.sleep(0.1)
    rig.call.hang_up("caller_hung_up")
    await waiting
    assert asyncio.get_running_loop().time() - began < ROOM_S + 2


class DeafVad(EnergyVad):
    """Takes audio and never says a word."""

    def open(self, deliver: object) -> object:  # type: ignore[override]
        return super().open(lambda probability, end_samples: None)


class StuckVad(EnergyVad):
    """Takes audio and never gets through it."""

    def open(self, deliver: object) -> object:  # type: ignore[override]
        stream = super().open(lambda probability, end_samples: None)
        stream._hand_over = lambda scored: None  # type: ignore[method-assign]
        return stream


@virtual
async def test_a_detector_that_loses_windows_does_not_stop_the_line() -> None:
    rig = CallRig(PLAIN, Engines(vad=DeafVad()))
    begun = rig.loop.time()
    await rig.call.hear(hush(30_000))
    assert rig.loop.time() - begun < 2
    assert rig.call.heard_samples == 30 * 16_000
    await rig.end()


@virtual
async def test_a_detector_that_is_stuck_costs_audio_not_memory_nor_the_call() -> None:
    rig = CallRig(PLAIN, Engines(vad=StuckVad()))
    begun = rig.loop.time()
    await rig.call.hear(hush(5_000))
    assert rig.loop.time() - begun == pytest.approx(2 * ROOM_S, abs=0.1)
    assert rig.call._caller._vad.backlog_samples == 3 * 16_000
    assert rig.counted("input_dropped") == 2
    waiting = asyncio.create_task(rig.call.hear(hush(1_000)))
    await asyncio.sleep(0.1)
    await rig.end()
    await asyncio.sleep(0.001)
    assert waiting.done()


@virtual
async def test_after_the_end_nothing_is_heard_or_done() -> None:
    rig = CallRig(PLAIN)
    await rig.end()
    await rig.call.hear(voice(3_000))
    rig.call.answered()
    rig.call.drain()
    rig.call.handle(CreateResponse())
    rig.call.writable()
    rig.call.hang_up("again")
    await asyncio.sleep(5)
    assert rig.call.heard_samples == 0
    assert rig.leg.kinds == ["CallEnded"]
    assert rig.record.cause == "caller_hung_up"
    assert rig.counted("event_after_end") == 4
