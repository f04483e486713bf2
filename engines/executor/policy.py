"""What the executor runs next. Pure: no clock, no thread, no model.

Work runs as quanta that are not preempted. The rules, in order:

1. Live work before speculative work: a speculative job gets a quantum only when no live one could use it. (A
   speculative row that already decodes rides along with a live batch: one step serves all rows.)
2. The families take turns: a prompt that joins costs running decodes one quantum at a time, and the reverse.
3. Within a family: :class:`~streaming.jobs.Priority`, then deadline. A job that has been there for ``patience_s``
   goes before those that have not, the oldest first, so no stream of newer jobs holds it up for ever.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from streaming.jobs import Priority


class Step(enum.Enum):
    """The kind of quantum a job waits for."""

    RUN = "run"
    """A function of its own: load, warm."""
    START = "start"
    """A prompt's first chunk; it opens a stream, so it can be held back."""
    PREFILL = "prefill"
    """A prompt's next chunk."""
    DECODE = "decode"
    """One token for every row of the owner's batch."""


_FAMILY = {Step.RUN: 0, Step.START: 1, Step.PREFILL: 1, Step.DECODE: 2}


@dataclass(frozen=True, slots=True)
class Key:
    """Names a job. ``owner`` is the workload it belongs to."""

    owner: str
    call: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Choice:
    """One quantum: its kind and whom it serves (several jobs of one owner for a decode step, else one)."""

    step: Step
    owner: str
    keys: tuple[Key, ...]


@dataclass(slots=True)
class _Job:
    key: Key
    step: Step
    priority: Priority
    deadline: float
    since: float


class Agenda:
    """The jobs alive, and the choice among them. All times are seconds on the caller's clock."""

    def __init__(self, patience_s: float = 2.0) -> None:
        self._patience_s = patience_s
        self._jobs: dict[Key, _Job] = {}
        self._quanta = 0
        self._last_quantum = [0, 0, 0]

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, key: Key) -> bool:
        return key in self._jobs

    def add(self, key: Key, step: Step, priority: Priority, deadline: float, now: float) -> None:
        """A new job; one of that key must not be there."""
        if key in self._jobs:
            raise ValueError(f"{key} is already on the agenda")
        self._jobs[key] = _Job(key, step, priority, deadline, now)

    def advance(self, key: Key, step: Step) -> None:
        """The job's next quantum is of this kind."""
        self._jobs[key].step = step

    def prioritize(self, key: Key, priority: Priority, now: float) -> None:
        """Change the class of a job, as if it came now. Unknown keys are ignored: the job may just have ended."""
        job = self._jobs.get(key)
        if job is not None:
            job.priority = priority
            job.since = now

    def drop(self, key: Key) -> None:
        """The job ended or was cancelled: it is chosen no more. Unknown keys are ignored."""
        self._jobs.pop(key, None)

    def choose(self, now: float, *, hold_starts: bool = False) -> Choice | None:
        """The next quantum, or None when nothing can run. ``hold_starts`` leaves unopened streams waiting."""
        ready = [job for job in self._jobs.values() if not (hold_starts and job.step is Step.START)]
        pool = [job for job in ready if job.priority is not Priority.SPECULATIVE] or ready
        if not pool:
            return None
        best = min(pool, key=lambda job: (self._last_quantum[_FAMILY[job.step]], self._urgency(job, now)))
        self._quanta += 1
        self._last_quantum[_FAMILY[best.step]] = self._quanta
        keys: tuple[Key, ...] = (best.key,)
        if best.step is Step.DECODE:
            keys = tuple(job.key for job in ready if job.step is Step.DECODE and job.key.owner == best.key.owner)
        return Choice(best.step, best.key.owner, keys)

    def _urgency(self, job: _Job, now: float) -> tuple[bool, float, float]:
        if now - job.since >= self._patience_s:
            return (False, job.since, 0.0)
        return (True, job.priority, job.deadline)
