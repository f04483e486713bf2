"""What a window of a measurement says, whatever is measured: which share of a core, how many frames late."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from scripts.bench_media.lateness import Lateness

# More late frames than this, and a core has too many calls.
LATE_SHARE = 0.001
# More late sends than this, and the callers could not tell who was late.
OWN_LATE_SHARE = 0.001

W = TypeVar("W", bound="Reading")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(ABC):
    """Of a server that answers ``calls``. Shares are of one core; None: the system does not tell."""

    calls: int
    cpu_share: float
    callers_cpu_share: float
    others_server_core: float | None
    others_callers_core: float | None
    frames: Lateness
    sent: int
    sent_late: int

    @property
    @abstractmethod
    def title(self) -> str:
        """What was measured, in words of equal length."""

    @property
    @abstractmethod
    def idle(self) -> bool:
        """The server heard or said too little: what it cost is the price of something else."""

    @property
    def starved(self) -> str:
        """What there was too little of, if it is idle."""
        return "server idle"

    @property
    def share_per_call(self) -> float:
        return self.cpu_share / self.calls

    @property
    def late_share(self) -> float:
        return self.frames.late / max(1, self.frames.frames)

    @property
    def in_time(self) -> bool:
        return not self.idle and self.late_share <= LATE_SHARE

    @property
    def callers_late(self) -> bool:
        """Who else was late cannot be told."""
        return self.sent_late > OWN_LATE_SHARE * self.sent

    @property
    def void(self) -> bool:
        return self.callers_late or self.idle


def progress(window: Reading) -> str:
    """One line about one window."""
    others = [share for share in (window.others_server_core, window.others_callers_core) if share is not None]
    busy = f", others took {others[0]:.0%} and {others[1]:.0%} of the two cores" if len(others) == 2 else ""
    return (
        f"{window.title} {window.calls:3} calls: {window.share_per_call:6.2%} of a core a call, "
        f"{window.frames.late} of {window.frames.frames} frames late, worst {window.frames.worst_ms:.0f} ms; "
        f"callers {window.callers_cpu_share:.0%}, {window.sent_late} of {window.sent} sends late{busy}"
        f"{' (VOID: callers late)' if window.callers_late else ''}"
        f"{f' (VOID: {window.starved})' if window.idle else ''}"
    )


def median_share_per_call(windows: Iterable[Reading]) -> float | None:
    """Over the windows that count; with late callers too if none does. None if there is no window."""
    of_all = [window for window in windows if not window.idle]
    counted = [window for window in of_all if not window.void] or of_all
    return median(window.share_per_call for window in counted) if counted else None


def calls_held(climb: Iterable[Reading]) -> int:
    """The highest level at which no more than 0.1 % of the frames were late; 0: none. A level that was kept in time
    while the callers were late themselves counts: they made it no easier."""
    return max((window.calls for window in climb if window.in_time), default=0)


async def best_window(measure: Callable[[], Awaitable[W]], *, tries: int, say: Callable[[str], None]) -> W:
    """The first window in which the calls were served in time, or else the best of those tried."""
    tried: list[W] = []
    for _ in range(tries):
        tried.append(await measure())
        say(progress(tried[-1]))
        if tried[-1].in_time:
            break
    return min(tried, key=lambda window: (not window.in_time and window.callers_late, window.late_share))
