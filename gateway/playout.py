"""The audio of a call's replies on its way to the leg: one pacer an epoch, and the ticks that empty the open one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from engines.api import Pcm16
from streaming.audio.resample import Resampler
from streaming.jobs import SynthesisChunk
from streaming.pacing import KEEP_MS, MARK_OVERDUE_S, Pacer

FRAME_MS = 20

MARK_EVERY_MS = 200

TOGETHER_OF_LEAD = 5
"""Frames that make up a fifth of the lead go together, once the far end has the rest of it: where it buffers 300 ms,
three every 60 ms cost less than one every 20 ms, and are heard no later."""

MAX_MARKS_KNOWN = 256
"""Marks whose names are known, when they come back."""

MAX_UNANSWERED = 25
"""A far end that has returned none of so many marks, 5 s of speech, does not return any: it is sent no more."""


class Sink(Protocol):
    """What a leg is to its playout."""

    lead_ms: int

    @property
    def congested(self) -> bool: ...

    def play(self, response_id: str, item_id: str, pcm: Pcm16) -> None: ...


@dataclass(frozen=True, slots=True)
class Wire:
    """What a leg's wire wants beside frames. ``whole_frames``: none is short. ``mark`` puts one after the audio so far;
    the far end returns it once it has played that."""

    whole_frames: bool = False
    mark: Callable[[str], None] | None = None
    clocked: bool = False
    """The leg has a clock of its own, which knows how late a frame leaves."""


def _unmeasured(late_s: float, frames: int, ahead_s: float) -> None:
    """Nobody asks."""


@dataclass(slots=True)
class _Track:
    """One epoch's audio. A dead epoch has none, so a late producer has nowhere to put its chunk."""

    pacer: Pacer
    rate_hz: int
    resampler: Resampler | None = None
    marked_samples: int = 0
    """Where its last mark is."""


