"""jambonz's side of a ``listen`` verb with streamed audio, as its media server has it (``mod_audio_fork``).

What comes is kept until there are 160 ms of it (at 8 kHz), then until there are 80 ms. A mark lies before the audio
that comes after it; one with nothing after it is told when nothing plays. A sample of -1 is taken for a mark while
there are any, of which there are at most 30. ``killAudio`` drops what plays, not what is kept; marks are
told as cleared.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time

import numpy as np

from engines.api import Pcm16
from tests.gateway.transports.carriers.fake_carrier import FakeCarrier
from tests.gateway.transports.carriers.links import Link, Message

SECRET = "jambonz-webhook-secret"
CALL = "65697994-594b-44c7-af2f-0123456789ab"
ACCOUNT = "7a2cf321-f738-4b70-94d6-0123456789ab"
MAX_MARKS = 30
FIRST_SAMPLES, MORE_SAMPLES = 1_280, 640


def signed(body: bytes, *, at: float | None = None, secret: str = SECRET) -> dict[str, str]:
    stamp = str(int(time.time() if at is None else at))
    digest = hmac.new(secret.encode(), stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    return {"Jambonz-Signature": f"t={stamp},v1={digest}", "Content-Type": "application/json"}


class FakeJambonz(FakeCarrier):
    """``stuck_ms``: kept, and not played yet."""

    def __init__(self, link: Link, *, latency_s: float = 0.0, call: str = CALL) -> None:
        super().__init__(link, latency_s=latency_s)
        self.disconnected = False
        self._call = call
        self._kept: list[Pcm16 | str] = []
        self._least = FIRST_SAMPLES
        self._inventory: list[str] = []
        self._in_use: list[str] = []

    @property
    def stuck_ms(self) -> float:
        return sum(len(one) for one in self._kept if not isinstance(one, str)) * 1000 / self.rate_hz

    def begin(self) -> None:
        told = {"callSid": self._call, "direction": "inbound", "from": "+15550001", "to": "+15550002"}
        self.send(json.dumps(told | {"callId": "ee1", "sampleRate": self.rate_hz, "mixType": "mono", "agent": "anna"}))

    def media(self, pcm: Pcm16, number: int) -> Message:
        return pcm.astype("<i2").tobytes()

    def press(self, digit: str) -> None:
        self.send(json.dumps({"event": "dtmf", "dtmf": digit, "duration": "1600"}))

    def mark_message(self, name: str) -> Message:
        self._in_use.remove(name)
        return self._told(name, "playout")

    def _told(self, name: str, event: str) -> Message:
        return json.dumps({"type": "mark", "data": {"name": name, "event": event}})

    def understand(self, message: Message) -> None:
        if isinstance(message, bytes):
            self._take(np.frombuffer(message, "<i2"))
            return
        said = json.loads(message)
        match said["type"]:
            case "mark":
                assert len(self._inventory) + len(self._in_use) < MAX_MARKS, "too many marks"
                self._inventory.append(said["data"]["name"])
                self._loop.call_later(0.02, self._idle)
            case "killAudio":
                self._kill()
            case "disconnect":
                self.disconnected = True
            case other:
                raise AssertionError(f"{other} is no message of jambonz's")

    def _take(self, pcm: Pcm16) -> None:
        assert not (pcm == -1).any(), "a sample that is taken for a mark"
        self._kept += [*self._inventory, pcm]
        self._in_use += self._inventory
        self._inventory = []
        if sum(len(one) for one in self._kept if not isinstance(one, str)) < self._least:
            return
        self._least = MORE_SAMPLES
        kept, self._kept = self._kept, []
        for one in kept:
            if isinstance(one, str):
                self._buffer.append(one)
            else:
                self.play(one)

    def _idle(self) -> None:
        """A mark with nothing behind it."""
        if self._playing is None and not self._buffer and self._inventory:
            self.send(self._told(self._inventory.pop(0), "playout"))
        if self._inventory:
            self._loop.call_later(0.02, self._idle)

    def _kill(self) -> None:
        self.cleared_at.append(self._loop.time())
        self._buffer.clear()
        for name in [*self._in_use, *self._inventory]:
            self.send(self._told(name, "cleared"))
        self._in_use, self._inventory = [], []
        self._kept = [one for one in self._kept if not isinstance(one, str)]
