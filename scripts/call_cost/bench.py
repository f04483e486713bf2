"""The measurement: every server with so many calls, in turns; then how many a core holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadtest.capacity import Climb, Held
from scripts.call_cost.machine import Cores
from scripts.call_cost.servers import Subject
from scripts.call_cost.windows import Trial, Window, on_trial


@dataclass(frozen=True, slots=True)
class Plan:
    """``calls``: the levels at which a call's cost is read, in so many ``rounds``; ``climb``: the first level and the
    last that are tried for how many calls are held; None: that is not asked."""

    calls: tuple[int, ...]
    rounds: int = 3
    ramp_s: float = 4.0
    window_s: float = 16.0
    climb: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Climbed:
    """``held``: the most calls that were (0: none); ``broke``: of the fewest that were not, if there were such."""

    subject: str
    asked: str
    held: int
    stopped_by: str
    windows: tuple[Window, ...]

    @property
    def broke(self) -> Window | None:
        missed = [window for window in self.windows if window.held is Held.MISSED]
        return min(missed, key=lambda window: window.calls, default=None)

    def line(self) -> str:
        why = self.stopped_by
        if (broke := self.broke) is not None and broke.calls > self.held:
            why += f": {broke.late_share:.2%} of the frames late, {broke.good_share:.1%} good calls, "
            why += f"{broke.cpu_share:.0%} of the core"
        return f"{self.subject} {self.asked}: {self.held} calls held ({why})"


@dataclass(frozen=True, slots=True)
class Measured:
    """Windows in the order they were read; those of the climbs apart."""

    windows: tuple[Window, ...]
    climbs: tuple[Climbed, ...] = ()

    def save(self, path: Path) -> None:
        """All of it, with the load test's whole reports, as JSON."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


async def measure(
    subjects: Sequence[Subject], plan: Plan, cores: Cores, say: Callable[[str], None], *, climbing: Sequence[Subject]
) -> Measured:
    """Servers take turns, each started anew for every round; ``climbing``: those that are climbed, if any is."""
    windows: list[Window] = []
    for _ in range(plan.rounds):
        for subject in subjects:
            async with on_trial(subject, cores) as trial:
                for calls in plan.calls:
                    windows.append(await trial.window(calls, plan.ramp_s, plan.window_s))
                    say(windows[-1].line())
    climbs: list[Climbed] = []
    for subject in climbing if plan.climb is not None else ():
        async with on_trial(subject, cores) as trial:
            climbs.append(await _climbed(subject, trial, plan, say))
            say(climbs[-1].line())
    return Measured(tuple(windows), tuple(climbs))


async def _climbed(subject: Subject, trial: Trial, plan: Plan, say: Callable[[str], None]) -> Climbed:
    """By the load test's own rules (:mod:`loadtest.capacity`)."""
    assert plan.climb is not None
    climb, windows = Climb(*plan.climb), list[Window]()
    while (calls := climb.next_level()) is not None:
        windows.append(await trial.window(calls, plan.ramp_s, plan.window_s))
        say(windows[-1].line())
        climb.note(windows[-1].held)
    return Climbed(subject.name, subject.asked, climb.best or 0, climb.stopped_by(), tuple(windows))
