"""A call on a wire without a network, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from loadtest.call import CallOver, CallPlan, CallTape, EndCause, Key, Pcm16
from loadtest.frame_tables import Encoding, FrameTables, Voice, each_frame
from loadtest.holding import hold_call
from loadtest.playout import Playout
from loadtest.script import HangUp, HoldLine, Interrupt, Line, Patience, Pause, Press, Say, Step, Vanish, WaitAgent
from loadtest.ticker import running_clock, ticking
from loadtest.wire import CallLog
from tests.loadtest.tapes import sent
from tests.virtual_time import virtual

RATE_HZ = 1_000
SLOT = 20
ENCODING = Encoding("raw", RATE_HZ, each_frame(lambda frame: frame.tobytes()))


def line(ms: int, level: int = 1_000) -> Line:
    return Line(f"{level}", np.full(ms, level, dtype=np.int16), float(ms), code=f"code {level}")


class FakeWire:
    """Notes what it is told. ``on_frame`` is asked with the number of every frame."""

    rate_hz = RATE_HZ
    patience = Patience(greeting_ms=100, answer_ms=200, pause_ms=60)
    setup_ms = 7.0

    def __init__(self, voice: Voice, on_frame: Callable[[FakeWire, int], None]) -> None:
        self.voice = voice
        self.ear = Playout(rate_hz=RATE_HZ)
        self.log = CallLog("id")
        self.sent: list[tuple[bytes, Key | None]] = []
        self.told: list[str] = []
        self.turns: list[int] = []
        self.clock = running_clock()
        self._on_frame = on_frame

    def attend(self, turn: Callable[[], int], on_over: Callable[[CallOver], None]) -> None:
        self.turn, self.over = turn, on_over

    def begin(self) -> None:
        self.told.append("begin")

    def encode(self, pcm: Pcm16) -> bytes:
        return pcm.tobytes()

    def send_voice(self, frame: bytes, key: Key | None) -> None:
        self.sent.append((frame, key))
        self._on_frame(self, len(self.sent))

    def skip(self, slots: int) -> None:
        self.told.append(f"skip {slots}")

    def hold(self, held: bool) -> None:
        self.told.append(f"hold {held} after {len(self.sent)}")

    async def vanish(self, linger_s: float) -> None:
        self.told.append("vanish")
        await asyncio.sleep(linger_s)

    async def hang_up(self) -> str | None:
        self.told.append("hang up")
        return None

    def setup(self) -> None:
        return None

    def media(self) -> None:
        return None

    def buffer(self) -> None:
        return None

    def say(self, ms: int, item: str = "a") -> None:
        """The agent's sound arrives."""
        self.ear.push(item, np.full(ms, 2_000, dtype=np.int16), self.clock())
        self.ear.finish(item, self.clock())


def nothing(_wire: FakeWire, _number: int) -> None:
    """An agent without a word."""


async def hold(
    *steps: Step, on_frame: Callable[[FakeWire, int], None] = nothing, **plan: Any
) -> tuple[CallTape, FakeWire]:
    abandon = plan.pop("abandon", None)
    wire = FakeWire(await FrameTables().voice(ENCODING, steps), on_frame)
    async with ticking() as ticker:
        tape = await hold_call(CallPlan("x", steps, rate_hz=RATE_HZ, **plan), wire, ticker, abandon)
        assert ticker.size == 0
    return tape, wire


@virtual
async def test_what_is_recorded_is_what_was_sent_and_each_frame_leaves_when_it_is_over() -> None:
    tape, wire = await hold(Pause(60), Say(line(50, 1)), Pause(40), Say(line(20, 2)), HangUp())
    assert tape.end_cause is EndCause.HANGUP
    assert [int(np.frombuffer(frame, dtype=np.int16)[0]) for frame, _ in wire.sent] == [0, 0, 0, 1, 1, 1, 0, 0, 2]
    assert b"".join(frame for frame, _ in wire.sent) == tape.caller.tobytes()
    assert [(mark.start, mark.end, mark.text, mark.code) for mark in tape.marks] == [
        (60, 110, "1", "code 1"),
        (160, 180, "2", "code 2"),
    ]
    assert wire.told == ["begin", "hang up"]
    assert (tape.setup_ms, tape.caller_lag_ms, tape.skipped_slots) == (7.0, 0, ())


@virtual
async def test_the_agent_is_heard_on_the_same_axis_and_waited_for() -> None:
    def agent(wire: FakeWire, number: int) -> None:
        if number == 10:
            wire.say(100)

    tape, wire = await hold(Say(line(100)), WaitAgent(), on_frame=agent)
    assert len(tape.agent) == len(tape.caller)
    heard = np.flatnonzero(tape.agent.reshape(-1, SLOT).any(axis=1))
    assert heard.tolist() == [13, 14, 15, 16, 17]  # the tenth frame left at 200 ms, and 60 ms are gathered
    assert len(wire.sent) == 18 + 3  # the caller's pause
    assert tape.heard.frames_due == 5
    assert wire.turn() == 0


@virtual
async def test_an_interruption_begins_while_the_agent_speaks() -> None:
    def agent(wire: FakeWire, number: int) -> None:
        if number == 1:
            wire.say(1_000)

    tape, _ = await hold(Interrupt(line(40), 100), HangUp(), on_frame=agent)
    (mark,) = tape.marks
    assert mark.kind == "interrupt"
    assert mark.start - int(np.flatnonzero(tape.agent)[0]) == 120  # heard in a slot, seen when that is over
    assert (mark.end - mark.start, mark.answer_expected) == (40, True)


