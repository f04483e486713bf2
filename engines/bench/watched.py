"""A scheduler on the real thread, watched: which quanta it ran, how wide, and where all other time went."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from engines.api import Overload
from engines.executor.baselines import Fifo, Lock
from engines.executor.costs import Costs
from engines.executor.policy import Agenda, Choice, Key, Kind
from streaming.jobs import Priority

POLICIES = ("edf", "fifo", "lock")
"""Earliest deadline first as :class:`Agenda` has it; and what it is compared with."""


@dataclass(slots=True)
class Quanta:
    """Of one kind. ``jobs`` were served in all."""

    count: int = 0
    seconds: float = 0.0
    jobs: int = 0
    longest_s: float = 0.0


@dataclass(slots=True)
class Ledger:
    """The thread's time since the scheduler was put to work, on the executor's clock. Written by the thread."""

    quanta: dict[tuple[str, str], Quanta] = field(default_factory=dict)
    """By stage (``stt``, ``llm``, ``kokoro``) and kind."""
    choosing_s: float = 0.0
    between_s: float = 0.0
    """After a quantum and before the next choice: cancels, newcomers, rows that leave, results on their way."""
    longest_between_s: float = 0.0
    settling: dict[str, Quanta] = field(default_factory=dict)
    """By stage: what of ``between_s`` was rows that leave."""
    idle_s: float = 0.0

    def note_settling(self, stage: str, seconds: float) -> None:
        quanta = self.settling.setdefault(stage, Quanta())
        quanta.count += 1
        quanta.seconds += seconds
        quanta.longest_s = max(quanta.longest_s, seconds)

    @property
    def busy_s(self) -> float:
        return sum(quanta.seconds for quanta in self.quanta.values())

    def note(self, choice: Choice, seconds: float) -> None:
        stage = choice.owner.partition("-")[0]
        quanta = self.quanta.setdefault((stage, choice.kind.name), Quanta())
        quanta.count += 1
        quanta.seconds += seconds
        quanta.jobs += len(choice.keys)
        quanta.longest_s = max(quanta.longest_s, seconds)

    def rows(self, stage: str, kind: str) -> float:
        """Jobs a quantum, on average."""
        quanta = self.quanta.get((stage, kind), Quanta())
        return quanta.jobs / quanta.count if quanta.count else 0.0


class Watched(Agenda):
    """The policy of that name where the executor expects its agenda. FIFO and the lock keep no pools, no deadlines and
    no overload ladder, and open streams while a cache clear waits. For the executor's thread."""

    def __init__(self, policy: str, costs: Costs, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(costs)
        if policy not in POLICIES:
            raise ValueError(f"no policy {policy!r}: there are {', '.join(POLICIES)}")
        self._other: Fifo | Lock | None = {"edf": None, "fifo": Fifo(), "lock": Lock()}[policy]
        self._alive: set[Key] = set()
        self._clock = clock
        self._since = clock()
        self._idle = True
        self.ledger = Ledger()

    def __len__(self) -> int:
        return len(self._alive) if self._other is not None else super().__len__()

    def __contains__(self, key: Key) -> bool:
        return key in self._alive if self._other is not None else super().__contains__(key)

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
        if self._other is None:
            super().add(key, kind, priority, deadline, now, units=units, bucket=bucket, remaining=remaining)
            return
        if key in self._alive:
            raise ValueError(f"{key} is already on the agenda")
        self._alive.add(key)
        self._other.add(key, kind, priority, deadline, now, units=units, bucket=bucket, remaining=remaining)

    def advance(self, key: Key, kind: Kind, *, units: int = 1, bucket: int = 0, remaining: int = 1) -> None:
        if self._other is None:
            super().advance(key, kind, units=units, bucket=bucket, remaining=remaining)
        elif key in self._alive:
            self._other.advance(key, kind, units=units, bucket=bucket, remaining=remaining)
        else:
            raise KeyError(key)

    def move(self, key: Key, now: float, *, priority: Priority | None = None, deadline: float | None = None) -> None:
        if self._other is None:
            super().move(key, now, priority=priority, deadline=deadline)

    def drop(self, key: Key) -> None:
        if self._other is None:
            super().drop(key)
        elif key in self._alive:
            self._alive.discard(key)
            self._other.drop(key)

    def choose(self, now: float, *, hold_streams: bool = False) -> Choice | None:
        entered = self._clock()
        if self._idle:
            self.ledger.idle_s += entered - self._since
        else:
            self.ledger.between_s += entered - self._since
            self.ledger.longest_between_s = max(self.ledger.longest_between_s, entered - self._since)
        choice = super().choose(now, hold_streams=hold_streams) if self._other is None else self._other.choose(now)
        self._since = self._clock()
        self.ledger.choosing_s += self._since - entered
        self._idle = choice is None
        return choice

    def observe(self, choice: Choice, seconds: float) -> None:
        self._since = self._clock()
        self.ledger.note(choice, seconds)
        super().observe(choice, seconds)

    def overload(self, now: float) -> Overload:
        return super().overload(now) if self._other is None else Overload.NONE
