"""Short real calls to a scripted SIP server on loopback."""

from __future__ import annotations

import asyncio
import itertools
import re
import socket
from pathlib import Path

import numpy as np
import pytest

from loadtest import script
from loadtest.call import CallPlan, CallTape, EndCause, PhoneOptions
from loadtest.command import CallOptions, Press, Say, place_call
from loadtest.measure import voiced_spans
from loadtest.placing import place_planned_call
from loadtest.script import Interrupt, Line, Patience, Pause, Vanish, conversation
from tests.loadtest.sip_server import PASSWORD, Script, Seen, header, sip_server
from tests.loadtest.tapes import sent

QUICK = Patience(greeting_ms=200, answer_ms=800, pause_ms=120, stalled_ms=800, agent_turn_ms=3_000)
RATE_HZ = 8_000


def line(text: str = "hello", ms: int = 300, barge_in_after_ms: float | None = None) -> script.Say | Interrupt:
    wave = 6_000 * np.sin(2 * np.pi * 200 * np.arange(RATE_HZ * ms // 1000) / RATE_HZ)
    said = Line(text, wave.astype(np.int16), float(ms))
    return script.Say(said) if barge_in_after_ms is None else Interrupt(said, barge_in_after_ms)


async def call(
    script: Script, *turns: script.Say | script.Press | Interrupt, url_tail: str = "", **plan: object
) -> tuple[CallTape, Seen]:
    async with sip_server(script) as (url, seen):
        fields = {"patience": QUICK, "rate_hz": RATE_HZ, **plan}
        tape = await place_planned_call(CallPlan(url + url_tail, conversation(turns), **fields))  # type: ignore[arg-type]
    return tape, seen


@pytest.mark.parametrize("tcp", [False, True])
async def test_one_turn_is_recorded_on_both_sides(tcp: bool) -> None:
    tape, seen = await call(Script(tcp=tcp), line())
    assert (tape.end_cause, tape.problem, tape.log.errors) == (EndCause.HANGUP, None, [])
    (mark,) = tape.marks
    caller, agent = voiced_spans(tape.caller, RATE_HZ), voiced_spans(tape.agent, RATE_HZ)
    assert (caller[0].start, caller[0].end) == (mark.start, mark.end)
    (answer,) = agent
    assert answer.end - answer.start == pytest.approx(0.4 * RATE_HZ, abs=0.01 * RATE_HZ)
    assert answer.start - mark.end >= 0.2 * RATE_HZ
    assert tape.log.call_id == header(seen.request("INVITE"), "call-id")
    assert tape.setup is not None
    times = (tape.setup.trying_ms, tape.setup.ringing_ms, tape.setup.answered_ms, tape.setup.first_audio_ms)
    assert None not in times
    assert list(times) == sorted(times)  # type: ignore[type-var]
    assert (tape.setup.connected_ms, tape.setup.channel_open_ms) == (None, None)
    assert tape.media is not None
    assert tape.media.packets_received > 20
    assert tape.media.packets_lost == 0
    assert [method for method in seen.methods() if not method.isdigit()] == ["INVITE", "ACK", "BYE"]


async def test_the_microphone_sends_every_frame_in_order_silence_included() -> None:
    tape, seen = await call(Script(), line())
    sequences = [sequence for _, _, sequence, _, _ in seen.rtp]
    assert sequences == [(sequences[0] + n) & 0xFFFF for n in range(len(sequences))]
    stamps = [timestamp for _, _, _, timestamp, _ in seen.rtp]
    steps = [(b - a) & 0xFFFFFFFF for a, b in itertools.pairwise(stamps)]
    assert all(step % 160 == 0 for step in steps)
    assert sum(step // 160 - 1 for step in steps) == len(tape.skipped_slots)  # time goes on meanwhile
    assert [marker for _, marker, _, _, _ in seen.rtp] == [True] + [False] * (len(sequences) - 1)
    assert abs(len(seen.rtp) - len(sent(tape)) // 160) <= 2


@pytest.mark.parametrize("codec", ["pcmu", "pcma"])
async def test_the_codec_of_the_answer_is_spoken(codec: str) -> None:
    number = {"pcmu": 0, "pcma": 8}[codec]
    tape, seen = await call(Script(payload=f"{number} 101"), line(), phone=PhoneOptions(codec=codec))
    assert f"RTP/AVP {number} 101\r\n" in seen.request("INVITE")
    assert {kind for kind, *_ in seen.rtp} == {number}
    assert len(voiced_spans(tape.agent, RATE_HZ)) == 1


async def test_both_codecs_are_offered_and_who_calls_whom_is_said() -> None:
    _, seen = await call(Script(), agent="sales", phone=PhoneOptions(caller="+15551234"))
    invite = seen.request("INVITE")
    assert re.match(r"INVITE sip:sales@127\.0\.0\.1:\d+ SIP/2\.0\r\n", invite)
    assert "RTP/AVP 0 8 101\r\n" in invite
    assert header(invite, "from").startswith("<sip:+15551234@127.0.0.1>;tag=")


async def test_keys_go_out_as_telephone_events() -> None:
    tape, seen = await call(Script(), script.Press("4#"))
    events = [(marker, timestamp, payload) for kind, marker, _, timestamp, payload in seen.rtp if kind == 101]
    first = [entry for entry in events if entry[2][0] == 4]
    second = [entry for entry in events if entry[2][0] == 11]
    for key in (first, second):
        assert [marker for marker, _, _ in key] == [True] + [False] * 6
        assert len({timestamp for _, timestamp, _ in key}) == 1
        durations = [int.from_bytes(payload[2:]) for _, _, payload in key]
        assert durations == [160, 320, 480, 640, 800, 800, 800]
        assert [payload[1] >> 7 for _, _, payload in key] == [0, 0, 0, 0, 1, 1, 1]
    skipped = 160 * len(tape.skipped_slots)
    assert 0 <= ((second[0][1] - first[0][1]) & 0xFFFFFFFF) - 1_600 <= skipped  # down 100 ms, up 100 ms
    (mark,) = tape.marks
    assert mark.keys
    assert 0 <= mark.end - mark.start - 0.22 * RATE_HZ <= skipped
    stamps = [timestamp for kind, _, _, timestamp, _ in seen.rtp if kind == 0]
    assert sum(((b - a) & 0xFFFFFFFF) >= 960 for a, b in itertools.pairwise(stamps)) >= 2


async def test_a_server_without_events_is_no_place_for_keys() -> None:
    tape, seen = await call(Script(payload="0"), script.Press("1"))
    assert tape.log.errors == ["the server takes no telephone-events: keys are not heard there"]
    assert {kind for kind, *_ in seen.rtp} == {0}


@pytest.mark.parametrize("algorithm", ["MD5", "SHA-256"])
async def test_a_challenge_is_answered(algorithm: str) -> None:
    phone = PhoneOptions(user="alice", password=PASSWORD)
    tape, seen = await call(Script(challenge=algorithm), line(), phone=phone)
    assert tape.end_cause is EndCause.HANGUP
    assert seen.methods()[:4] == ["INVITE", "ACK", "INVITE", "ACK"]
    assert len(voiced_spans(tape.agent, RATE_HZ)) == 1


@pytest.mark.parametrize(("password", "invites", "words"), [(None, 1, "--password"), ("wrong", 2, "not accepted")])
async def test_a_challenge_that_is_not_met(password: str | None, invites: int, words: str) -> None:
    tape, seen = await call(Script(challenge="MD5"), line(), phone=PhoneOptions(password=password))
    assert tape.end_cause is EndCause.UNAUTHORIZED
    assert words in (tape.problem or "")
    assert seen.methods().count("INVITE") == invites


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        ("403 Forbidden", EndCause.FORBIDDEN),
        ("404 Not Found", EndCause.NOT_FOUND),
        ("480 Temporarily Unavailable", EndCause.BUSY),
        ("486 Busy Here", EndCause.BUSY),
        ("603 Decline", EndCause.BUSY),
        ("503 Service Unavailable", EndCause.BUSY),
        ("488 Not Acceptable Here", EndCause.NO_MEDIA),
        ("500 Server Error", EndCause.REFUSED),
    ],
)
async def test_refusals_are_told_apart(status: str, cause: EndCause) -> None:
    tape, seen = await call(Script(final=status), line())
    assert tape.end_cause is cause
    assert status in (tape.problem or "")
    assert tape.setup_ms is None
    assert seen.methods() == ["INVITE", "ACK"]


@pytest.mark.parametrize(
    "sdp",
    [
        "",
        "v=0\r\nm=audio 9 RTP/AVP 0\r\n",
        "v=0\r\nc=IN IP4 127.0.0.1\r\nm=audio 9 RTP/SAVP 0\r\n",
        "v=0\r\nc=IN IP4 127.0.0.1\r\nm=audio 0 RTP/AVP 0\r\n",
        "v=0\r\nc=IN IP4 127.0.0.1\r\nm=audio 9 RTP/AVP 18\r\n",
        "v=0\r\nc=IN IP4 pbx.example\r\nm=audio 9 RTP/AVP 0\r\n",
    ],
)
async def test_an_answer_nobody_can_talk_by_is_hung_up(sdp: str) -> None:
    tape, seen = await call(Script(sdp=sdp), line())
    assert tape.end_cause is EndCause.NO_MEDIA
    assert [method for method in seen.methods() if not method.isdigit()] == ["INVITE", "ACK", "BYE"]


async def test_a_lost_invite_and_a_lost_ack_are_sent_again() -> None:
    tape, seen = await call(Script(lose=1, lose_acks=1), line())
    assert tape.end_cause is EndCause.HANGUP
    assert seen.methods()[:4] == ["INVITE", "INVITE", "ACK", "ACK"]


async def test_a_reliable_response_is_acknowledged_and_may_hold_the_answer() -> None:
    tape, seen = await call(Script(reliable=True, ring=False), line())
    assert tape.end_cause is EndCause.HANGUP
    assert header(seen.request("PRACK"), "rack") == "7 " + header(seen.request("INVITE"), "cseq")
    assert len(voiced_spans(tape.agent, RATE_HZ)) == 1


async def test_the_agent_may_hang_up() -> None:
    tape, seen = await call(Script(then=("wait 100", "bye")), line(), line(), line())
    assert tape.end_cause is EndCause.AGENT_HANGUP
    assert len(tape.marks) < 3
    assert seen.methods()[-2:] == ["200", "200"]  # the second is for the copy


async def test_on_hold_the_caller_listens_and_talks_again_after() -> None:
    script = Script(replies=(200, 200), then=("hold sendonly", "wait 300", "hold sendrecv"))
    tape, seen = await call(script, line(), line())
    assert tape.end_cause is EndCause.HANGUP
    answers = [text for text in seen.messages if text.startswith("SIP/2.0 200") and "m=audio" in text]
    assert [re.findall(r"a=(recvonly|sendrecv)", text) for text in answers] == [["recvonly"], ["sendrecv"]]
    stamps = [timestamp for _, _, _, timestamp, _ in seen.rtp]
    steps = [(b - a) & 0xFFFFFFFF for a, b in itertools.pairwise(stamps)]
    assert max(steps) >= 8 * 160  # nothing was sent for most of 300 ms, and time went on


async def test_what_else_a_server_may_ask() -> None:
    then = ("offer 18", "wait 20", "INVITE", "wait 20", "UPDATE", "OPTIONS", "INFO", "PUBLISH")
    tape, seen = await call(Script(replies=(200, 200), then=then), line(), line())
    assert tape.end_cause is EndCause.HANGUP
    answers = [text for text in seen.messages if text.startswith("SIP/")]
    assert [text.split(" ")[1] for text in answers] == ["488", "200", "200", "200", "200", "405"]
    assert ["m=audio" in text for text in answers] == [False, True, False, False, False, False]
    assert len(voiced_spans(tape.agent, RATE_HZ)) == 2  # the refused offer left the call as it was


async def test_a_call_without_any_audio_says_so() -> None:
    tape, _ = await call(Script(lose_packets=frozenset(range(1_000))), line())
    assert tape.log.errors == ["no audio came: not one RTP packet"]
    assert not tape.agent.any()


async def test_a_transfer_is_noted_and_reported_to_the_server() -> None:
    tape, seen = await call(Script(then=("REFER Refer-To: <sip:desk@pbx.example>", "wait 100", "bye")), line(), line())
    assert tape.log.transferred_to == "sip:desk@pbx.example"
    assert tape.end_cause is EndCause.AGENT_HANGUP
    notify = seen.request("NOTIFY")
    assert header(notify, "content-type") == "message/sipfrag;version=2.0"
    assert notify.endswith("SIP/2.0 200 OK\r\n")


async def test_keys_that_the_agent_presses_are_heard_once_and_are_no_loss() -> None:
    tape, _ = await call(Script(then=("key 5", "wait 100", "say 200")), line(), line())
    assert tape.log.keys_heard == "5"
    assert tape.media is not None
    assert (tape.media.packets_lost, tape.media.concealed_ms) == (0, 0)


async def test_a_lost_packet_is_concealed() -> None:
    tape, _ = await call(Script(greeting_ms=400, lose_packets=frozenset({8})), line())
    assert tape.media is not None
    assert (tape.media.packets_lost, tape.media.concealed_ms) == (1, 20)
    greeting, _ = voiced_spans(tape.agent, RATE_HZ)
    assert greeting.end - greeting.start == pytest.approx(0.4 * RATE_HZ, abs=0.01 * RATE_HZ)


async def test_a_barge_in_is_measured_by_the_sound_alone() -> None:
    tape, _ = await call(Script(replies=(4_000, 200)), line(), line("stop", 400, barge_in_after_ms=300))
    second = tape.marks[1]
    cut, answer = voiced_spans(tape.agent, RATE_HZ)
    assert 100 <= (cut.end - second.start) * 1000 / RATE_HZ <= 400
    assert answer.start > second.end


async def test_nobody_listens() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    tape = await place_planned_call(CallPlan(f"sip:x@127.0.0.1:{port}", conversation([line()]), rate_hz=RATE_HZ))
    assert tape.end_cause is EndCause.REFUSED
    assert f"no answer at sip:x@127.0.0.1:{port}" in (tape.problem or "")


async def test_turns_at_another_rate_than_the_wires_are_no_call() -> None:
    with pytest.raises(ValueError, match="8000 Hz, not at 24000"):
        await place_planned_call(CallPlan("sip:h", conversation([line()])))


async def test_ctrl_c_while_it_rings_cancels() -> None:
    async with sip_server(Script(ring_forever=True)) as (url, seen):
        calling = asyncio.create_task(place_planned_call(CallPlan(url, conversation([line()]), rate_hz=RATE_HZ)))
        while "INVITE" not in seen.methods():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
    assert seen.methods() == ["INVITE", "CANCEL", "ACK"]
    branches = {header(seen.request(method), "via") for method in ("INVITE", "CANCEL", "ACK")}
    assert len(branches) == 1


async def test_a_report_of_a_phone_call(tmp_path: Path) -> None:
    record = tmp_path / "call.wav"
    async with sip_server(Script(replies=(400, 300), greeting_ms=200)) as (url, _):
        options = CallOptions(url, (Say("Stop."), Press("12")), record=record, patience=QUICK)
        report = await place_call(options)
    assert (report.transport, report.answered, report.end_cause, report.errors) == ("sip", True, "hangup", [])
    assert report.called == url
    spoken, pressed = report.turns
    assert (spoken.said_text, spoken.pressed_keys, spoken.heard_text) == ("Stop.", None, None)
    assert spoken.voice_to_voice_ms is not None
    assert (pressed.said_text, pressed.pressed_keys) == (None, "12")
    assert int.from_bytes(record.read_bytes()[24:28], "little") == RATE_HZ


def test_the_phone_works_on_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")
    tape, seen = uvloop.run(call(Script(greeting_ms=200)))
    assert tape.end_cause is EndCause.HANGUP
    assert len(voiced_spans(tape.agent, RATE_HZ)) == 1
    assert seen.rtp


async def test_keys_may_interrupt() -> None:
    async with sip_server(Script(greeting_ms=600)) as (url, _):
        options = CallOptions(url, barge_in_after_ms=100.0, barge_in_keys="5", patience=QUICK)
        report = await place_call(options)
    (turn,) = report.turns
    assert turn.pressed_keys == "5"
    assert turn.stop_ms is not None  # this agent goes on to its end
    assert 400 <= turn.stop_ms <= 560


@pytest.mark.parametrize("tcp", [False, True])
async def test_who_vanishes_says_no_goodbye(tcp: bool) -> None:
    async with sip_server(Script(tcp=tcp, greeting_ms=2_000)) as (url, seen):
        steps = (Pause(200), Vanish())
        tape = await place_planned_call(CallPlan(url, steps, rate_hz=RATE_HZ, linger_s=0.2))
        sent_by_then = len(seen.rtp)
        await asyncio.sleep(0.1)
        assert len(seen.rtp) == sent_by_then
    assert (tape.end_cause, tape.problem) == (EndCause.VANISHED, None)
    assert "BYE" not in seen.methods()
    assert len(tape.caller) <= 0.3 * RATE_HZ + 160 * len(tape.skipped_slots)
