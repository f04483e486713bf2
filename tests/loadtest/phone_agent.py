"""The agent of a scripted phone server: it hears by energy, and answers with tones.

100 ms of sound begins an utterance, 200 ms of silence end it. A reply is a 300 Hz tone in frames of 20 ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from loadtest.call import Pcm16

RATE_HZ = 8_000
FRAME = RATE_HZ // 50


def tone(ms: int, rate_hz: int = RATE_HZ) -> Pcm16:
    wave = 6_000 * np.sin(2 * np.pi * 300 * np.arange(rate_hz * ms // 1000) / rate_hz)
    return wave.astype(np.int16)


class ScriptedAgent:
    """``replies``: lengths in ms, one an utterance; None stays silent. ``frames`` is what is still to be sent."""

    def __init__(
        self, replies: Sequence[int | None] = (400,), greeting_ms: int | None = None, rate_hz: int = RATE_HZ
    ) -> None:
        self.rate_hz = rate_hz
        self.frames: deque[Pcm16] = deque()
        self.utterances = 0
        self._replies = replies
        self._loud_ms = self._quiet_ms = 0.0
        self._speaking = False
        if greeting_ms is not None:
            self.say(greeting_ms)

    def say(self, ms: int) -> None:
        samples = self.rate_hz // 50
        self.frames.extend(tone(ms, self.rate_hz).reshape(-1, samples))

    def hear(self, pcm: Pcm16) -> str | None:
        """``started`` when an utterance begins, ``answered`` when it is over and its reply (if any) is ready."""
        ms = len(pcm) * 1000 / self.rate_hz
        loud = float(np.abs(pcm.astype(np.float64)).mean()) > 100
        self._loud_ms = self._loud_ms + ms if loud else 0
        self._quiet_ms = 0 if loud else self._quiet_ms + ms
        if not self._speaking and self._loud_ms >= 100:
            self._speaking = True
            self.frames.clear()
            return "started"
        if self._speaking and self._quiet_ms >= 200:
            self._speaking = False
            length = self._replies[self.utterances] if self.utterances < len(self._replies) else None
            self.utterances += 1
            if length is not None:
                self.say(length)
            return "answered"
        return None
