"""The words of the scheduler: kinds of quantum, names of jobs, one choice."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    """What the units of the jobs of one quantum add up to at most (prefill: tokens). A kind with such a bound can be
    cut: :attr:`Choice.max_units` says how much of it one quantum may do."""
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
    max_units: int | None = field(default=None, compare=False)
    """How many units the quantum may take of its jobs, in their order; None for kinds that can't be cut. Always a
    power of two or the kind's own bound, so that shapes stay few."""
    length: int = field(default=1, compare=False)
    """What its cost depends on beside the batch: see :meth:`engines.executor.costs.Costs.estimate`."""

    @property
    def owner(self) -> str:
        return self.kind.owner
