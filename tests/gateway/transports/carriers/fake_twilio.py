"""Twilio's side of a bidirectional Media Stream, as its documents have it."""

from __future__ import annotations

import base64
import json
from typing import Any

from engines.api import Pcm16
from gateway.transports.carriers.signatures import twilio_signature
from streaming.audio.g711 import decode_mulaw, encode_mulaw
from tests.gateway.transports.carriers.fake_carrier import FakeCarrier
from tests.gateway.transports.carriers.links import HOST, Link, Message

ACCOUNT = "AC" + "0a" * 16
CALL = "CA" + "1b" * 16
STREAM = "MZ" + "2c" * 16
TOKEN = "0123456789abcdef0123456789abcdef"


def signed(path: str, form: dict[str, str] | None = None, *, token: str = TOKEN, scheme: str = "wss") -> dict[str, str]:
    """The header of an upgrade, or of a webhook (``scheme`` https)."""
    url = f"{scheme}://{HOST}{path}"
    return {"X-Twilio-Signature": twilio_signature(token, url, (form or {}).items())}


class FakeTwilio(FakeCarrier):
    """``told``: the ``<Parameter>`` elements of the stream."""

    def __init__(self, link: Link, *, told: dict[str, str] | None = None, latency_s: float = 0.0) -> None:
        super().__init__(link, latency_s=latency_s)
        self._told = told or {}
        self._number = 0
        self.marks: list[str] = []

    def begin(self) -> None:
        self.send(json.dumps({"event": "connected", "protocol": "Call", "version": "1.0.0"}))
        self.event(
            "start",
            start={
                "accountSid": ACCOUNT,
                "callSid": CALL,
                "streamSid": STREAM,
                "tracks": ["inbound"],
                "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
                "customParameters": self._told,
            },
        )

    def event(self, event: str, **fields: Any) -> None:
        self.send(self._message(event, **fields))

    def _message(self, event: str, **fields: Any) -> str:
        self._number += 1
        return json.dumps({"event": event, "sequenceNumber": str(self._number), "streamSid": STREAM, **fields})

    def media(self, pcm: Pcm16, number: int) -> Message:
        payload = base64.b64encode(encode_mulaw(pcm)).decode()
        return self._message(
            "media",
            media={"track": "inbound", "chunk": str(number + 1), "timestamp": str(number * 20), "payload": payload},
        )

    def press(self, digit: str) -> None:
        self.event("dtmf", dtmf={"track": "inbound_track", "digit": digit})

    def stop(self) -> None:
        self.event("stop", stop={"accountSid": ACCOUNT, "callSid": CALL})

    def mark_message(self, name: str) -> Message:
        return self._message("mark", mark={"name": name})

    def understand(self, message: Message) -> None:
        assert isinstance(message, str), "Twilio takes text only"
        said = json.loads(message)
        assert said["streamSid"] == STREAM
        match said["event"]:
            case "media":
                assert set(said) == {"event", "streamSid", "media"}
                assert set(said["media"]) == {"payload"}
                audio = base64.b64decode(said["media"]["payload"], validate=True)
                assert audio, "no audio"
                self.play(decode_mulaw(audio))
            case "mark":
                assert set(said) == {"event", "streamSid", "mark"}
                name = said["mark"]["name"]
                assert isinstance(name, str)
                assert name
                assert name not in self.marks, "marks are told apart by their names"
                self.marks.append(name)
                self.mark(name)
            case "clear":
                assert set(said) == {"event", "streamSid"}
                self.clear()
            case other:
                raise AssertionError(f"{other} is no event of Twilio's")
