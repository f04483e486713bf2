"""FreeSWITCH's side of mod_audio_stream, its duplex edition: it plays what comes, and says nothing of it."""

from __future__ import annotations

import json

import numpy as np

from engines.api import Pcm16
from tests.gateway.transports.carriers.fake_carrier import FakeCarrier
from tests.gateway.transports.carriers.links import Link, Message

TOKEN = "freeswitch-stream-token"
CALL = "3a1c4b8e-7d53-4f16-9f6a-0123456789ab"


class FakeFreeswitch(FakeCarrier):
    """``metadata``: of the ``start`` command; None: none was given."""

    def __init__(
        self, link: Link, *, latency_s: float = 0.0, rate_hz: int = 16_000, metadata: dict[str, str] | None = None
    ) -> None:
        super().__init__(link, latency_s=latency_s)
        self.rate_hz = rate_hz
        self.events: list[str] = []
        """What surfaced as ``mod_audio_stream::json``."""
        self._metadata = metadata
        self._rate_known = False

    def begin(self) -> None:
        if self._metadata is not None:
            self.send(json.dumps(self._metadata))

    def media(self, pcm: Pcm16, number: int) -> Message:
        return pcm.astype("<i2").tobytes()

    def press(self, digit: str) -> None:
        """The dialplan does: ``uuid_audio_stream … send_text``."""
        self.send(json.dumps({"event": "dtmf", "digit": digit}))

    def mark_message(self, name: str) -> Message:
        raise AssertionError("there are no marks")

    def understand(self, message: Message) -> None:
        if isinstance(message, bytes):
            assert self._rate_known, "the rate comes first"
            assert len(message) % 2 == 0
            self.play(np.frombuffer(message, "<i2"))
            return
        said = json.loads(message)
        if said["type"] == "rawAudio":
            assert said["data"] == {"sampleRate": self.rate_hz}
            self._rate_known = True
        else:
            self.events.append(said["type"])
