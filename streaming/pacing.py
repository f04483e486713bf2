"""Releasing a reply's audio on time, and knowing what of it was heard."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from streaming.audio.level import quietest_dip

Pcm16 = npt.NDArray[np.int16]

REWIND_MS = 300
"""How far before the held position a reply may be taken up again."""

KEEP_MS = 1_000
"""Audio kept behind what was heard, so that a release has a dip to choose."""

MIN_REWIND_MS = 40

TAIL_MS = 60
"""Where frames are whole, what is too short for one waits until the far end has no more than this left: what follows it
may yet fill it up."""

MARK_OVERDUE_S = 2.0
"""A mark that has not come back this long after its audio should have been heard is given up."""

MAX_MARKS = 64
"""Marks of one reply that may be under way; the oldest is given up for one more."""


class PlayoutClock:
    """What the far end has played, when it plays what it gets at once and without gaps until it runs dry.

    Positions in samples at ``rate_hz``, times in seconds. Until ``free_at`` the far end still plays what it was sent
    before. On a wire with marks the model only fills in between them: nothing beyond the oldest mark that has not come
    back counts as heard, and one that has says where the far end is.
    """

    def __init__(self, rate_hz: int, free_at: float = 0.0) -> None:
        self.rate_hz = rate_hz
        self._free_at = free_at
        self.sent_samples = 0
        self._anchor_at: float | None = None
        self._anchor_samples = 0
        self._marks: deque[tuple[int, int]] = deque()
        self._revoked: dict[int, int] = {}
        """Marks that were under way when the far end was cleared, with their positions: some were on their way back."""

    def heard_samples(self, now: float) -> int:
        if self._anchor_at is None:
            return self.sent_samples
        played = self._anchor_samples + round((now - self._anchor_at) * self.rate_hz)
        for _, position in self._marks:
            if now < self._overdue_at(position):
                played = min(played, position)
                break
        return max(self._anchor_samples, min(self.sent_samples, played))

    def sent(self, position_samples: int, now: float) -> None:
        """Audio up to the position has left."""
        if self._anchor_at is None or self.heard_samples(now) >= self.sent_samples:
            self._anchor_at, self._anchor_samples = max(now, self._free_at), self.sent_samples
        self.sent_samples = position_samples
        self._revoked.clear()

    def stop(self, position_samples: int) -> None:
        """The far end's buffer was cleared; what it played ends here."""
        self.sent_samples = self._anchor_samples = position_samples
        self._anchor_at = None
        self._revoked = dict(self._marks)
        self._marks.clear()

    def silence(self, samples: int) -> None:
        """So much silence was sent after the audio so far, which then takes the far end longer to play."""
        if self._anchor_at is not None:
            self._anchor_at += samples / self.rate_hz

    def dry_at(self, now: float) -> float:
        """When the far end will have played all that was sent, and that is certain: while a mark is under way, when it
        would be given up."""
        if self._marks:
            return max(now, self._overdue_at(self._marks[-1][1]))
        return self.expected_dry_at(now)

    def expected_dry_at(self, now: float) -> float:
        """When the far end should have played all that was sent."""
        begins_at = max(now, self._anchor_at or 0.0)
        return begins_at + (self.sent_samples - self.heard_samples(now)) / self.rate_hz

    # --- marks ------------------------------------------------------------------------------------------------

    def mark(self, mark: int, position_samples: int) -> int:
        """A mark was sent after the audio up to this position. Returns how many older ones are given up for it."""
        self._marks.append((mark, position_samples))
        excess = max(0, len(self._marks) - MAX_MARKS)
        for _ in range(excess):
            self._marks.popleft()
        return excess

    def mark_played(self, mark: int, now: float) -> bool:
        """All before the mark was heard, and what follows it is heard from now on. One that was under way when the far
        end was cleared tells how far it had come by then. False: it is not waited for."""
        if mark in self._revoked:
            position = self._revoked.pop(mark)
            self.sent_samples = self._anchor_samples = max(self.sent_samples, position)
            return True
        if not any(known == mark for known, _ in self._marks):
            return False
        while True:
            known, position = self._marks.popleft()
            if known == mark:
                self._anchor_at, self._anchor_samples = now, position
                return True

    def mark_cleared(self, mark: int) -> bool:
        """The mark came back though its audio was dropped, or not all of it heard. False: it is not waited for."""
        marks = len(self._marks)
        self._marks = deque(known for known in self._marks if known[0] != mark)
        return self._revoked.pop(mark, None) is not None or len(self._marks) < marks

    def give_up(self, now: float) -> int:
        """Wait no more for the marks that are overdue. Returns how many."""
        overdue = 0
        while self._marks and now >= self._overdue_at(self._marks[0][1]):
            self._marks.popleft()
            overdue += 1
        return overdue

    def _overdue_at(self, position_samples: int) -> float:
        if self._anchor_at is None:
            return math.inf  # its audio is about to be sent
        heard_after_s = (position_samples - self._anchor_samples) / self.rate_hz
        return self._anchor_at + max(0.0, heard_after_s) + MARK_OVERDUE_S


