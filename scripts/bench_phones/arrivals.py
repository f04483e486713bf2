"""How many of the frames that a phone was sent came late for its ear."""

from __future__ import annotations

from dataclasses import dataclass

from scripts.bench_media.lateness import Lateness

FRAME_MS = 20.0
LATE_MS = 20.0


@dataclass(slots=True)
class Playout:
    """A stream that never pauses: every frame is due 20 ms after the one before it. ``lead``: it is sent ahead into a
    carrier's buffer, which plays it from the first frame on. Else it is heard as it comes, and the frame that came
    earliest against the schedule gives its beginning. More than 20 ms after it was due a frame is late, and the
    schedule begins anew with it. Times are of any clock."""

    lead: bool
    due_ms: float | None = None
    """Of the next frame."""
    frames: int = 0
    late: int = 0
    worst_ms: float = 0.0

    def came(self, at_ms: float, frames: int = 1) -> None:
        """So many frames in one."""
        self.frames += frames
        if self.due_ms is None or (at_ms < self.due_ms and not self.lead):
            self.due_ms = at_ms
        behind_ms = at_ms - self.due_ms
        self.worst_ms = max(self.worst_ms, behind_ms)
        if behind_ms > LATE_MS:
            self.late += 1
            self.due_ms = at_ms
        self.due_ms += frames * FRAME_MS

    def read(self) -> Lateness:
        """Since it was last read."""
        found = Lateness(self.frames, self.late, 0, self.worst_ms)
        self.frames, self.late, self.worst_ms = 0, 0, 0.0
        return found
