"""The audio of a call's replies on its way to the leg: one pacer an epoch, and the ticks that empty the open one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from engines.api import Pcm16
from streaming.audio.resample import Resampler
from streaming.jobs import SynthesisChunk
from streaming.pacing import Pacer


class Sink(Protocol):
    """What a leg is to its playout."""

    lead_ms: int

    @property
    def congested(self) -> bool: ...

    def play(self, response_id: str, item_id: str, pcm: Pcm16) -> None: ...


@dataclass(slots=True)
class _Track:
    """One epoch's audio. A dead epoch has none, so a late producer has nowhere to put its chunk."""

    pacer: Pacer
    rate_hz: int
    resampler: Resampler | None = None


class Playout:
    """``sent(epoch, position_samples)`` is called after each frame the leg took."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sink: Sink, sent: Callable[[int, int], None]) -> None:
        self._loop = loop
        self._sink = sink
        self._sent = sent
        self._tracks: dict[int, _Track] = {}
        self._open: tuple[int, str, str] | None = None
        self._sounding: int | None = None
        """The epoch whose frames left last: the far end may still have some of it to play."""
        self._held: int | None = None
        self._tick: asyncio.TimerHandle | None = None

    def expect(self, epoch: int, rate_hz: int) -> None:
        """Audio of this epoch will come, to be played at this rate."""
        if epoch not in self._tracks:
            self._tracks[epoch] = _Track(Pacer(rate_hz, lead_ms=self._sink.lead_ms), rate_hz)

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
        position = track.pacer.release()
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
        self._stop()
        if self._open is None or self._open[0] == self._held or self._sink.congested:
            return
        track = self._tracks.get(self._open[0])
        due = track.pacer.next_at(self._loop.time()) if track is not None else None
        if due is not None:
            self._tick = self._loop.call_at(due, self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        if self._open is None:
            return
        epoch, response_id, item_id = self._open
        track = self._tracks.get(epoch)
        frame = track.pacer.take(self._loop.time()) if track is not None else None
        try:
            if track is not None and frame is not None:
                self._sounding = epoch
                self._sink.play(response_id, item_id, frame)
                self._sent(epoch, track.pacer.position_samples)
        finally:
            self.wake()  # a frame that was lost to a defect does not silence the rest

    def _stop(self) -> None:
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
