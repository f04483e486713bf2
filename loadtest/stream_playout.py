"""A model of a far buffer that plays a stream, a carrier's or that of a phone behind Asterisk: what is heard of it.

Sans-IO: every method takes ``now_s``, seconds on one monotonic clock. Slots of 20 ms lie on a grid from ``origin_s``.
The first audio after the buffer was empty waits :data:`PREBUFFER_MS`, then all plays in the order it came in. A mark is
reached once everything before it was heard; :meth:`StreamPlayout.clear` drops what is queued and reaches all marks at
once (Twilio, Media Streams: "mark" and "clear"). A stream does not say where speech ends: slots without audio are
*late* where the agent's voice broke off and audio came back within :data:`HOLE_MS`.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from loadtest.ear import EARLY_S, Ear, Pcm16, power_of
from loadtest.report import BufferReport

PREBUFFER_MS = 40
"""As for RTP (:mod:`loadtest.rtp_playout`): a phone hears what the carrier plays over a network."""

HOLE_MS = 1_000
"""Silence that is longer, after a voice that broke off, is taken for the end."""


class StreamPlayout(Ear):
    """One call's ear. Audio is mono int16 at ``rate_hz``; ``room_ms`` is how much may be queued, what is more is
    dropped and counted."""

    def __init__(
        self,
        origin_s: float | None = None,
        *,
        rate_hz: int = 8_000,
        slot_ms: int = 20,
        prebuffer_ms: int = PREBUFFER_MS,
        room_ms: int = 600_000,
    ) -> None:
        super().__init__(origin_s, rate_hz, slot_ms)
        self._prebuffer_s = prebuffer_ms / 1000
        self._room_samples = rate_hz * room_ms // 1000
        self._hole_slots = HOLE_MS // slot_ms
        self._queue: deque[tuple[Pcm16, bool] | str] = deque()  # samples and whether there is a voice in them; marks
        self._queued_samples = 0
        self._queued_voices = 0
        self._play_from_s: float | None = None
        self._reached: list[str] = []
        self._inside: list[str] = []  # marks between samples of the slot that is being heard
        self._sounding = False
        self._missed: list[int] = []
        self._broke_off = False
        self._voice_came = False
        self._received_samples = self._most_samples = self._dropped_samples = self._cleared_samples = 0
        self._clears = self._marks = 0

    @property
    def busy(self) -> bool:
        """Speech is queued. Silence is not: many servers send it without end."""
        return self._queued_voices > 0

    def report(self) -> BufferReport:
        def ms(samples: int) -> int:
            return samples * 1000 // self._rate_hz

        return BufferReport(
            received_ms=ms(self._received_samples),
            most_queued_ms=ms(self._most_samples),
            dropped_ms=ms(self._dropped_samples),
            clears=self._clears,
            cleared_ms=ms(self._cleared_samples),
            marks_returned=self._marks,
        )

    def push(self, pcm: Pcm16, now_s: float) -> None:
        """Audio arrived, any length."""
        self.advance(now_s)
        self._received_samples += len(pcm)
        room = self._room_samples - self._queued_samples
        self._dropped_samples += max(0, len(pcm) - room)
        pcm = pcm[:room]
        if len(pcm) == 0:
            return
        if self._queued_samples == 0:
            self._play_from_s = now_s + self._prebuffer_s
        voiced = self.noise.is_voice(power_of(pcm))
        continues = voiced and self._voice_came and now_s - (self._runs_out_s or now_s) <= HOLE_MS / 1000
        self._came(now_s, len(pcm) / self._rate_hz, continues=continues)
        self._voice_came = voiced
        self._queue.append((pcm, voiced))
        self._queued_samples += len(pcm)
        self._queued_voices += voiced
        self._most_samples = max(self._most_samples, self._queued_samples)

    def mark(self, name: str, now_s: float) -> None:
        """A mark arrived: reached at once if nothing is queued or being heard."""
        self.advance(now_s)
        self._queue.append(name)
        if self._queued_samples == 0 and not self._sounding:
            self._reach()

    def clear(self, now_s: float) -> None:
        """Drop what is queued. A voice that is cut so has not broken off."""
        self.advance(now_s)
        self._clears += 1
        self._cleared_samples += self._queued_samples
        names = [entry for entry in self._queue if isinstance(entry, str)]
        self._queue.clear()
        self._queue.extend(names)
        self._queued_samples = self._queued_voices = 0
        self._play_from_s = self._runs_out_s = None
        self._broke_off = self._voice_came = False
        self._missed.clear()
        self._sounding = False
        self._reach()

    def take_reached(self) -> list[str]:
        """The marks reached since this was last asked, in order."""
        if not self._reached:
            return []
        reached, self._reached = self._reached, []
        return reached

    def _play_slot(self, start_s: float) -> None:
        self._reach()  # what stands before the next sample was all heard when this slot begins
        waiting = self._play_from_s is not None and start_s < self._play_from_s - EARLY_S
        if waiting or self._queued_samples == 0:
            if self._broke_off:
                self._missed.append(self.recording.slots)
            self._hear_nothing()
            self._sounding = False
            return
        self._play_from_s = None
        self._sounding = True
        if len(self._missed) <= self._hole_slots:
            self._were_late(self._missed)
        self._missed.clear()
        self._hear(self._take())
        self._broke_off = self._queued_samples == 0 and self.voiced

    def _reach(self) -> None:
        self._reached += self._inside
        self._marks += len(self._inside)
        self._inside.clear()
        while self._queue and isinstance(name := self._queue[0], str):
            self._queue.popleft()
            self._reached.append(name)
            self._marks += 1

    def _take(self) -> Pcm16:
        """Up to one slot of samples off the queue, with the marks between them."""
        parts: list[Pcm16] = []
        wanted = self.slot_samples
        while wanted and self._queued_samples:
            entry = self._queue.popleft()
            if isinstance(entry, str):
                self._inside.append(entry)
                continue
            pcm, voiced = entry
            if len(pcm) > wanted:
                self._queue.appendleft((pcm[wanted:], voiced))
                pcm = pcm[:wanted]
            else:
                self._queued_voices -= voiced
            parts.append(pcm)
            wanted -= len(pcm)
            self._queued_samples -= len(pcm)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