class Playout:
    """``sent(epoch, position_samples)`` is called after the frames the leg took at once, ``marked(epoch, mark,
    position_samples)`` before that when a mark followed the last of them. ``left(late_s, frames, ahead_s)`` is told of
    frames that left together, so long after they were due, and how far ahead they are sent: of what this process did,
    not of a far end that takes nothing."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sink: Sink,
        sent: Callable[[int, int], None],
        *,
        marked: Callable[[int, int, int], None],
        wire: Wire | None = None,
        left: Callable[[float, int, float], None] = _unmeasured,
    ) -> None:
        self._loop = loop
        self._sink = sink
        self._sent = sent
        self._marked = marked
        self._wire = wire or Wire()
        self._left = _unmeasured if self._wire.clocked else left
        self._marks: dict[str, tuple[int, int]] = {}
        """Their epochs and numbers by name, the oldest first."""
        self._numbers = itertools.count(1)
        self._unanswered = 0
        self._tracks: dict[int, _Track] = {}
        self._open: tuple[int, str, str] | None = None
        self._sounding: int | None = None
        """The epoch whose frames left last: the far end may still have some of it to play."""
        self._held: int | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._due = 0.0
        """When the tick is to come, or should have come."""
        self._together = max(1, sink.lead_ms // (TOGETHER_OF_LEAD * FRAME_MS))

    def expect(self, epoch: int, rate_hz: int) -> None:
        """Audio of this epoch will come, to be played at this rate."""
        if epoch not in self._tracks:
            keep_ms = KEEP_MS + (round(MARK_OVERDUE_S * 1000) if self._wire.mark is not None else 0)
            pacer = Pacer(
                rate_hz,
                frame_ms=FRAME_MS,
                lead_ms=self._sink.lead_ms,
                keep_ms=keep_ms,
                whole_frames=self._wire.whole_frames,
            )
            self._tracks[epoch] = _Track(pacer, rate_hz)

    def append(self, chunk: SynthesisChunk) -> int | None:
        """Queue a chunk. Returns its samples at the output rate, None if its epoch is dead. Raises
        :class:`ValueError` for half a sample, or a rate that is none."""
        track = self._tracks.get(chunk.epoch)
        if track is None:
            return None
        pcm = np.frombuffer(chunk.pcm, "<i2").astype(np.int16, copy=False)
        if track.resampler is None:
            track.resampler = Resampler(chunk.rate_hz, track.rate_hz)
        pcm = track.resampler.process(pcm)
        if chunk.last:
            pcm = np.concatenate((pcm, track.resampler.flush()))
            track.resampler = None
        track.pacer.append(pcm, last=chunk.last)
        if track.pacer.at_segment_end and self._sounding == chunk.epoch != self._held:
            self._mark(chunk.epoch, track)  # the frame that turned out to be the last has left already
        self.wake()
        return len(pcm)

    def pending_s(self, epoch: int) -> float:
        """Speech of this epoch that is still to be sent."""
        track = self._tracks.get(epoch)
        return track.pacer.pending_samples / track.rate_hz if track is not None else 0.0

    def open(self, epoch: int, response_id: str, item_id: str) -> None:
        """This epoch is the one that is heard now."""
        self._open = (epoch, response_id, item_id)
        self.wake()

    def hold(self, epoch: int, heard_samples: int) -> None:
        """Play nothing of this epoch, even what is yet to come."""
        self._held = epoch
        track = self._tracks.get(epoch)
        if track is not None:
            track.pacer.hold(heard_samples)
        self._stop()

    def release(self, epoch: int) -> int | None:
        """Go on; returns from where, None if there is nothing of this epoch yet."""
        self._held = None
        track = self._tracks.get(epoch)
        if track is None:
            return None
        position = track.marked_samples = track.pacer.release()
        self.wake()
        return position

    def end(self, epoch: int) -> None:
        """All of the epoch's audio was sent."""
        self._tracks.pop(epoch, None)
        if self._open is not None and self._open[0] == epoch:
            self._open = self._held = None
            self._stop()

    def drop(self, epoch: int) -> bool:
        """Nothing more of this epoch may be heard. Returns whether the far end may have some of it."""
        self.end(epoch)
        sounding = self._sounding == epoch
        if sounding:
            self._sounding = None
        return sounding

    def close(self) -> None:
        self._tracks.clear()
        self._open = self._sounding = self._held = None
        self._stop()

    def wake(self) -> None:
        """Something changed: look when the next frame is due."""
        now = self._loop.time()
        was_due = self._due if self._tick is not None and self._due < now else now
        self._stop()
        if self._open is None or self._open[0] == self._held or self._sink.congested:
            return
        track = self._tracks.get(self._open[0])
        due = track.pacer.next_at(now, self._together) if track is not None else None
        if due is not None:
            self._due = min(due, was_due) if due <= now else due  # what is late stays so, whatever else wakes it
            self._tick = self._loop.call_at(due, self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        try:
            while self._open is not None and self._open[0] != self._held and not self._sink.congested:
                if not self._send_due(*self._open):
                    break
        finally:
            self.wake()  # a frame that was lost to a defect does not silence the rest

    def _send_due(self, epoch: int, response_id: str, item_id: str) -> bool:
        """What may go now, up to a mark or the lead. Returns whether that was a mark: then there may be more."""
        track = self._tracks.get(epoch)
        if track is None:
            return False
        pacer, now = track.pacer, self._loop.time()
        mark_at = track.marked_samples + track.rate_hz * MARK_EVERY_MS // 1000
        marking = self._wire.mark is not None and self._unanswered < MAX_UNANSWERED
        frames, marks = 0, False
        while not marks and not self._sink.congested and (frame := pacer.take(now)) is not None:
            frames, self._sounding = frames + 1, epoch
            self._sink.play(response_id, item_id, frame)
            marks = marking and (pacer.at_segment_end or pacer.position_samples >= mark_at)
        if marks:
            self._mark(epoch, track)
        if frames:
            self._left(max(0.0, now - self._due), frames, self._sink.lead_ms / 1000)
            self._sent(epoch, pacer.position_samples)
        return marks

    def mark_returned(self, name: str) -> tuple[int, int] | None:
        """Which mark of which epoch came back, each once; None: no such mark is known."""
        known = self._marks.pop(name, None)
        if known is not None:
            self._unanswered = 0
        return known

    def _mark(self, epoch: int, track: _Track) -> None:
        position = track.pacer.position_samples
        if self._wire.mark is None or position == track.marked_samples or self._unanswered >= MAX_UNANSWERED:
            return
        track.marked_samples = position
        number = next(self._numbers)
        name = f"m{number}"
        self._marks[name] = epoch, number
        if len(self._marks) > MAX_MARKS_KNOWN:
            del self._marks[next(iter(self._marks))]
        self._unanswered += 1
        self._wire.mark(name)
        self._marked(epoch, number, position)

    def _stop(self) -> None:
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
