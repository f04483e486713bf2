"""The CPU lane: one queue for the CPU jobs of all calls, and as many slots as cores.

Without it every engine would bring its own threads, and a far-ahead sentence of one call would take the core that
another caller's final transcript waits for. A job runs whole on a worker thread and holds one slot; a long one (a
generation) calls :meth:`Slot.yield_if_needed` at every step, where it gives the slot to more urgent work and waits,
blocked, for its own turn. So a job must hold nothing at a yield (a lock, a model's only worker) that more urgent
work needs to finish: the two would wait for each other.

The order is that of :mod:`engines.lane_order`: class, then deadline, then submission, with aging; and a job that can
wait leaves the machine to an urgent one, though a slot be free. Everything is
bounded: queued jobs, paused jobs (and with them threads); what is refused or skipped is counted.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from engines.lane_order import LaneOrder, Ticket
from streaming.jobs import Priority

MAX_QUEUED = 1024
MAX_PAUSED = 32

_log = structlog.get_logger(__name__)


class LaneFull(Exception):  # noqa: N818 (a state of the lane, not a defect)
    """The lane takes no job now: too many wait, or it was closed. Engines answer with the code ``overloaded``."""


@dataclass(frozen=True, slots=True)
class LaneSnapshot:
    """Counters as of one moment. ``max_wait_ms`` is the longest time from submission to begin since the lane was
    made, by the class the job had when it began."""

    slots: int
    queued: int
    running: int
    paused: int
    done: int
    skipped: int
    refused: int
    failed: int
    yields: int
    yields_refused: int
    max_wait_ms: dict[Priority, float]
    late_ms: float
    """How far the job that waits and is latest is past its deadline. A speculation has none, whatever it says."""
    busy_s: float
    """Time that slots were held since the lane was made, over all slots."""


class Slot:
    """One job's hold on the lane: returned by :meth:`CpuLane.submit`, and given to the job when it runs."""

    __slots__ = ("_abandoned", "_lane", "_may_go_on", "_run", "_submitted_at", "_ticket")

    def __init__(
        self, lane: CpuLane, ticket: Ticket, run: Callable[[Slot], None], abandoned: Callable[[], bool]
    ) -> None:
        self._lane = lane
        self._ticket = ticket
        self._run = run
        self._abandoned = abandoned
        self._submitted_at = ticket.since
        self._may_go_on = threading.Event()

    def yield_if_needed(self) -> bool:
        """Let more urgent work run first, if any waits; blocks until this job's turn comes again.

        Call it only from inside the job, from any thread (one at a time). False means that the lane closes: end
        the job now.
        """
        return self._lane._yield(self)

    def reprioritize(self, priority: Priority, deadline: float) -> None:
        """Change the job's class and deadline, whether it waits, runs or is paused. Thread-safe."""
        self._lane._reprioritize(self, priority, deadline)


