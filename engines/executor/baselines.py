"""What the policy is measured against: first in, first out, and a global lock. The interface of the Agenda."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from engines.executor.kinds import Choice, Key, Kind
from streaming.jobs import Priority


@dataclass(slots=True)
class _Job:
    kind: Kind
    units: int
    bucket: int
    ready_at: int

    @property
    def length(self) -> int:
        return self.bucket if self.kind.alike else self.units


class Fifo:
    """The same quanta and the same batches, served in the order in which each became ready: a job that had a quantum
    goes to the back of the queue with its next. All that fit share a quantum, whatever it costs."""

    def __init__(self) -> None:
        self._jobs: dict[Key, _Job] = {}
        self._readied = 0

    def __len__(self) -> int:
        return len(self._jobs)

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
        self._jobs[key] = _Job(kind, units, bucket, self._ready())

    def advance(self, key: Key, kind: Kind, *, units: int = 1, bucket: int = 0, remaining: int = 1) -> None:
        self._jobs[key] = _Job(kind, units, bucket, self._ready())

    def move(self, key: Key, now: float, *, deadline: float | None = None) -> None:
        """Deadlines mean nothing here."""

    def drop(self, key: Key) -> None:
        self._jobs.pop(key, None)

    def observe(self, choice: Choice, seconds: float) -> None:
        """Nothing is learned."""

    def choose(self, now: float) -> Choice | None:
        if not self._jobs:
            return None
        order = sorted(self._jobs.items(), key=lambda item: item[1].ready_at)
        first = order[0][1]
        kind, units = first.kind, 0
        keys: list[Key] = []
        for key, job in order:
            if job.kind is not kind or (kind.alike and job.bucket != first.bucket):
                continue
            if len(keys) == kind.max_batch:
                break
            if keys and kind.max_units is not None and units + job.units > kind.max_units:
                break
            keys.append(key)
            units += job.units
        for key in keys:
            self._jobs[key].ready_at = self._ready()
        length = units if kind.max_units is not None else first.length
        return Choice(kind, tuple(keys), kind.max_units, length)

    def _ready(self) -> int:
        self._readied += 1
        return self._readied


class Lock:
    """A global lock, as in Hugging Face speech-to-speech: each stage of a turn (the transcription, the whole reply, one
    segment's synthesis) takes it whole, in order of asking, and nothing is batched."""

    def __init__(self) -> None:
        self._jobs: dict[Key, _Job] = {}
        self._waiting: deque[Key] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

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
        self._jobs[key] = _Job(kind, units, bucket, 0)
        self._waiting.append(key)

    def advance(self, key: Key, kind: Kind, *, units: int = 1, bucket: int = 0, remaining: int = 1) -> None:
        self._jobs[key] = _Job(kind, units, bucket, 0)

    def move(self, key: Key, now: float, *, deadline: float | None = None) -> None:
        """Deadlines mean nothing here."""

    def drop(self, key: Key) -> None:
        if self._jobs.pop(key, None) is not None:
            self._waiting.remove(key)

    def observe(self, choice: Choice, seconds: float) -> None:
        """Nothing is learned."""

    def choose(self, now: float) -> Choice | None:
        if not self._waiting:
            return None
        holder = self._waiting[0]
        job = self._jobs[holder]
        return Choice(job.kind, (holder,), job.kind.max_units, job.length)
