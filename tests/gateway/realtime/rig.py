"""A protocol with counted ids and a fixed clock, every event of which is held against the openai package's types."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pydantic
from openai.types.realtime import RealtimeServerEvent
from openai.types.realtime.realtime_session_create_response import RealtimeSessionCreateResponse

from gateway.realtime.protocol import Inbound, RealtimeProtocol
from gateway.realtime.session_object import SessionDefaults
from streaming.config import SessionConfig
from streaming.notices import Notice

SERVER_EVENT: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(RealtimeServerEvent)

PLAIN = SessionDefaults(config=SessionConfig(instructions="Be brief."), voices=("amy", "joe"), languages=("en", "de"))
NOW_S = 1_700_000_000.5

Event = dict[str, Any]


class Rig:
    def __init__(self, defaults: SessionDefaults = PLAIN, *, opened: bool = True, media: bool = False) -> None:
        counter = itertools.count(1)
        self.counted: list[str] = []
        self.protocol = RealtimeProtocol(
            call_id="call_1",
            model="offhook",
            defaults=defaults,
            new_id=lambda kind: f"{kind}_{next(counter)}",
            now_s=lambda: NOW_S,
            count=self.counted.append,
            media=media,
        )
        if opened:
            self.protocol.open()
            self.take()

    def take(self) -> list[Event]:
        texts = self.protocol.take()
        for text in texts:
            hold_against_openai_types(text)
        return [json.loads(text) for text in texts]

    def receive(self, event: object) -> tuple[list[Inbound], list[Event]]:
        inbound = self.protocol.receive(event if isinstance(event, str) else json.dumps(event))
        return inbound, self.take()

    def do(self, event: object) -> list[Inbound]:
        """An event that must be accepted without an answer."""
        inbound, events = self.receive(event)
        assert events == []
        return inbound

    def refuse(self, event: object) -> Event:
        """An event that must be refused: the body of its one ``error``."""
        inbound, events = self.receive(event)
        assert inbound == []
        assert [event["type"] for event in events] == ["error"]
        body: Event = events[0]["error"]
        assert body["type"] == "invalid_request_error"
        return body

    def update(self, **session: Any) -> Event:
        """The session echoed by an update that must be accepted."""
        inbound, events = self.receive({"type": "session.update", "session": {"type": "realtime", **session}})
        assert [event["type"] for event in events] == ["session.updated"]
        assert len(inbound) == 1
        echo: Event = events[0]["session"]
        return echo

    def refuse_update(self, **session: Any) -> tuple[str, str]:
        """Code and param of an update that must be refused, after which nothing has changed."""
        before = self.update()
        update = {"type": "session.update", "event_id": "evt_c", "session": {"type": "realtime", **session}}
        body = self.refuse(update)
        assert body["event_id"] == "evt_c"
        assert self.update() == before
        return body["code"], body["param"]

    def encode(self, *notices: Notice) -> list[Event]:
        for notice in notices:
            self.protocol.encode(notice)
        return self.take()


def hold_against_openai_types(text: str) -> None:
    """Required fields are there, values have their types, and no field is one that the package does not know, but for
    our extensions."""
    event = json.loads(text)
    if event["type"].startswith("offhook."):
        return
    if event["type"] == "conversation.item.truncated":
        event.pop("transcript", None)
    if event["type"] == "input_audio_buffer.dtmf_event_received":
        del event["event_id"]  # every event has one here; the package knows none in this one
    if event["type"] in ("session.created", "session.updated"):
        event["session"]["include"] = [name for name in event["session"]["include"] if name != "offhook"]
    _no_extras(SERVER_EVENT.validate_python(event))


def _no_extras(value: object) -> None:
    if isinstance(value, list):
        for item in value:
            _no_extras(item)
    elif isinstance(value, pydantic.BaseModel):
        if set(value.model_extra or ()) >= {"id", "expires_at"}:
            # The event is typed with the request's session; what a server sends is the response's.
            value = RealtimeSessionCreateResponse.model_validate(value.model_dump(exclude_unset=True))
        assert not value.model_extra, (type(value).__name__, value.model_extra)
        for name in type(value).model_fields:
            _no_extras(getattr(value, name))
