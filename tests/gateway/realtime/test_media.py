"""Where audio goes beside the events (WebRTC, SIP): what is refused there, and what only it has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.realtime.errors import Rejected
from gateway.realtime.session_object import SessionDefaults
from streaming import events as ev
from streaming import notices as nt
from streaming.config import BargeIn, SessionConfig, TurnDetection, TurnMode
from streaming.turn_times import TurnTimes
from tests.gateway.realtime.rig import NOW_S, PLAIN, Rig
from tests.gateway.realtime.test_session_on_the_wire import LONG, Wire
from tests.streaming.scene import Script

AGENT = TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=300, barge_in=BargeIn.HOLD)
CUT = nt.ItemTruncated("item_a", 0, 420, "Hi")
TIMES = TurnTimes("resp_1", 1, speculative=True, first_sent_ms=432.123)


# --- what differs ---------------------------------------------------------------------------------------------


def test_audio_does_not_come_in_events() -> None:
    body = Rig(media=True).refuse({"type": "input_audio_buffer.append", "audio": "AAAA", "event_id": "e1"})
    assert (body["code"], body["param"], body["event_id"]) == ("not_supported_on_this_transport", "type", "e1")


def test_the_output_buffer_can_be_cleared_where_it_is_ours() -> None:
    clear = {"type": "output_audio_buffer.clear", "event_id": "e1"}
    assert Rig(media=True).do(clear) == [ev.ClearOutput("e1")]
    assert Rig().refuse(clear)["code"] == "not_supported_on_this_transport"


def test_the_session_is_told_whose_the_output_buffer_is() -> None:
    for media in (False, True):
        rig = Rig(media=media)
        assert rig.protocol.config.owns_playout is media
        (told,) = rig.receive({"type": "session.update", "session": {"type": "realtime"}})[0]
        assert isinstance(told, ev.Configure)
        assert told.config.owns_playout is media


@pytest.mark.parametrize("side", ["input", "output"])
def test_the_codec_is_not_the_sessions_to_choose(side: str) -> None:
    rig = Rig(media=True)
    rig.update(audio={side: {"format": {"type": "audio/pcm", "rate": 24_000}}})  # stock clients say so unasked
    refused = rig.refuse_update(audio={side: {"format": {"type": "audio/pcmu"}}})
    assert refused == ("unsupported_audio_format", f"session.audio.{side}.format")


def test_the_voice_is_fixed_once_a_reply_has_sounded() -> None:
    rig = Rig(media=True)
    rig.update(audio={"output": {"voice": "joe"}})
    rig.encode(nt.ResponseCreated(nt.Response("resp_1", "in_progress", True)), nt.PlaybackStarted("resp_1"))
    assert rig.refuse_update(audio={"output": {"voice": "amy"}})[0] == "voice_locked"


@pytest.mark.parametrize(
    ("notice", "name"),
    [(nt.PlaybackStarted, "started"), (nt.PlaybackStopped, "stopped"), (nt.PlaybackCleared, "cleared")],
)
def test_playback_is_told(notice: Any, name: str) -> None:
    (event,) = Rig(media=True).encode(notice("resp_1"))
    assert (event["type"], event["response_id"]) == (f"output_audio_buffer.{name}", "resp_1")


# --- a session that comes with the call -----------------------------------------------------------------------


def test_a_session_that_came_with_the_call_is_there_from_the_first_event() -> None:
    rig = Rig(opened=False)
    rig.protocol.begin_with({"type": "realtime", "instructions": "Be kind.", "audio": {"output": {"voice": "joe"}}})
    assert rig.protocol.take() == []
    assert rig.protocol.config.instructions == "Be kind."
    rig.protocol.open()
    (created,) = rig.take()
    assert created["session"] == json.loads(json.dumps(rig.protocol.show_session()))
    assert created["session"]["audio"]["output"]["voice"] == "joe"


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        ({"type": "realtime", "audio": {"output": {"voice": "nobody"}}}, "unknown_voice", "session.audio.output.voice"),
        ({"type": "realtime", "colour": 1}, "unknown_parameter", "session.colour"),
        ({"instructions": "Be kind."}, "missing_required_parameter", "session.type"),
        (["realtime"], "invalid_type", "session"),
        (None, "invalid_type", "session"),
    ],
)
def test_a_bad_session_that_came_with_the_call_is_refused_by_name(session: object, code: str, param: str) -> None:
    rig = Rig(opened=False)
    with pytest.raises(Rejected) as refused:
        rig.protocol.begin_with(session)
    assert (refused.value.code, refused.value.param) == (code, param)
    assert rig.protocol.take() == []
    assert rig.protocol.config.instructions == PLAIN.config.instructions


# --- extensions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("media", [False, True])
def test_keys_are_taken_one_by_one_and_told_back(media: bool) -> None:
    rig = Rig(media=media)
    assert rig.do({"type": "offhook.dtmf", "digits": "5*#D"}) == [ev.Dtmf(key) for key in "5*#D"]
    (event,) = rig.encode(nt.DtmfReceived("5"))
    assert event["type"] == "input_audio_buffer.dtmf_event_received"
    assert (event["event"], event["received_at"]) == ("5", int(NOW_S))


@pytest.mark.parametrize("digits", ["", "1" * 33, "12e4", "5\n", "d", " 5", 5, None])
def test_what_is_no_key_is_refused_and_not_quoted(digits: object) -> None:
    body = Rig().refuse({"type": "offhook.dtmf", "digits": digits, "event_id": "e1"})
    assert (body["code"], body["param"], body["event_id"]) == ("invalid_event", "digits", "e1")
    assert "12e4" not in body["message"]


def test_turn_times_and_heard_words_go_to_who_asked_for_them() -> None:
    rig = Rig(media=True)
    (cut,) = rig.encode(nt.TurnRecorded(TIMES), CUT)
    assert "transcript" not in cut
    assert rig.update(include=["offhook"])["include"] == ["offhook"]
    turn, cut = rig.encode(nt.TurnRecorded(TIMES), CUT)
    assert turn["type"] == "offhook.turn"
    assert turn["turn"]["response_id"] == "resp_1"
    assert turn["turn"]["first_sent_ms"] == 432.1
    assert turn["turn"]["final_ms"] is None
    assert (cut["type"], cut["transcript"]) == ("conversation.item.truncated", "Hi")
    (ended,) = rig.encode(nt.CallEnded("server_drain"))
    assert (ended["type"], ended["cause"]) == ("offhook.call_ended", "server_drain")
    rig.update(include=None)
    assert rig.encode(nt.TurnRecorded(TIMES), nt.CallEnded("server_drain")) == []


# --- the real session -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", [TurnDetection(), AGENT], ids=["plain", "agent"])
def test_turns_keys_and_a_barge_in(turn: TurnDetection) -> None:
    wire = Wire(SessionConfig(turn=turn), Script(lead_ms=40, reply=lambda _: LONG), media=True, include=["offhook"])
    wire.scene.say("hello there", wait_ms=2_500)
    wire.scene.say("wait a moment please", ms=1_500, wait_ms=3_000)
    for key in "12#":
        wire.scene.feed(ev.Dtmf(key))
    wire.scene.silence(9_000)
    wire.checker.finish()
    assert wire.done() == [("cancelled", "turn_detected")] * 2 + [("completed", None)]
    buffers = [event["type"].rpartition(".")[2] for event in wire.events if event["type"].startswith("output_audio_b")]
    assert buffers == ["started", "cleared", "started", "cleared", "started", "stopped"]
    cuts = [event for event in wire.events if event["type"] == "conversation.item.truncated"]
    assert [LONG.startswith(cut["transcript"]) and cut["transcript"] != LONG for cut in cuts] == [True, True]
    kept = [text for role, text in wire.scene.texts if role == "assistant"]
    assert kept[:2] == [cut["transcript"] for cut in cuts]


def test_a_stock_clients_interruption() -> None:
    wire = Wire(SessionConfig(), Script(lead_ms=40, reply=lambda _: LONG), media=True)
    wire.scene.say("hello there", wait_ms=2_500)
    wire.scene.feed(ev.CancelResponse())
    wire.scene.feed(ev.ClearOutput())
    wire.checker.finish()
    assert wire.done() == [("cancelled", "client_cancelled")]


def test_defaults_without_an_agent_have_no_extensions() -> None:
    rig = Rig(SessionDefaults(config=SessionConfig(), voices=("amy",)), opened=False)
    rig.protocol.open()
    assert rig.take()[0]["session"]["include"] == []
