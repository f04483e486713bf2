"""Releasing a reply's audio on time, and knowing what of it was heard."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from streaming.audio.level import quietest_dip

Pcm16 = npt.NDArray[np.int16]

REWIND_MS = 300
"""How far before the held position a reply may be taken up again."""

KEEP_MS = 1_000
"""Audio kept behind what was heard, so that a release has a dip to choose."""

MIN_REWIND_MS = 40


class PlayoutClock:
    """What the far end has played, when it plays what it gets at once and without gaps until it runs dry.

    A model, for wires without marks: positions in samples at ``rate_hz``, times in seconds. Until ``free_at`` the far
    end still plays what it was sent before.
    """

    def __init__(self, rate_hz: int, free_at: float = 0.0) -> None:
        self.rate_hz = rate_hz
        self._free_at = free_at
        self.sent_samples = 0
        self._anchor_at: float | None = None
        self._anchor_samples = 0

    def heard_samples(self, now: float) -> int:
        if self._anchor_at is None:
            return self.sent_samples
        played = self._anchor_samples + round((now - self._anchor_at) * self.rate_hz)
        return max(self._anchor_samples, min(self.sent_samples, played))

    def sent(self, position_samples: int, now: float) -> None:
        """Audio up to the position has left."""
        if self._anchor_at is None or self.heard_samples(now) >= self.sent_samples:
            self._anchor_at, self._anchor_samples = max(now, self._free_at), self.sent_samples
        self.sent_samples = position_samples

    def stop(self, position_samples: int) -> None:
        """The far end's buffer was cleared; what it played ends here."""
        self.sent_samples = self._anchor_samples = position_samples
        self._anchor_at = None

    def dry_at(self, now: float) -> float:
        """When the far end will have played all that was sent."""
        begins_at = max(now, self._anchor_at or 0.0)
        return begins_at + (self.sent_samples - self.heard_samples(now)) / self.rate_hz


class Pacer:
    """The audio of one reply, released in frames while the far end is less than ``lead_ms`` ahead of its ear.

    Where we own the playout clock the lead is one or two frames; where the far end buffers and can clear, 200-320 ms.
    A stall never makes a burst of more than the lead: the clock runs dry, and begins again at the next frame. One
    pacer serves one epoch; when the epoch dies its pacer is dropped with it, so a late producer fills a dead one.
    """

    def __init__(self, rate_hz: int, *, frame_ms: int = 20, lead_ms: int = 300) -> None:
        self.rate_hz = rate_hz
        self.frame_samples = rate_hz * frame_ms // 1000
        self._lead_samples = rate_hz * lead_ms // 1000
        self._keep_samples = rate_hz * KEEP_MS // 1000
        self._clock = PlayoutClock(rate_hz)
        self._blocks: deque[tuple[int, Pcm16]] = deque()
        self._end_samples = 0
        self._whole = False
        self.held = False

    @property
    def position_samples(self) -> int:
        """What was sent, from the reply's beginning."""
        return self._clock.sent_samples

    @property
    def pending_samples(self) -> int:
        return self._end_samples - self._clock.sent_samples

    @property
    def kept_samples(self) -> int:
        """All samples in memory, also those already sent."""
        return sum(len(block) for _, block in self._blocks)

    def append(self, pcm: Pcm16, *, last: bool) -> None:
        """Add audio. ``last`` ends a segment: what is left then may go as a short frame, for nothing may follow."""
        self._whole = last
        if len(pcm):
            self._blocks.append((self._end_samples, pcm))
            self._end_samples += len(pcm)

    def next_at(self, now: float) -> float | None:
        """When the next frame may go; None: nothing may, until audio comes or the hold ends."""
        if self.held or not self._has_frame():
            return None
        buffered = self._clock.sent_samples - self._clock.heard_samples(now)
        excess = buffered + self.frame_samples - self._lead_samples
        return now if excess <= 0 else now + excess / self.rate_hz

    def take(self, now: float) -> Pcm16 | None:
        """The next frame if it may go now."""
        due = self.next_at(now)
        if due is None or due > now:
            return None
        start = self._clock.sent_samples
        frame = self._read(start, min(start + self.frame_samples, self._end_samples))
        self._clock.sent(start + len(frame), now)
        self._forget(self._clock.heard_samples(now) - self._keep_samples)
        return frame

    def hold(self, heard_samples: int) -> None:
        """Send nothing; the far end played up to here, the rest is kept (what was heard long ago is not)."""
        self.held = True
        self._clock.stop(max(heard_samples, self._kept_from(heard_samples)))

    def release(self) -> int:
        """Go on, from the quietest moment shortly before the hold. Returns the position."""
        self.held = False
        heard = self._clock.sent_samples
        start = max(self._kept_from(heard), heard - self.rate_hz * REWIND_MS // 1000)
        latest = heard - self.rate_hz * MIN_REWIND_MS // 1000
        position = heard
        if start < latest:
            position = start + quietest_dip(self._read(start, latest), self.rate_hz)
        self._clock.stop(position)
        return position

    def _kept_from(self, position_samples: int) -> int:
        return self._blocks[0][0] if self._blocks else position_samples

    def _has_frame(self) -> bool:
        return self.pending_samples >= self.frame_samples or (self._whole and self.pending_samples > 0)

    def _read(self, start: int, end: int) -> Pcm16:
        pieces = [
            block[max(0, start - at) : max(0, end - at)]
            for at, block in self._blocks
            if at < end and at + len(block) > start
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate([*pieces, np.empty(0, np.int16)])

    def _forget(self, before_samples: int) -> None:
        while self._blocks and self._blocks[0][0] + len(self._blocks[0][1]) <= before_samples:
            self._blocks.popleft()
