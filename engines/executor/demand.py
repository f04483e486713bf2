"""The demand test's parts: what jobs that share quanta need together, and the quantum being put together."""

from __future__ import annotations

from dataclasses import dataclass

from engines.executor.costs import KindCosts
from engines.executor.kinds import Key, Kind
from streaming.jobs import Priority

CHEAP_COMPANY = 1 / 3
"""A second job in a quantum must cost no more than this share of the first for a batch to be worth waiting for."""
LEAST_UNITS = 32
"""A cut quantum does at least so much, or overhead would eat it."""


class Group:
    """The jobs that could share quanta: one kind, and one bucket where the kind wants them alike. The counts are of
    the demand test now running (``test``): what its members so far need together."""

    __slots__ = ("bucket", "costs", "cut", "finished", "jobs", "kind", "length", "need_s", "round", "test", "units")

    def __init__(self, kind: Kind, bucket: int, costs: KindCosts) -> None:
        self.kind = kind
        self.bucket = bucket
        self.costs = costs
        self.cut = kind.max_units is not None
        self.test = 0
        self.jobs = self.finished = self.round = self.units = 0
        self.length = 1
        self.need_s = 0.0

    def gains(self, length: int) -> bool:
        """Whether a batch of it is worth waiting for."""
        if self.kind.max_batch == 1:
            return False
        alone_s = self.costs.estimate(1, length)
        return self.costs.estimate(2, length) - alone_s <= alone_s * CHEAP_COMPANY

    def count(self, job: Job, test: int) -> float:
        """Add a job to what is needed; returns by how much that grew, in seconds.

        More jobs than fit one quantum go in rounds of as many as fit, each as long as its longest job.
        """
        if self.test != test:
            self.test = test
            self.jobs = self.finished = self.round = self.units = 0
            self.length = 1
            self.need_s = 0.0
        max_batch = self.kind.max_batch
        if self.cut:
            self.jobs += 1
            self.units += job.units * job.remaining
            need_s = self.costs.estimate(min(self.jobs, max_batch), self.units)
        else:
            if self.jobs and self.jobs % max_batch == 0:
                self.finished += self.round
                self.round = 0
            self.jobs += 1
            if job.remaining > self.round:
                self.round = job.remaining
            if job.length > self.length:
                self.length = job.length
            batch = self.jobs if self.jobs < max_batch else max_batch
            need_s = (self.finished + self.round) * self.costs.estimate(batch, self.length)
        grown_s = need_s - self.need_s
        if grown_s <= 0.0:
            return 0.0
        self.need_s = need_s
        return grown_s

    def need_at_width(self, members: int) -> float:
        """What is needed of the group so far if every quantum is as wide as so many members make it."""
        if self.cut:
            return self.need_s
        return (self.finished + self.round) * self.costs.estimate(min(members, self.kind.max_batch), self.length)


@dataclass(slots=True, eq=False)
class Job:
    key: Key
    group: Group
    priority: Priority
    deadline: float
    """As the workload named it."""
    due: float
    """As the policy takes it: infinite for speculation only."""
    units: int
    length: int
    remaining: int
    holds: bool = False
    """It holds an instance of its kind's pool."""
    spent: bool = False
    """It had all the quanta it asked for and has not been advanced since."""


class Quantum:
    """The quantum being put together."""

    __slots__ = ("_costs", "_room", "_seconds", "_units", "jobs", "kind", "length")

    def __init__(self, head: Job, room: int) -> None:
        self.kind = head.group.kind
        self.jobs = [head]
        self.length = head.length
        self._costs = head.group.costs
        self._units = head.units
        self._room = room
        self._seconds = self._costs.estimate(1, head.length)

    def widen(self, job: Job, slack_s: float) -> float:
        """Add a job of the group if it has room and makes the quantum longer by no more than ``slack_s``. Returns by
        how much, or 0."""
        kind = self.kind
        batch = len(self.jobs) + 1
        if batch > kind.max_batch or not (kind.pool is None or job.holds or self._room > 0):
            return 0.0
        length = self.length
        if kind.max_units is not None:
            if self._units + job.units > kind.max_units:
                return 0.0
            length += job.length
        elif job.length > length:
            length = job.length
        seconds = self._costs.estimate(batch, length)
        longer_s = seconds - self._seconds
        if longer_s > slack_s:
            return 0.0
        self.jobs.append(job)
        self._units += job.units
        self._room -= not job.holds
        self.length, self._seconds = length, seconds
        return max(0.0, longer_s)

    def cut_to(self, seconds: float) -> int:
        """How many units it may take to last no longer than that, as far as is known."""
        bound = self.kind.max_units
        assert bound is not None
        if self._costs.estimate(len(self.jobs), min(self.length, bound)) <= seconds:
            return bound
        units = LEAST_UNITS
        while units * 2 <= bound and self._costs.estimate(len(self.jobs), units * 2) <= seconds:
            units *= 2
        return min(units, bound)
