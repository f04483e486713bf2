"""What the executor's thread was doing when it was not heard of for long: its Python stack, looked at from outside."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

STALL_S = 0.25
_LOOK_EVERY_S = 0.05
_FRAMES = 6
_THREAD = "mlx-executor"


@dataclass(frozen=True, slots=True)
class Stall:
    """``at_s`` since the watch began. ``frames``: innermost first, as ``function (file:line)``, where it was seen
    first."""

    at_s: float
    seconds: float
    frames: tuple[str, ...]


class Stalls:
    """``last_beat`` is :attr:`engines.executor.thread.MlxExecutor.last_beat`; ``clock`` the executor's. An idle thread
    is heard of twice a second, so one that waits is no stall."""

    def __init__(self, last_beat: Callable[[], float], clock: Callable[[], float], *, most: int = 200) -> None:
        self._last_beat = last_beat
        self._clock = clock
        self._most = most
        self._began = clock()
        self._at: float | None = None
        self._frames: tuple[str, ...] = ()
        self._seconds = 0.0
        self.seen: list[Stall] = []

    def look(self, frame: FrameType | None) -> None:
        """``frame``: where the thread is now."""
        beat = self._last_beat()
        if self._at is not None and beat != self._at:
            if len(self.seen) < self._most:
                self.seen.append(Stall(self._at - self._began, self._seconds, self._frames))
            self._at = None
        seconds = self._clock() - beat
        if seconds < STALL_S or frame is None or _waits(frame):
            return
        if self._at is None:
            self._at, self._frames = beat, _described(frame)
        self._seconds = seconds

    def longest(self, count: int) -> list[Stall]:
        return sorted(self.seen, key=lambda stall: -stall.seconds)[:count]


@contextmanager
def watched(stalls: Stalls) -> Iterator[Stalls]:
    """Look at the executor's thread every 50 ms."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK_EVERY_S):
            stalls.look(_frame_of(_THREAD))

    thread = threading.Thread(target=watch, name="stalls", daemon=True)
    thread.start()
    try:
        yield stalls
    finally:
        done.set()
        thread.join()
        stalls.look(None)


def in_words(stalls: Sequence[Stall]) -> str:
    lines = [f"stalls of the thread of more than {STALL_S * 1000:.0f} ms since all was warm, the longest first:"]
    lines += [f"{stall.seconds * 1000:7.0f} ms at {stall.at_s:6.1f} s  {' < '.join(stall.frames)}" for stall in stalls]
    return "\n".join(lines if stalls else [f"no stall of more than {STALL_S * 1000:.0f} ms"])


def _frame_of(name: str) -> FrameType | None:
    found = next((thread for thread in threading.enumerate() if thread.name == name), None)
    return sys._current_frames().get(found.ident) if found is not None and found.ident is not None else None


def _waits(frame: FrameType) -> bool:
    """For work, in the condition of its inbox."""
    return Path(frame.f_code.co_filename).name == "threading.py"


def _described(frame: FrameType) -> tuple[str, ...]:
    stack = traceback.extract_stack(frame, limit=None)[::-1]
    return tuple(f"{one.name} ({Path(one.filename).name}:{one.lineno})" for one in list(stack)[:_FRAMES])
