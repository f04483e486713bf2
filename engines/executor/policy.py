"""What a lane runs next. Pure: no thread, no model; the time and the costs are passed in.

Work runs as quanta that are not preempted: earliest deadline first. A job's class sets what its deadline may be and its
place in eviction order, nothing else. The rules:

1. Every live job has a finite deadline (:data:`LATEST_S` after it came at the latest, and never before it came), so
   newcomers go before it only until then: none starves. A job whose quanta were all served gets its next deadline
   :data:`RENEWED_S` later if the workload names none, so that a long reply does not stay first for ever.
2. The demand test: run in order of deadline, at the costs known, does every job meet its deadline? Jobs that share
   quanta are counted as sharing them (N decoding rows cost their longest remainder, not the sum). What a job has
   left then is its slack.
3. A quantum is widened, job by job in order of deadline, only while that costs every job due earlier no more than its
   slack. Jobs that will be late anyway have none to lose: under overload wide batches are what ends it.
4. A batch that is first waits (until :data:`OVERTAKEN_S` past its deadline) for work that gains nothing by waiting, as
   it shares no quanta or is a prompt on its way to a decoding batch, if everybody due before that work has the
   slack: the batch may have grown by then.
5. Speculative jobs have no deadline. They get quanta of their own only when no live job could run, short ones, and
   ride along in a live one by rule 3. One that holds an instance of a pool for which a live job waits goes on with that
   job's deadline.
6. A kind that can be cut (prefill) runs in big quanta while nobody else waits, in small ones otherwise.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from engines.api import Overload
from engines.executor.costs import Costs
from engines.executor.demand import Group, Job, Quantum
from engines.executor.kinds import Choice, Key, Kind
from engines.executor.overload import Ladder
from streaming.jobs import Priority

__all__ = ["LATEST_S", "RENEWED_S", "Agenda", "Choice", "Key", "Kind"]

MAX_JOBS = 1024
MAX_GROUPS = 256
LATEST_S: Mapping[Priority, float] = {
    Priority.FINAL: 0.5,
    Priority.FIRST_AUDIO: 0.8,
    Priority.DECODE: 4.0,
    Priority.PLAYOUT: 4.0,
    Priority.PARTIAL: 1.0,
}
"""How long after it came (or was moved) a live job of each class is due at the latest, whatever deadline it names."""
RENEWED_S: Mapping[Priority, float] = {
    Priority.FINAL: 0.3,
    Priority.FIRST_AUDIO: 0.3,
    Priority.DECODE: 0.5,
    Priority.PLAYOUT: 0.5,
    Priority.PARTIAL: 0.5,
    Priority.SPECULATIVE: math.inf,
}
"""How long after it the next quantum of a job is due that has had all the quanta it asked for."""
OVERTAKEN_S = 0.5
"""A job that is later than that is not overtaken any more for the sake of wider batches: else it could starve."""
ALONE_S = 0.1
"""How long a quantum that can be cut may be while no other live job waits: what a newcomer may have to wait."""
SHARED_S = 0.05
"""The same while others wait, and for speculation."""

_JOINING = ("start", "prefill")
_due = attrgetter("due")


@dataclass(slots=True)
class _Pool:
    size: int
    holders: set[Key] = field(default_factory=set)

    def full_for(self, key: Key) -> bool:
        return key not in self.holders and len(self.holders) >= self.size


class Agenda:
    """The jobs alive, and the choice among them. All times are seconds on the caller's clock.

    ``units`` is a job's share of its next quantum (all tokens left to prefill, phonemes, frames; 1 for a decode step),
    ``bucket`` the padded shape it runs in, ``remaining`` how many quanta like it the job still needs before its
    deadline is met, this one included (a decode: the tokens to the end of the clause). ``deadline`` is when those
    quanta should be done: who has more stages to come takes their cost off. It stays through :meth:`advance` and
    until :meth:`move`, or until ``remaining`` quanta were served and no more were asked for.
    """

    def __init__(self, costs: Costs | None = None, *, max_jobs: int = MAX_JOBS) -> None:
        self.costs = costs if costs is not None else Costs()
        self._max_jobs = max_jobs
        self._jobs: dict[Key, Job] = {}
        self._groups: dict[tuple[Kind, int], Group] = {}
        self._pools: dict[str, _Pool] = {}
        self._served: list[Job] = []
        self._evicted: list[tuple[Key, Kind]] = []
        self._ladder = Ladder()
        self._tests = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, key: Key) -> bool:
        return key in self._jobs

    def set_pool(self, pool: str, size: int) -> None:
        """How many jobs may hold the exclusive resource of that name at once. Those that hold it keep it."""
        holders = self._pools[pool].holders if pool in self._pools else set()
        self._pools[pool] = _Pool(size, holders)

    def held(self) -> Mapping[str, int]:
        """How many of each pool are in use."""
        return {name: len(pool.holders) for name, pool in self._pools.items()}

    # --- the life of a job ------------------------------------------------------------------------------------

    def add(
        self,
        key: Key,
        kind: Kind,
        priority: Priority,
        deadline: float,
        now: float,
        *,
        units: int = 1,
        bucket: int = 0,
        remaining: int = 1,
    ) -> None:
        """A new job; one of that key must not be there. On a full agenda the least important job (it may be this one)
        is dropped for it: :meth:`take_evicted` names it."""
        if key in self._jobs:
            raise ValueError(f"{key} is already on the agenda")
        group = self._group(kind, bucket)
        job = Job(key, group, priority, deadline, _due_time(priority, deadline, now), units, 1, remaining)
        job.length = _length(group, units)
        self._jobs[key] = job
        if len(self._jobs) > self._max_jobs:
            self._evict()

    def advance(self, key: Key, kind: Kind, *, units: int = 1, bucket: int = 0, remaining: int = 1) -> None:
        """The job's next quantum is of this kind."""
        job = self._jobs[key]
        job.group = self._group(kind, bucket)
        job.units, job.remaining, job.spent = units, remaining, False
        job.length = _length(job.group, units)

    def move(self, key: Key, now: float, *, priority: Priority | None = None, deadline: float | None = None) -> None:
        """Give a job another class or deadline. Unknown keys are ignored: the job may just have ended."""
        job = self._jobs.get(key)
        if job is None:
            return
        if priority is not None:
            job.priority = priority
        if deadline is not None:
            job.deadline = deadline
        job.due = _due_time(job.priority, job.deadline, now)

    def drop(self, key: Key) -> None:
        """The job ended or was cancelled: it is chosen no more, and what it held is free. Unknown keys are ignored."""
        self._jobs.pop(key, None)
        for pool in self._pools.values():
            pool.holders.discard(key)

    def take_evicted(self) -> list[tuple[Key, Kind]]:
        """The jobs dropped for want of room since last asked, with the kind of quantum each waited for. Their
        workloads owe each an answer (``overloaded``)."""
        evicted, self._evicted = self._evicted, []
        return evicted

    # --- the choice -------------------------------------------------------------------------------------------

    def choose(self, now: float, *, hold_streams: bool = False) -> Choice | None:
        """The next quantum, or None when nothing can run. ``hold_streams`` leaves unopened streams waiting."""
        self._renew(now)
        order = self._in_order()
        ready = [job for job in order if self._may_run(job, hold_streams)]
        if not ready:
            self._ladder.note(0.0, now)
            return None
        head = ready[0]
        if head.due < math.inf and head.group.kind.name not in _JOINING and head.group.gains(head.length):
            head = self._before_a_batch(order, ready, now) or head
        quantum = self._widened(order, ready, head, now)
        live = sum(job.due < math.inf for job in order)
        return self._serve(quantum, waits=live > sum(job.due < math.inf for job in quantum.jobs))

    def observe(self, choice: Choice, seconds: float) -> None:
        """The quantum took so long: costs are learned by it."""
        self.costs.observe(choice.kind, len(choice.keys), choice.length, seconds)

    def overload(self, now: float) -> Overload:
        """How far the lane is behind, by the average lateness that the demand test foresees."""
        return self._ladder.level(now)

    def late_s(self, now: float) -> float:
        """How far the job that is latest is past the time it is due."""
        return max(0.0, now - min((job.due for job in self._jobs.values()), default=now))

    # --- order ------------------------------------------------------------------------------------------------

    def _renew(self, now: float) -> None:
        for job in self._served:
            if job.spent:
                job.spent = False
                job.remaining = 1
                job.due = max(job.due, now + RENEWED_S[job.priority])
        self._served.clear()

    def _in_order(self) -> list[Job]:
        """Every job, the earliest deadline first and speculation last."""
        jobs = sorted(self._jobs.values(), key=_due)
        wanted: dict[str, float] = {}
        for job in jobs:
            pool = job.group.kind.pool
            if pool is not None and job.due < math.inf and self._pools[pool].full_for(job.key):
                wanted.setdefault(pool, job.due)
        if not wanted:
            return jobs
        lent = [(job, self._inherited(job, wanted)) for job in jobs]
        return [job for job, _ in sorted(lent, key=lambda pair: pair[1])]

    def _inherited(self, job: Job, wanted: Mapping[str, float]) -> float:
        """A job that holds what another waits for goes before that one (and is due with it)."""
        due = job.due
        for name, waiting_due in wanted.items():
            if job.key in self._pools[name].holders:
                due = min(due, waiting_due)
        return due

    def _may_run(self, job: Job, hold_streams: bool) -> bool:
        kind = job.group.kind
        if hold_streams and kind.opens_stream:
            return False
        return kind.pool is None or not self._pools[kind.pool].full_for(job.key)

    # --- the demand test --------------------------------------------------------------------------------------

    def _before_a_batch(self, order: Sequence[Job], ready: Sequence[Job], now: float) -> Job | None:
        """What should go before the batch that is first in order, because it gains nothing by waiting, while the batch
        may gain members: the first live job that shares no quanta, or a prompt on its way to a decoding batch. None if
        somebody due before that job has not the time."""
        group = ready[0].group
        for going_first in ready:
            kind = going_first.group.kind
            if going_first.group is not group and (kind.max_batch == 1 or kind.name in _JOINING):
                break
        else:
            return None
        if going_first.due == math.inf:
            return None
        cost_s = going_first.group.costs.estimate(1, going_first.length)
        if not going_first.group.cut:
            cost_s *= going_first.remaining
        if cost_s <= 0.0:  # nothing is known of it
            return None
        self._tests += 1
        test, done, done_wide = self._tests, now, now
        members = Counter(id(job.group) for job in order)
        wide: dict[int, float] = {}
        for job in itertools.takewhile(lambda job: job is not going_first, order):
            group = job.group
            done += group.count(job, test)
            # Who counts on sharing quanta must get to: the slack that wide batches will need is not to be spent.
            need_s = group.need_at_width(members[id(group)])
            done_wide += need_s - wide.get(id(group), 0.0)
            wide[id(group)] = need_s
            if (done <= job.due < done_wide + cost_s) or job.due < now - OVERTAKEN_S:
                return None
        return going_first

    def _widened(self, order: Sequence[Job], ready: Sequence[Job], head: Job, now: float) -> Quantum:
        """The head and the jobs that share its quantum. Notes how late the latest live job will be."""
        self._tests += 1
        test = self._tests
        group = head.group
        may_run = None if len(ready) == len(order) else {id(job) for job in ready}
        quantum = Quantum(head, self._room(head))
        done = now + group.count(head, test)
        latest, least_slack = 0.0, math.inf
        for job in order:
            if job is head:
                slack = job.due - done
            else:
                if job.group is group and (may_run is None or id(job) in may_run):
                    least_slack -= quantum.widen(job, least_slack)
                if job.due == math.inf:
                    continue
                done += job.group.count(job, test)
                slack = job.due - done
            if slack < 0.0:
                latest = max(latest, -slack)
            elif slack < least_slack:
                least_slack = slack
        self._ladder.note(latest, now)
        return quantum

    def _room(self, head: Job) -> int:
        """How many jobs that hold no instance yet may join the head's quantum."""
        name = head.group.kind.pool
        if name is None:
            return 0
        pool = self._pools[name]
        return pool.size - len(pool.holders | {head.key})

    def _serve(self, quantum: Quantum, waits: bool) -> Choice:
        kind = quantum.kind
        for job in quantum.jobs:
            if kind.pool is not None:
                self._pools[kind.pool].holders.add(job.key)
                job.holds = True
            job.remaining -= 1
            job.spent = job.remaining == 0
        self._served = quantum.jobs
        keys = tuple(job.key for job in quantum.jobs)
        if kind.max_units is None:
            return Choice(kind, keys, None, quantum.length)
        max_units = quantum.cut_to(SHARED_S if waits or quantum.jobs[0].due == math.inf else ALONE_S)
        return Choice(kind, keys, max_units, min(quantum.length, max_units))

    # --- room -------------------------------------------------------------------------------------------------

    def _group(self, kind: Kind, bucket: int) -> Group:
        key = (kind, bucket if kind.alike else 0)
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= MAX_GROUPS:  # of models that were closed, or buckets out of use
                used = {id(job.group) for job in self._jobs.values()}
                self._groups = {known: group for known, group in self._groups.items() if id(group) in used}
            group = self._groups[key] = Group(kind, key[1], self.costs.of(kind))
        return group

    def _evict(self) -> None:
        """Drop the job that matters least: speculation, then partial transcripts, then what is heard latest."""
        job = max(self._jobs.values(), key=lambda job: (job.priority, job.due))
        self.drop(job.key)
        self._evicted.append((job.key, job.group.kind))


def _due_time(priority: Priority, deadline: float, now: float) -> float:
    if priority is Priority.SPECULATIVE:
        return math.inf
    # Not max(): what is no number is due now, or nothing could be sorted any more.
    return min(deadline, now + LATEST_S[priority]) if deadline > now else now


def _length(group: Group, units: int) -> int:
    """What a quantum's cost depends on beside the batch: see :meth:`Costs.estimate`."""
    return group.bucket if group.kind.alike and group.bucket else units
