"""Vonage's side of a WebSocket call, as its documents have it: binary frames of exactly 20 ms, text for the rest."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from typing import Any

import jwt
import numpy as np

from engines.api import Pcm16
from tests.gateway.transports.carriers.fake_carrier import FakeCarrier
from tests.gateway.transports.carriers.links import Link, Message

SECRET = "vonage-signature-secret-of-32-bytes"
CALL = "aaaaaaaa-bbbb-cccc-dddd-0123456789ab"
APPLICATION = "78d335fa-323d-0114-9c3d-d6f0d48968cf"
MAX_PACKETS = 3_072
_ids = itertools.count(1)


def token(body: bytes = b"", *, secret: str = SECRET, **changes: Any) -> str:
    now = int(time.time())
    claims = {"iss": "Vonage", "iat": now, "exp": now + 300, "jti": f"jti-{next(_ids)}", "api_key": "abcd1234"}
    claims["application_id"] = APPLICATION
    if body:
        claims["payload_hash"] = hashlib.sha256(body).hexdigest()
    claims |= changes
    return jwt.encode({name: value for name, value in claims.items() if value is not None}, secret, algorithm="HS256")


def signed(body: bytes = b"", **changes: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(body, **changes)}", "Content-Type": "application/json"}


class FakeVonage(FakeCarrier):
    """``clear`` drops the notifications that wait, and is told with ``websocket:cleared``."""

    marks_return_on_clear = False

    def __init__(self, link: Link, *, latency_s: float = 0.0, rate_hz: int = 8_000, call: str = CALL) -> None:
        super().__init__(link, latency_s=latency_s)
        self.rate_hz = rate_hz
        self._call = call

    def begin(self) -> None:
        connected = {"event": "websocket:connected", "content-type": f"audio/l16;rate={self.rate_hz}"}
        self.send(json.dumps(connected | {"uuid": self._call, "from": "+15550001", "to": "+15550002"}))

    def media(self, pcm: Pcm16, number: int) -> Message:
        return pcm.astype("<i2").tobytes()

    def press(self, digit: str) -> None:
        self.send(json.dumps({"event": "websocket:dtmf", "digit": digit, "duration": 260}))

    def mark_message(self, name: str) -> Message:
        return json.dumps({"event": "websocket:notify", "payload": json.loads(name)})

    def cleared_message(self) -> Message | None:
        return json.dumps({"event": "websocket:cleared"})

    def understand(self, message: Message) -> None:
        if isinstance(message, bytes):
            assert len(message) == self.rate_hz // 25, "20 ms a message"
            assert len(self._buffer) < MAX_PACKETS, "the buffer is full"
            self.play(np.frombuffer(message, "<i2"))
            return
        said = json.loads(message)
        match said["action"]:
            case "notify":
                assert isinstance(said["payload"], dict)
                self.mark(json.dumps(said["payload"]))
            case "clear":
                assert set(said) == {"action"}
                self.clear()
            case other:
                raise AssertionError(f"{other} is no action of Vonage's")
