"""The real session, told to a client: every stream keeps the protocol's order."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import pytest

from gateway.realtime.protocol import RealtimeProtocol
from gateway.realtime.session_object import SessionDefaults
from streaming import events as ev
from streaming.config import BargeIn, SessionConfig, TurnDetection, TurnMode
from streaming.conversation import Item, PartKind
from streaming.notices import Notice
from tests.gateway.realtime.checker import OrderChecker
from tests.gateway.realtime.rig import Event, hold_against_openai_types
from tests.streaming.scene import Scene, Script

LONG = "One two three four five. Six seven eight nine ten. Eleven twelve thirteen fourteen fifteen."


class Wire:
    """A scene whose notices go over the protocol, transcription on."""

    def __init__(
        self,
        config: SessionConfig,
        script: Script | None = None,
        *,
        media: bool = False,
        include: Sequence[str] = (),
    ) -> None:
        ids = itertools.count(1)
        self.protocol = RealtimeProtocol(
            call_id="call_1",
            model="offhook",
            defaults=SessionDefaults(config=config, voices=("amy",), agent=True),
            new_id=lambda kind: f"wire_{kind}_{next(ids)}",
            now_s=lambda: 0.0,
            count=lambda _: None,
            media=media,
        )
        self.protocol.begin_with({"type": "realtime", "include": include})
        self.scene = Scene(self.protocol.config, script or Script())
        self.checker = OrderChecker(
            transport="webrtc" if media else "websocket", onset_cancels=config.turn.barge_in is BargeIn.ONSET
        )
        self.events: list[Event] = []
        self.protocol.open()
        self._send()
        self.scene.on_notice = self._tell

    def _tell(self, notice: Notice) -> None:
        self.protocol.encode(notice)
        self._send()

    def _send(self) -> None:
        for text in self.protocol.take():
            hold_against_openai_types(text)
            event = json.loads(text)
            self.checker.feed(event)
            self.events.append(event)

    def done(self) -> list[tuple[str, str | None]]:
        responses = [event["response"] for event in self.events if event["type"] == "response.done"]
        return [(body["status"], body["status_details"].get("reason")) for body in responses]


@pytest.mark.parametrize("barge_in", list(BargeIn))
def test_turns_and_a_barge_in(barge_in: BargeIn) -> None:
    wire = Wire(SessionConfig(turn=TurnDetection(barge_in=barge_in)), Script(reply=lambda _: LONG))
    wire.scene.say("hello there", wait_ms=2_500)
    wire.scene.say("wait a moment please", ms=1_500, wait_ms=20_000)
    wire.checker.finish()
    first = ("completed", None) if barge_in is BargeIn.IGNORE else ("cancelled", "turn_detected")
    assert wire.done() == [first, ("completed", None)]


def test_noise_is_cleared() -> None:
    wire = Wire(SessionConfig())
    wire.scene.say("", wait_ms=3_000)
    wire.checker.finish()
    kinds = [event["type"].removeprefix("input_audio_buffer.") for event in wire.events[1:]]
    assert kinds == ["speech_started", "speech_stopped", "cleared"]


def test_text_only_after_items_of_the_client() -> None:
    wire = Wire(SessionConfig(audio_output=False))
    wire.scene.feed(ev.CreateItem(Item("mine", "user", PartKind.INPUT_TEXT, "hello")))
    wire.scene.feed(ev.CreateResponse())
    wire.scene.run(2_000)
    wire.scene.feed(ev.RetrieveItem("mine"))
    wire.scene.feed(ev.RetrieveItem("other"))
    wire.scene.feed(ev.DeleteItem("mine"))
    wire.checker.finish()
    assert wire.done() == [("completed", None)]
    assert [event["type"] for event in wire.events[-3:]] == [
        "conversation.item.retrieved",
        "error",
        "conversation.item.deleted",
    ]


def test_push_to_talk() -> None:
    wire = Wire(SessionConfig(turn=TurnDetection(mode=TurnMode.MANUAL)))
    wire.scene.feed(ev.ClearInput(0))
    wire.scene.says = "hello there"
    wire.scene.seen = 16_000
    wire.scene.feed(ev.InputAppended(16_000))
    wire.scene.feed(ev.CommitInput(16_000))
    wire.scene.feed(ev.CreateResponse())
    wire.scene.run(4_000)
    wire.checker.finish()
    assert wire.done() == [("completed", None)]


def test_a_reply_that_the_client_cancels_and_truncates() -> None:
    wire = Wire(SessionConfig(), Script(reply=lambda _: LONG))
    wire.scene.say("hello there", wait_ms=2_500)
    wire.scene.feed(ev.CancelResponse())
    wire.scene.feed(ev.CancelResponse())
    item_id = next(event["item"]["id"] for event in wire.events if event["type"] == "response.output_item.added")
    wire.scene.feed(ev.TruncateItem(item_id, 0, 300))
    wire.checker.finish()
    assert wire.done() == [("cancelled", "client_cancelled")]
    assert [event["type"] for event in wire.events[-2:]] == ["error", "conversation.item.truncated"]


def test_engines_that_fail() -> None:
    wire = Wire(SessionConfig(), Script(stt_fails="stt_failed", partial_after_ms=None))
    wire.scene.say("hello there", wait_ms=3_000)
    wire.checker.finish()
    assert [event["error"]["code"] for event in wire.events if event["type"] == "error"] == ["stt_failed"]
    wire = Wire(SessionConfig(), Script(llm_fails_after=3))
    wire.scene.say("hello there", wait_ms=6_000)
    wire.checker.finish()
    assert wire.done() == [("failed", None)]


def calling(config: SessionConfig, *, locked: bool = False) -> Wire:
    """A turn whose reply presses a key."""
    asked: list[int] = []
    script = Script(
        reply=lambda _: asked.append(1) or "One moment.",  # type: ignore[func-returns-value]
        calls=lambda _: [("send_dtmf", '{"digits":"17"}')] if len(asked) == 1 else [],
    )
    wire = Wire(config, script)
    if locked:
        wire.protocol.lock()
    wire.scene.say("press the keys please", wait_ms=6_000)
    wire.checker.finish()
    return wire


@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("barge_in", list(BargeIn))
def test_the_agent_s_own_tools_are_items_that_no_client_is_asked_to_answer(barge_in: BargeIn, locked: bool) -> None:
    config = SessionConfig(turn=TurnDetection(barge_in=barge_in), tools=("send_dtmf",))
    wire = calling(config, locked=locked)
    items = [event["item"] for event in wire.events if event["type"] == "conversation.item.added"]
    called, result = (item for item in items if item["type"] != "message")
    assert (called["type"], result["type"]) == ("function_call", "function_call_output")
    assert called["name"] == "send_dtmf"
    assert called["call_id"] == result["call_id"]
    said = ("", "") if locked else ('{"digits":"17"}', '{"status":"done"}')
    assert (called["arguments"], result["output"]) == said
    outputs = [event["item"]["type"] for event in wire.events if event["type"] == "response.output_item.done"]
    assert outputs == ["message", "message"], "there a stock client would look for the tool among its own"
    kinds = {event["type"] for event in wire.events}
    assert not any("function_call" in kind for kind in kinds)
    assert wire.done() == [("completed", None)] * 2


def test_a_client_that_wants_no_tools_has_none() -> None:
    wire = Wire(SessionConfig(tools=("send_dtmf",)))
    had = []
    for choice in ("none", "auto", "none", None):
        update = {"type": "session.update", "session": {"type": "realtime", "tool_choice": choice}}
        wire.protocol.receive(json.dumps(update))
        had.append(wire.protocol.config.tools)
    assert had == [(), ("send_dtmf",), (), ()]


def test_one_response_may_be_made_without_tools() -> None:
    wire = Wire(SessionConfig(tools=("send_dtmf",)))
    for choice in ("none", "auto"):
        create = {"type": "response.create", "response": {"tool_choice": choice}}
        for event in wire.protocol.receive(json.dumps(create)):
            assert isinstance(event, ev.CreateResponse)
            wire.scene.feed(event)
        wire.scene.silence(3_000)
    assert [bool(request.tools) for request in wire.scene.generations] == [False, True]
