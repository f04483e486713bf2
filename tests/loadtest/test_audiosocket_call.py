"""Short real calls to a scripted AudioSocket server on loopback."""

from __future__ import annotations

import asyncio
import socket
import uuid

import pytest

from loadtest import audiosocket_call, script
from loadtest.audiosocket_call import AudioSocketWire
from loadtest.call import CallPlan, CallTape, EndCause
from loadtest.command import CallOptions, Press, Say, place_call
from loadtest.measure import voiced_spans
from loadtest.placing import place_planned_call
from loadtest.script import Interrupt, Pause, Vanish, conversation
from tests.loadtest.audiosocket_server import Script, Seen, audiosocket_server, message
from tests.loadtest.test_sip_call import QUICK, RATE_HZ, line


async def call(
    script: Script, *turns: script.Say | script.Press | Interrupt, tail: str = "", **plan: object
) -> tuple[CallTape, Seen]:
    async with audiosocket_server(script) as (url, seen):
        fields = {"patience": QUICK, "rate_hz": RATE_HZ, **plan}
        tape = await place_planned_call(CallPlan(url + tail, conversation(turns), **fields))  # type: ignore[arg-type]
    return tape, seen


async def test_one_turn_is_recorded_on_both_sides() -> None:
    tape, seen = await call(Script(), line(), tail="/40325ec2-5efd-4bd3-805f-53576e581d13")
    assert (tape.end_cause, tape.problem, tape.log.errors) == (EndCause.HANGUP, None, [])
    (mark,) = tape.marks
    (answer,) = voiced_spans(tape.agent, RATE_HZ)
    assert answer.end - answer.start == pytest.approx(0.4 * RATE_HZ, abs=0.01 * RATE_HZ)
    assert answer.start - mark.end >= 0.2 * RATE_HZ
    assert tape.log.call_id == "40325ec2-5efd-4bd3-805f-53576e581d13"
    assert seen.messages[0] == (0x01, uuid.UUID("40325ec2-5efd-4bd3-805f-53576e581d13").bytes)
    assert seen.messages[-1] == (0x00, b"")
    assert {len(frame) for frame in seen.of(0x10)} == {320}
    assert tape.setup is not None
    assert None not in (tape.setup.answered_ms, tape.setup.first_audio_ms)


async def test_keys_are_messages_beside_the_audio() -> None:
    tape, seen = await call(Script(), script.Press("1#"))
    assert seen.of(0x03) == [b"1", b"#"]
    kinds = [kind for kind, _ in seen.messages]
    first = kinds.index(0x03)
    assert kinds[first : kinds.index(0x03, first + 1)].count(0x10) == 10
    assert tape.marks[0].keys


async def test_other_rates_both_ways() -> None:
    async with audiosocket_server(Script(kind=0x12, rate_hz=16_000)) as (url, seen):
        report = await place_call(CallOptions(url + "?rate=16000", (Say("Stop."),), patience=QUICK))
    assert report.answered
    assert {len(frame) for frame in seen.of(0x12)} == {640}
    tape, _ = await call(Script(kind=0x12, greeting_ms=200, rate_hz=16_000), line())  # it answers at its own
    assert voiced_spans(tape.agent, RATE_HZ)[0].end - voiced_spans(tape.agent, RATE_HZ)[0].start == pytest.approx(
        0.2 * RATE_HZ, abs=0.01 * RATE_HZ
    )


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        (Script(after=(message(0x00),)), EndCause.AGENT_HANGUP),
        (Script(close_after=True), EndCause.AGENT_HANGUP),
        (Script(after=(message(0xFF, b"\x04"),)), EndCause.CONNECTION_LOST),
    ],
)
async def test_the_agent_may_hang_up(script: Script, cause: EndCause) -> None:
    tape, _ = await call(script, line(), line(), line())
    assert tape.end_cause is cause
    assert ("04" in (tape.problem or "")) == (cause is EndCause.CONNECTION_LOST)
    assert len(tape.marks) < 3


async def test_a_hang_up_without_a_sound_says_what_it_may_be() -> None:
    tape, _ = await call(Script(refuse=True), line())
    assert "the UUID is unknown or used" in (tape.problem or "")


async def test_what_means_nothing_is_noted_and_keys_are_heard() -> None:
    script = Script(replies=(200, 200), after=(message(0x42, b"x"), message(0x10, b"x"), message(0x03, b"7")))
    tape, _ = await call(script, line(), line())
    assert tape.end_cause is EndCause.HANGUP
    assert tape.log.errors == ["malformed message: type 0x42, 1 bytes", "malformed message: type 0x10, 1 bytes"]
    assert tape.log.keys_heard == "7"


async def test_who_sends_ahead_loses_what_asterisk_has_no_room_for() -> None:
    tape, _ = await call(Script(replies=(3_000,), burst=True), line())
    assert tape.buffer is not None
    assert tape.buffer.dropped_ms >= 1_900
    (answer,) = voiced_spans(tape.agent, RATE_HZ)
    assert (answer.end - answer.start) / RATE_HZ == pytest.approx(1.0, abs=0.1)


async def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"audiosocket://127.0.0.1:{taken.getsockname()[1]}"
        tape = await place_planned_call(CallPlan(url, conversation([line()]), rate_hz=RATE_HZ))
    assert tape.end_cause is EndCause.REFUSED


async def test_a_server_that_stops_reading_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    made = AudioSocketWire.connection_made

    def paused(wire: AudioSocketWire, transport: asyncio.BaseTransport) -> None:
        made(wire, transport)
        wire.pause_writing()

    monkeypatch.setattr(AudioSocketWire, "connection_made", paused)
    monkeypatch.setattr(audiosocket_call, "SEND_S", 0.05)
    tape, _ = await call(Script(), line())
    assert tape.end_cause is EndCause.STALLED


async def test_a_report_of_a_call() -> None:
    async with audiosocket_server(Script(replies=(400, 300), greeting_ms=200)) as (url, _):
        report = await place_call(CallOptions(url, (Say("Stop."), Press("12")), patience=QUICK))
    assert (report.transport, report.answered, report.errors) == ("audiosocket", True, [])
    assert report.buffer is not None
    assert [turn.pressed_keys for turn in report.turns] == [None, "12"]


async def test_who_vanishes_says_no_goodbye() -> None:
    async with audiosocket_server(Script(greeting_ms=2_000)) as (url, seen):
        tape = await place_planned_call(CallPlan(url, (Pause(200), Vanish()), rate_hz=RATE_HZ, linger_s=0.1))
    assert tape.end_cause is EndCause.VANISHED
    assert seen.of(0x10)
    assert not seen.of(0x00)