class Pacer:
    """The audio of one reply, released in frames while the far end is less than ``lead_ms`` ahead of its ear.

    Where we own the playout clock the lead is one or two frames; where the far end buffers and can clear, 200-320 ms.
    A stall never makes a burst of more than the lead: the clock runs dry, and begins again at the next frame. One
    pacer serves one epoch; when the epoch dies its pacer is dropped with it, so a late producer fills a dead one.

    ``whole_frames``: a short last frame is filled up with silence. It goes at the last moment, so that a reply has no
    holes between segments that come in time. ``keep_ms`` of audio behind what should have been heard are kept, so that
    a hold can go back to what was.
    """

    def __init__(
        self,
        rate_hz: int,
        *,
        frame_ms: int = 20,
        lead_ms: int = 300,
        keep_ms: int = KEEP_MS,
        whole_frames: bool = False,
    ) -> None:
        self.rate_hz = rate_hz
        self.frame_samples = rate_hz * frame_ms // 1000
        self._lead_samples = rate_hz * lead_ms // 1000
        self._tail_samples = min(self._lead_samples, rate_hz * TAIL_MS // 1000)
        self._keep_samples = rate_hz * keep_ms // 1000
        self._whole_frames = whole_frames
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
    def at_segment_end(self) -> bool:
        """All that came was sent, and it ends a segment: perhaps nothing follows."""
        return self._whole and not self.pending_samples

    def append(self, pcm: Pcm16, *, last: bool) -> None:
        """Add audio. ``last`` ends a segment: what is left then may go as a short frame, for nothing may follow."""
        self._whole = last
        if len(pcm):
            self._blocks.append((self._end_samples, pcm))
            self._end_samples += len(pcm)

    def next_at(self, now: float, frames: int = 1) -> float | None:
        """When the next frame may go, or as many in a row (fewer if there are fewer); None: nothing may, until audio
        comes or the hold ends."""
        if self.held or not self._has_frame():
            return None
        buffered = self._clock.sent_samples - self._clock.heard_samples(now)
        pending = self.pending_samples
        short = self._whole_frames and pending < self.frame_samples
        in_a_row = max(1, min(frames, pending // self.frame_samples))
        excess = buffered + in_a_row * self.frame_samples - (self._tail_samples if short else self._lead_samples)
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
        missing = self.frame_samples - len(frame)
        if self._whole_frames and missing:
            self._clock.silence(missing)
            frame = np.concatenate((frame, np.zeros(missing, np.int16)))
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
        at, block = self._blocks[bisect_right(self._blocks, start, key=itemgetter(0)) - 1]
        if at <= start and end <= at + len(block):
            return block[start - at : end - at]
        pieces = [
            block[max(0, start - at) : max(0, end - at)]
            for at, block in self._blocks
            if at < end and at + len(block) > start
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate([*pieces, np.empty(0, np.int16)])

    def _forget(self, before_samples: int) -> None:
        while self._blocks and self._blocks[0][0] + len(self._blocks[0][1]) <= before_samples:
            self._blocks.popleft()
