"""Telnyx's side of a bidirectional media stream in RTP mode, as its documents have it."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from engines.api import Pcm16
from streaming.audio.g711 import decode_mulaw, encode_mulaw
from tests.gateway.transports.carriers.fake_carrier import FakeCarrier
from tests.gateway.transports.carriers.links import Link, Message

PRIVATE_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC_KEY = base64.b64encode(PRIVATE_KEY.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()
CALL = "v3:KBnLO0ZK3DhKM5s7bE9VluaSmKsOchKht_fUYvxcp8ysbmzCCtpkmA"
STREAM = "32DE0DEA-53CB-4B21-89A4-9E1819C043BC"


def signed(body: bytes, *, at: float | None = None, key: Ed25519PrivateKey = PRIVATE_KEY) -> dict[str, str]:
    timestamp = str(int(time.time() if at is None else at))
    signature = base64.b64encode(key.sign(timestamp.encode() + b"|" + body)).decode()
    return {"telnyx-signature-ed25519": signature, "telnyx-timestamp": timestamp}


class FakeTelnyx(FakeCarrier):
    """``swaps``: every fourth chunk comes after the one that follows it."""

    def __init__(self, link: Link, *, told: dict[str, str] | None = None, latency_s: float = 0.0) -> None:
        super().__init__(link, latency_s=latency_s)
        self.swaps = False
        self._told = told or {}
        self._number = 0
        self._kept: Message | None = None

    def begin(self) -> None:
        self.send(json.dumps({"event": "connected", "version": "1.0.0"}))
        self.event(
            "start",
            start={
                "user_id": "3E6F995F-85F7-4705-9741-53B116D28237",
                "call_control_id": CALL,
                "call_session_id": "ff55a038-6f5d-11ef-9692-02420aeffb1f",
                "from": "+15550001",
                "to": "+15550002",
                "client_state": "aGF2ZSBhIG5pY2UgZGF5ID1d",
                "custom_parameters": self._told,
                "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1},
            },
        )

    def event(self, event: str, **fields: Any) -> None:
        self.send(self._message(event, **fields))

    def _message(self, event: str, **fields: Any) -> str:
        self._number += 1
        return json.dumps({"event": event, "sequence_number": str(self._number), "stream_id": STREAM, **fields})

    def media(self, pcm: Pcm16, number: int) -> Message:
        payload = base64.b64encode(encode_mulaw(pcm)).decode()
        return self._message(
            "media",
            media={"track": "inbound", "chunk": str(number + 1), "timestamp": str(number * 20), "payload": payload},
        )

    def send(self, message: Message) -> None:
        if self.swaps and self._kept is None and self._sent % 4 == 3 and '"media"' in str(message):
            self._kept = message
            return
        super().send(message)
        if self._kept is not None:
            kept, self._kept = self._kept, None
            super().send(kept)

    def press(self, digit: str) -> None:
        self.event("dtmf", occurred_at="2026-01-01T00:00:00Z", dtmf={"digit": digit})

    def stop(self) -> None:
        self.event("stop", stop={"user_id": "3E6F995F-85F7-4705-9741-53B116D28237", "call_control_id": CALL})

    def mark_message(self, name: str) -> Message:
        return self._message("mark", mark={"name": name})

    def understand(self, message: Message) -> None:
        assert isinstance(message, str)
        said = json.loads(message)
        match said["event"]:
            case "media":
                assert set(said) == {"event", "media"}
                assert set(said["media"]) == {"payload"}
                audio = base64.b64decode(said["media"]["payload"], validate=True)
                assert 160 <= len(audio) <= 240_000, "20 ms to 30 s"
                self.play(decode_mulaw(audio))
            case "mark":
                assert set(said) == {"event", "mark"}
                assert isinstance(said["mark"]["name"], str)
                self.mark(said["mark"]["name"])
            case "clear":
                assert set(said) == {"event"}
                self.clear()
            case other:
                raise AssertionError(f"{other} is no event of Telnyx's")
