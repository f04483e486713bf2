"""What runs on the executor's thread, and what the executor tells about itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from engines.api import Overload
from engines.executor import device
from engines.executor.cache import ClearCacheGuard
from engines.executor.policy import Agenda, Choice
from engines.executor.pulse import Pulse, QuantaOfKind

EVICTED = "overloaded"
"""What :meth:`Workload.abandon` is told of jobs that had to make way on a full agenda: they were never run."""


class ExecutorUnavailableError(Exception):
    """The executor takes no work. ``code``: ``executor_dead``, ``executor_closed`` or ``overloaded``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class WrongThreadError(RuntimeError):
    """Code that touches MLX was called on another thread: a defect."""


class Workload(Protocol):
    """The thread-side half of an engine. Everything is called on the executor's thread."""

    @property
    def name(self) -> str:
        """The ``owner`` of its jobs on the agenda."""

    @property
    def open_streams(self) -> int:
        """How many decoders hold state between evals now."""

    def settle(self) -> None:
        """The inbox was drained: act on cancels together."""

    def quantum(self, choice: Choice) -> None:
        """Do one bounded burst of work."""

    def abandon(self, choice: Choice, message: str) -> None:
        """:meth:`quantum` raised: fail the jobs it served and be ready for others. With the message
        :data:`EVICTED`, the jobs lost their place on the agenda to more urgent ones."""

    def close(self) -> None:
        """Drop every row, cache and weight."""


@runtime_checkable
class Counted(Protocol):
    """A workload that has figures of its own for the metrics. Called on the thread."""

    def snapshot(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The executor a moment ago, for metrics and the console. Never older than a beat while the thread lives."""

    jobs: int = 0
    late_ms: float = 0.0
    """How far the job that is latest is past the time it is due."""
    open_streams: int = 0
    active_bytes: int = 0
    cache_bytes: int = 0
    overload: Overload = Overload.NONE
    overruns: int = 0
    deliveries_failed: int = 0
    clear_cache_requests: int = 0
    clear_cache_served: int = 0
    clear_cache_holds_given_up: int = 0
    quanta: Mapping[str, QuantaOfKind] = field(default_factory=dict)
    """By kind of all workloads."""
    between: QuantaOfKind = field(default_factory=QuantaOfKind)
    """The thread's stretches of work outside of quanta."""
    workloads: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def busy_s(self) -> float:
        """What the thread has worked since the start."""
        return self.between.seconds + sum(quanta.seconds for quanta in self.quanta.values())

    @classmethod
    def of(
        cls,
        agenda: Agenda,
        workloads: Iterable[Workload],
        pulse: Pulse,
        guard: ClearCacheGuard,
        deliveries_failed: int,
        now: float,
    ) -> Snapshot:
        """Taken on the thread."""
        workloads = list(workloads)
        memory = device.memory()
        return cls(
            jobs=len(agenda),
            late_ms=1000 * agenda.late_s(now),
            open_streams=sum(workload.open_streams for workload in workloads),
            active_bytes=memory["active_bytes"],
            cache_bytes=memory["cache_bytes"],
            overload=agenda.overload(now),
            overruns=pulse.overruns,
            deliveries_failed=deliveries_failed,
            clear_cache_requests=guard.requests,
            clear_cache_served=guard.served,
            clear_cache_holds_given_up=guard.holds_given_up,
            quanta=pulse.quanta(),
            between=pulse.between,
            workloads={
                workload.name: dict(workload.snapshot()) for workload in workloads if isinstance(workload, Counted)
            },
        )