class CpuLane:
    """``slots`` CPU jobs at once (default: one a core), most urgent first. Thread-safe."""

    def __init__(
        self,
        slots: int | None = None,
        *,
        max_queued: int = MAX_QUEUED,
        max_paused: int = MAX_PAUSED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slots = slots if slots is not None else _usable_cores()
        if self.slots < 1:
            raise ValueError("a lane needs at least one slot")
        self._max_queued = max_queued
        self._max_paused = max_paused
        self._clock = clock
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._order = LaneOrder()
        self._slots_by_ticket: dict[Ticket, Slot] = {}
        self._granted: deque[Slot] = deque()
        self._paused: set[Slot] = set()
        self._threads: list[threading.Thread] = []
        self._sequence = itertools.count()
        self._idle_threads = 0
        self._running: set[Slot] = set()
        self._closing = False
        self._done = self._skipped = self._refused = self._failed = 0
        self._yields = self._yields_refused = 0
        self._max_wait_s: dict[Priority, float] = {}
        self._busy_s = 0.0
        self._counted_at = clock()

    def submit(
        self,
        priority: Priority,
        deadline: float,
        run: Callable[[Slot], None],
        *,
        abandoned: Callable[[], bool],
    ) -> Slot:
        """Queue ``run(slot)`` for a worker thread. ``deadline`` is absolute seconds on the lane's clock
        (monotonic; ``math.inf`` for none).

        ``abandoned`` is asked just before the job would begin (and when the queue is full): True skips it. It must
        be a plain flag read, as it may be called with the lane's lock held. ``run`` catches its own errors.

        Raises:
            LaneFull: too many jobs wait, or the lane was closed.
        """
        with self._lock:
            if self._closing or (self._queued >= self._max_queued and not self._drop_abandoned()):
                self._refused += 1
                raise LaneFull("the lane was closed" if self._closing else "too many CPU jobs wait")
            ticket = Ticket(priority, deadline, next(self._sequence), self._clock())
            slot = Slot(self, ticket, run, abandoned)
            self._wait_in_order(slot)
            self._dispatch()
            return slot

    def snapshot(self) -> LaneSnapshot:
        with self._lock:
            now = self._clock()
            return LaneSnapshot(
                slots=self.slots,
                queued=self._queued,
                running=len(self._running),
                paused=len(self._paused),
                done=self._done,
                skipped=self._skipped,
                refused=self._refused,
                failed=self._failed,
                yields=self._yields,
                yields_refused=self._yields_refused,
                max_wait_ms={priority: wait_s * 1000 for priority, wait_s in sorted(self._max_wait_s.items())},
                late_ms=1000 * max((ticket.late_s(now) for ticket in self._slots_by_ticket), default=0.0),
                busy_s=self._busy_s + len(self._running) * (now - self._counted_at),
            )

    async def close(self) -> None:
        """Accept and begin nothing more, wake what is paused (its yield returns False), wait for what runs and join
        every thread. What never began is counted as skipped. Safe to call twice."""
        with self._lock:
            self._closing = True
            self._count_time()
            for slot in self._paused:
                self._order.remove(slot._ticket)
                self._running.add(slot)
                slot._may_go_on.set()
            self._paused.clear()
            self._skipped += len(self._order) + len(self._granted)
            self._running.difference_update(self._granted)
            self._granted.clear()
            self._order = LaneOrder()
            self._slots_by_ticket.clear()
            self._work.notify_all()
            threads = list(self._threads)
        if threads:
            await asyncio.to_thread(_join, threads)

    @property
    def _queued(self) -> int:
        return len(self._order) - len(self._paused) + len(self._granted)

    def _wait_in_order(self, slot: Slot) -> None:
        self._order.add(slot._ticket)
        self._slots_by_ticket[slot._ticket] = slot

    def _drop_abandoned(self) -> bool:
        """Make room by forgetting waiting jobs that nobody wants any more; False if there was none."""
        stale = [
            ticket for ticket, slot in self._slots_by_ticket.items() if slot not in self._paused and slot._abandoned()
        ]
        for ticket in stale:
            self._order.remove(ticket)
            del self._slots_by_ticket[ticket]
        self._skipped += len(stale)
        return bool(stale)

    def _dispatch(self) -> None:
        """Hand free slots to the most urgent waiting jobs. With the lock held."""
        while len(self._running) < self.slots:
            ticket = self._order.pop(self._clock(), patient=not self._urgent_runs())
            if ticket is None:
                return
            slot = self._slots_by_ticket.pop(ticket)
            self._count_time()
            self._running.add(slot)
            if slot in self._paused:
                self._paused.remove(slot)
                slot._may_go_on.set()
                continue
            self._granted.append(slot)
            if self._idle_threads < len(self._granted):
                self._start_thread()
            self._work.notify()

    def _count_time(self) -> None:
        """Before the number of those that run changes."""
        now = self._clock()
        self._busy_s += len(self._running) * (now - self._counted_at)
        self._counted_at = now

    def _urgent_runs(self) -> bool:
        return any(slot._ticket.urgent for slot in self._running)

    def _start_thread(self) -> None:
        # At most slots + max_paused exist: each is either running in a slot or holds a paused job.
        name = f"cpu-lane-{len(self._threads)}"
        thread = threading.Thread(target=self._worker, name=name, daemon=True)
        self._threads.append(thread)
        self._idle_threads += 1
        thread.start()

    def _worker(self) -> None:
        while True:
            with self._lock:
                while not self._granted and not self._closing:
                    self._work.wait()
                if self._closing:
                    return
                slot = self._granted.popleft()
                self._idle_threads -= 1
            self._perform(slot)
            del slot  # an idle thread must not keep the last job's audio alive

    def _perform(self, slot: Slot) -> None:
        skipped = failed = False
        try:
            skipped = slot._abandoned()
            if not skipped:
                self._note_begin(slot)
                slot._run(slot)
        except BaseException:  # noqa: BLE001
            # A job's errors are its own; one that escapes must not cost the lane a worker.
            failed = True
            _log.exception("a CPU job let an exception escape")
        finally:
            with self._lock:
                self._count_time()
                self._running.discard(slot)
                self._idle_threads += 1
                self._skipped += skipped
                self._failed += failed
                self._done += not (skipped or failed)
                if not self._closing:
                    self._dispatch()

    def _note_begin(self, slot: Slot) -> None:
        with self._lock:
            priority = slot._ticket.priority
            wait_s = self._clock() - slot._submitted_at
            self._max_wait_s[priority] = max(wait_s, self._max_wait_s.get(priority, 0.0))

    def _yield(self, slot: Slot) -> bool:
        with self._lock:
            if self._closing:
                return False
            now = self._clock()
            if not (self._urgent_runs() and slot._ticket.can_wait(now)):
                first = self._order.peek(now)
                if first is None or first.urgency(now) > slot._ticket.own_urgency():
                    return True
            if len(self._paused) >= self._max_paused:
                self._yields_refused += 1
                return True
            self._yields += 1
            slot._ticket.since = now
            slot._may_go_on.clear()
            self._paused.add(slot)
            self._wait_in_order(slot)
            self._count_time()
            self._running.remove(slot)
            self._dispatch()
        slot._may_go_on.wait()
        return not self._closing

    def _reprioritize(self, slot: Slot, priority: Priority, deadline: float) -> None:
        with self._lock:
            self._order.move(slot._ticket, priority, deadline)
            self._dispatch()


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux: a container may be held to fewer than the machine has
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()
