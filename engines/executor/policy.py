"""What a lane runs next. Pure: no clock, no thread, no model.

Work runs as quanta that are not preempted. The rules, in order:

1. Live work before speculative work: a speculative job gets a quantum only when no live one could use it. (A
   speculative row that already decodes rides along with a live batch: one step serves all rows.)
2. The families take turns: a prompt that joins costs running decodes one quantum at a time, and the reverse.
3. Within a family: :class:`~streaming.jobs.Priority`, then deadline. A job that has been there for ``patience_s``
   goes before those that have not, the oldest first, so no stream of newer jobs holds it up for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from streaming.jobs import Priority


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of quantum of one workload, and how jobs share one. A workload makes each of its kinds once."""

    owner: str
    """The workload's name, and so the model's: costs are learned by it."""
    name: str
    """``load``, ``start``, ``prefill``, ``decode``, ``encode``, ``transcribe``, ``speak``, ``chunk``."""
    max_batch: int = 1
    """Jobs in one quantum at most."""
    max_units: int | None = None
    """What the units of the jobs of one quantum add up to at most (prefill: tokens)."""
    alike: bool = False
    """Only jobs of one bucket share a quantum (padded shapes)."""
    opens_stream: bool = False
    """It begins a decoder that holds state between evals: held back while a cache clear waits for quiet."""
    pool: str | None = None
    """The exclusive resource (a model instance with an open stream) that a job holds from its first quantum of such a
    kind until it is dropped. :meth:`Agenda.set_pool` says how many there are."""


@dataclass(frozen=True, slots=True)
class Key:
    """Names a job. ``owner`` is the workload it belongs to; ``part`` tells jobs of one epoch apart (a segment of
    speech, a revision of a transcript)."""

    owner: str
    call: str
    epoch: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """One quantum: its kind and the jobs it serves, the most urgent first."""

    kind: Kind
    keys: tuple[Key, ...]

    @property
    def owner(self) -> str:
        return self.kind.owner


@dataclass(slots=True)
class _Job:
    key: Key
    kind: Kind
    priority: Priority
    deadline: float
    since: float
    units: int = 1
    bucket: int = 0
    remaining: int = 1


@dataclass(slots=True)
class _Pool:
    size: int
    holders: set[Key] = field(default_factory=set)


class Agenda:
    """The jobs alive, and the choice among them. All times are seconds on the caller's clock.

    ``units`` is a job's share of its next quantum (tokens to prefill, phonemes, frames; 1 for a decode step),
    ``bucket`` the padded shape it runs in, ``remaining`` how many quanta like it the job still needs before its
    deadline is met, this one included (a decode: the tokens to the end of the clause).
    """

    def __init__(self, patience_s: float = 2.0) -> None:
        self._patience_s = patience_s
        self._jobs: dict[Key, _Job] = {}
        self._pools: dict[str, _Pool] = {}
        self._quanta = 0
        self._last_quantum: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, key: Key) -> bool:
        return key in self._jobs

    def set_pool(self, pool: str, size: int) -> None:
        """How many jobs may hold the exclusive resource of that name at once."""
        self._pools[pool] = _Pool(size)

    def held(self) -> Mapping[str, int]:
        """How many of each pool are in use."""
        return {name: len(pool.holders) for name, pool in self._pools.items()}

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
        """A new job; one of that key must not be there."""
        if key in self._jobs:
            raise ValueError(f"{key} is already on the agenda")
        self._jobs[key] = _Job(key, kind, priority, deadline, now, units, bucket, remaining)

    def advance(self, key: Key, kind: Kind, *, units: int = 1, bucket: int = 0, remaining: int = 1) -> None:
        """The job's next quantum is of this kind."""
        job = self._jobs[key]
        job.kind, job.units, job.bucket, job.remaining = kind, units, bucket, remaining

    def move(self, key: Key, now: float, *, priority: Priority | None = None, deadline: float | None = None) -> None:
        """Give a job another class or deadline. Unknown keys are ignored: the job may just have ended."""
        job = self._jobs.get(key)
        if job is None:
            return
        if priority is not None:
            job.priority, job.since = priority, now
        if deadline is not None:
            job.deadline = deadline

    def drop(self, key: Key) -> None:
        """The job ended or was cancelled: it is chosen no more, and what it held is free. Unknown keys are ignored."""
        self._jobs.pop(key, None)
        for pool in self._pools.values():
            pool.holders.discard(key)

    def choose(self, now: float, *, hold_streams: bool = False) -> Choice | None:
        """The next quantum, or None when nothing can run. ``hold_streams`` leaves unopened streams waiting."""
        ready = [job for job in self._jobs.values() if self._may_run(job, hold_streams)]
        pool = [job for job in ready if job.priority is not Priority.SPECULATIVE] or ready
        if not pool:
            return None
        best = min(pool, key=lambda job: (self._last_quantum.get(self._family(job), 0), self._urgency(job, now)))
        self._quanta += 1
        self._last_quantum[self._family(best)] = self._quanta
        chosen = [best]
        for job in sorted(ready, key=lambda job: self._urgency(job, now)):
            if job is not best and self._may_share(job, chosen):
                chosen.append(job)
        for job in chosen:
            if job.kind.pool is not None:
                self._pools[job.kind.pool].holders.add(job.key)
        return Choice(best.kind, tuple(job.key for job in chosen))

    def _may_run(self, job: _Job, hold_streams: bool) -> bool:
        if hold_streams and job.kind.opens_stream:
            return False
        if job.kind.pool is None:
            return True
        pool = self._pools[job.kind.pool]
        return job.key in pool.holders or len(pool.holders) < pool.size

    def _may_share(self, job: _Job, chosen: list[_Job]) -> bool:
        first = chosen[0]
        kind = first.kind
        if job.kind != kind or len(chosen) >= kind.max_batch or (kind.alike and job.bucket != first.bucket):
            return False
        if kind.max_units is not None and sum(one.units for one in chosen) + job.units > kind.max_units:
            return False
        if kind.pool is None:
            return True
        pool = self._pools[kind.pool]
        new = {one.key for one in [*chosen, job]} - pool.holders
        return len(pool.holders) + len(new) <= pool.size

    @staticmethod
    def _family(job: _Job) -> tuple[str, str]:
        return (job.kind.owner, "prompt" if job.kind.name in ("start", "prefill") else job.kind.name)

    def _urgency(self, job: _Job, now: float) -> tuple[bool, float, float]:
        if now - job.since >= self._patience_s:
            return (False, job.since, 0.0)
        return (True, job.priority, job.deadline)
