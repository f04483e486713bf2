"""A CPU lane that runs its jobs when the test says so, on the test's own thread."""

from __future__ import annotations

from collections.abc import Callable

from engines.lane import CpuLane, LaneFull, Slot
from engines.lane_order import Ticket
from streaming.jobs import Priority


class ManualSlot(Slot):
    """Records what it was raised to; ``at_yield`` runs at each yield and says whether the lane goes on."""

    at_yield: Callable[[], bool] = staticmethod(lambda: True)

    def yield_if_needed(self) -> bool:
        return self.at_yield()

    def reprioritize(self, priority: Priority, deadline: float) -> None:
        self._ticket.priority, self._ticket.deadline = priority, deadline

    @property
    def priority(self) -> Priority:
        return self._ticket.priority

    @property
    def deadline(self) -> float:
        return self._ticket.deadline


class ManualLane(CpuLane):
    """Never starts a thread. ``jobs`` are those submitted and not yet run, in order of submission."""

    def __init__(self) -> None:
        super().__init__(1)
        self.jobs: list[ManualSlot] = []
        self.full = False

    def submit(
        self, priority: Priority, deadline: float, run: Callable[[Slot], None], *, abandoned: Callable[[], bool]
    ) -> Slot:
        if self.full:
            raise LaneFull("full")
        slot = ManualSlot(self, Ticket(priority, deadline, 0, 0.0), run, abandoned)
        self.jobs.append(slot)
        return slot

    @property
    def waiting(self) -> list[ManualSlot]:
        """Jobs that would run."""
        return [slot for slot in self.jobs if not slot._abandoned()]

    def run(self, slot: ManualSlot | None = None) -> None:
        """Run one job (default: the most urgent that is not abandoned)."""
        if slot is None:
            slot = min(self.waiting, key=lambda waiting: (waiting.priority, waiting.deadline))
        self.jobs.remove(slot)
        if not slot._abandoned():
            slot._run(slot)

    def run_all(self) -> None:
        while self.waiting:
            self.run()
        self.jobs.clear()
