"""Plivo's side of a bidirectional audio stream, as its documents have it: no checkpoint is answered that a clear
dropped, and no stop is sent."""

from __future__ import annotations

import base64
import itertools
import json
from typing import Any

from engines.api import Pcm16
from gateway.transports.carriers.signatures import plivo_signature
from streaming.audio.g711 import decode_mulaw, encode_mulaw
from tests.gateway.transports.carriers.fake_carrier import FakeCarrier
from tests.gateway.transports.carriers.links import HOST, Link, Message

AUTH_ID = "MAXXXXXXXXXXXXXXXXXX"
TOKEN = "plivo-auth-token-of-forty-characters-long"
CALL = "12345678-1234-1234-1234-123456789abc"
STREAM = "87654321-4321-4321-4321-cba987654321"
_nonces = itertools.count(1)


def signed(
    path: str, form: dict[str, str], *, method: str = "POST", nonce: str | None = None, token: str = TOKEN
) -> dict[str, str]:
    nonce = nonce or f"3141592653589793{next(_nonces)}"
    signature = plivo_signature(token, method, f"https://{HOST}{path}", nonce, form.items())
    return {"X-Plivo-Signature-V3": f"c29tZSBvdGhlciBvbmU=,{signature}", "X-Plivo-Signature-V3-Nonce": nonce}


class FakePlivo(FakeCarrier):
    marks_return_on_clear = False

    def __init__(self, link: Link, *, told: dict[str, str] | None = None, latency_s: float = 0.0) -> None:
        super().__init__(link, latency_s=latency_s)
        self.dtmf: list[str] = []
        self._told = told or {}
        self._number = 0

    def begin(self) -> None:
        self.event(
            "start",
            start={
                "callId": CALL,
                "streamId": STREAM,
                "accountId": AUTH_ID,
                "tracks": ["inbound"],
                "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000},
            },
            extra_headers=";".join(f"{name}={value}" for name, value in self._told.items()),
        )

    def event(self, event: str, **fields: Any) -> None:
        self.send(self._message(event, **fields))

    def _message(self, event: str, **fields: Any) -> str:
        self._number += 1
        return json.dumps({"event": event, "sequenceNumber": self._number, **fields})

    def media(self, pcm: Pcm16, number: int) -> Message:
        payload = base64.b64encode(encode_mulaw(pcm)).decode()
        at = str(1_705_312_200_000 + number * 20 + number % 7 * 13)  # a wall clock, which wobbles
        return self._message(
            "media",
            streamId=STREAM,
            media={"track": "inbound", "timestamp": at, "chunk": number + 1, "payload": payload},
        )

    def press(self, digit: str) -> None:
        self.event("dtmf", streamId=STREAM, dtmf={"track": "inbound", "digit": digit, "timestamp": "1705312200000"})

    def mark_message(self, name: str) -> Message:
        return self._message("playedStream", streamId=STREAM, name=name)

    def cleared_message(self) -> Message:
        return self._message("clearedAudio", streamId=STREAM)

    def understand(self, message: Message) -> None:
        assert isinstance(message, str)
        said = json.loads(message)
        match said["event"]:
            case "playAudio":
                assert set(said) == {"event", "media"}
                media = said["media"]
                assert (media["contentType"], media["sampleRate"]) == ("audio/x-mulaw", 8000)
                audio = base64.b64decode(media["payload"], validate=True)
                assert audio, "no audio"
                self.play(decode_mulaw(audio))
            case "checkpoint":
                assert set(said) == {"event", "streamId", "name"}
                assert said["streamId"] == STREAM
                self.mark(said["name"])
            case "clearAudio":
                assert said == {"event": "clearAudio", "streamId": STREAM}
                self.clear()
            case "sendDTMF":
                assert set(said) == {"event", "dtmf"}
                self.dtmf.append(said["dtmf"])
            case other:
                raise AssertionError(f"{other} is no event of Plivo's")