@virtual
async def test_keys_go_beside_silence() -> None:
    tape, wire = await hold(Press("1#"), Pause(0))
    keys = [(number, key.digit, key.slot, key.last) for number, (_, key) in enumerate(wire.sent) if key is not None]
    first = [(number, "1", number, number == 4) for number in range(5)]
    assert keys == first + [(number + 10, "#", slot, last) for number, _, slot, last in first]
    assert not tape.caller.any()
    (mark,) = tape.marks
    assert (mark.start, mark.end, mark.keys, mark.text) == (0, 220, True, "1#")


@virtual
async def test_after_a_stall_the_line_goes_on_and_the_silence_is_in_the_recording() -> None:
    def stalled(_wire: FakeWire, number: int) -> None:
        if number == 3:
            loop: Any = asyncio.get_running_loop()
            loop._jumping.now_s += 0.05

    tape, wire = await hold(Say(line(200)), Pause(0), on_frame=stalled)
    assert tape.skipped_slots == (4,)
    assert wire.told[1] == "skip 1"
    assert sent(tape).tobytes() == b"".join(frame for frame, _ in wire.sent)
    (mark,) = tape.marks
    assert (mark.start, mark.end) == (0, 220)
    assert tape.caller_lag_ms == pytest.approx(10)


class Echo:
    """Says what it hears, where the caller says nothing."""

    def frame(self, line: Pcm16 | None, heard: Pcm16) -> Pcm16 | None:
        return None if line is not None or not heard.any() else heard // 2


@virtual
async def test_a_caller_s_own_sound_is_sent_and_recorded() -> None:
    def agent(wire: FakeWire, number: int) -> None:
        if number == 2:
            wire.say(60)

    tape, wire = await hold(Say(line(160, 7)), Pause(100), on_frame=agent, sound=Echo())
    assert b"".join(frame for frame, _ in wire.sent) == tape.caller.tobytes()
    echo = np.flatnonzero(tape.caller == 1_000)
    agent_at = np.flatnonzero(tape.agent == 2_000)
    assert (agent_at[0], echo[0]) == (100, 160)  # the line itself is left as it is
    assert tape.caller[:160].tolist() == [7] * 160


@virtual
async def test_hold_is_told_and_silence_is_sent_meanwhile() -> None:
    tape, wire = await hold(Say(line(40)), HoldLine(100), Say(line(20)), Pause(0), sound=Echo())
    assert [word for word in wire.told if word.startswith("hold")] == ["hold True after 2", "hold False after 7"]
    assert not tape.caller[40:140].any()


@virtual
async def test_who_vanishes_tells_nobody_and_stays_for_a_while() -> None:
    began_s = running_clock()()
    tape, wire = await hold(Say(line(40)), Vanish(), linger_s=30.0)
    assert (tape.end_cause, wire.told) == (EndCause.VANISHED, ["begin", "vanish"])
    assert len(wire.sent) == len(tape.caller) // SLOT == 2
    assert running_clock()() - began_s == pytest.approx(30.04, abs=0.02)


@virtual
async def test_the_time_limit_and_a_call_that_is_given_up() -> None:
    tape, _ = await hold(Pause(60_000), max_seconds=1.0)
    assert (tape.end_cause, len(tape.caller)) == (EndCause.TIME_LIMIT, RATE_HZ)
    abandon = asyncio.Event()
    tape, wire = await hold(Pause(60_000), abandon=abandon, on_frame=lambda _, n: abandon.set() if n == 9 else None)
    assert (tape.end_cause, len(wire.sent), wire.told[-1]) == (EndCause.ABANDONED, 9, "hang up")


@virtual
async def test_the_other_end_hangs_up_and_the_first_cause_stands() -> None:
    def gone(wire: FakeWire, number: int) -> None:
        if number == 5:
            wire.over(CallOver(EndCause.AGENT_HANGUP))
            wire.over(CallOver(EndCause.CONNECTION_LOST, "later"))

    tape, wire = await hold(Pause(60_000), on_frame=gone)
    assert (tape.end_cause, tape.problem, len(wire.sent)) == (EndCause.AGENT_HANGUP, None, 5)


@virtual
async def test_a_wire_that_ends_while_it_sends_ends_the_call() -> None:
    def stalled(_wire: FakeWire, number: int) -> None:
        if number == 3:
            raise CallOver(EndCause.STALLED, "no")

    tape, _ = await hold(Pause(60_000), on_frame=stalled)
    assert (tape.end_cause, tape.problem, len(tape.caller)) == (EndCause.STALLED, "no", 3 * SLOT)


@virtual
async def test_a_defect_is_the_call_s_own_and_hangs_up() -> None:
    def broken(_wire: FakeWire, number: int) -> None:
        raise ZeroDivisionError(str(number))

    with pytest.raises(ZeroDivisionError):
        await hold(Pause(60_000), on_frame=broken)


@virtual
async def test_a_call_that_is_broken_off_hangs_up_first() -> None:
    wire = FakeWire(await FrameTables().voice(ENCODING, ()), nothing)
    async with ticking() as ticker:
        plan = CallPlan("x", (Pause(60_000),), rate_hz=RATE_HZ)
        calling = asyncio.create_task(hold_call(plan, wire, ticker))
        await asyncio.sleep(0.1)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert (wire.told, ticker.size) == (["begin", "hang up"], 0)
