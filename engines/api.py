"""What an engine of each kind must offer.

All methods are called on the event loop's thread, return at once, and answer through ``deliver``, which an engine
calls on that same thread (from its workers by ``loop.call_soon_threadsafe``). Nothing is delivered for a call and
epoch after it was cancelled, nor for a stream after it was closed. A failure is delivered as the job's ``*Failed``
struct with a code; an engine never raises out of these methods for bad content. Errors in loading are raised by
:meth:`Engine.start`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from streaming.jobs import (
    EndOfTurnScored,
    FinalizeTranscription,
    Generate,
    Generation,
    OpenTranscription,
    ScoreEndOfTurn,
    Synthesis,
    Synthesize,
    Transcript,
)

if TYPE_CHECKING:
    from engines.registry import BackendSpec

Pcm16 = npt.NDArray[np.int16]
"""Mono samples, shape (n,), int16."""


class EngineError(Exception):
    """An engine could not be loaded or started. ``code`` is stable, the message is for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Engine(Protocol):
    """The life of every engine."""

    async def start(self) -> None:
        """Load and warm every shape bucket, off the event loop. Raises :class:`EngineError`."""

    async def close(self) -> None:
        """Cancel what runs, join every thread, free the weights. Safe to call twice, and after a failed start."""


class VadStream(Protocol):
    """The voice activity of one call: holds the model's recurrent state."""

    @property
    def backlog_samples(self) -> int:
        """Samples fed and not yet scored; a feeder that sees this grow must wait (no call may hoard memory)."""

    def feed(self, pcm: Pcm16) -> None:
        """Audio at 16 kHz, any length, in order."""

    def close(self) -> None: ...


class VoiceActivityDetector(Engine, Protocol):
    def open(self, deliver: Callable[[float, int], None]) -> VadStream:
        """Begin a call. ``deliver(probability, end_samples)`` comes once a window of 512 samples, in order;
        ``end_samples`` counts the call's samples up to the window's end."""


class EndOfTurnDetector(Engine, Protocol):
    def score(self, request: ScoreEndOfTurn, pcm: Pcm16, deliver: Callable[[EndOfTurnScored], None]) -> None:
        """``pcm`` is the audio between the request's two positions, 16 kHz. On failure nothing is delivered: the
        session falls back to silence."""


class TranscriptionStream(Protocol):
    """One utterance."""

    def feed(self, pcm: Pcm16) -> None:
        """Audio at 16 kHz in order, in blocks of about 100 ms (any length is taken)."""

    def finalize(self, request: FinalizeTranscription) -> None:
        """Deliver a :class:`FinalTranscript` of all audio fed so far. May be called again after more audio; a newer
        revision makes an older one that has not begun worthless, and it need not be delivered."""

    def close(self) -> None:
        """Forget the utterance; nothing is delivered after this."""


class SpeechToText(Engine, Protocol):
    def open(self, request: OpenTranscription, deliver: Callable[[Transcript], None]) -> TranscriptionStream: ...


class LanguageModel(Engine, Protocol):
    def generate(self, request: Generate, deliver: Callable[[Generation], None]) -> None: ...

    def prioritize(self, call: str, epoch: int) -> None:
        """A speculative generation was promoted: run it as a live one from now on. Unknown epochs are ignored."""

    def postpone(self, call: str, epoch: int, until: float) -> None:
        """Speech is there or under way: the reply's next words are not needed before ``until`` (monotonic seconds).
        Until then others may go first. Unknown epochs are ignored."""

    def cancel(self, call: str, epoch: int) -> None:
        """Stop at the next step. Unknown or finished epochs are ignored."""

    def forget(self, call: str) -> None:
        """The call ended: cancel its epochs and free its cache."""


class TextToSpeech(Engine, Protocol):
    @property
    def rate_hz(self) -> int:
        """The rate of every chunk this engine makes."""

    @property
    def voices(self) -> tuple[str, ...]:
        """Names accepted as :attr:`Synthesize.voice`; the first is the default."""

    def synthesize(self, request: Synthesize, deliver: Callable[[Synthesis], None]) -> None: ...

    def cancel(self, call: str, epoch: int) -> None: ...


class Overload(enum.IntEnum):
    """How far the engines are behind. Each level includes those below it; calls that are up are never degraded
    further than the shape of their replies."""

    NONE = 0
    NO_SPECULATION = 1
    """Start no work for turns that may not have ended."""
    SHORT_CLAUSES = 2
    """Cut the first clause of a reply earlier: less speech to make before the caller hears anything."""
    REFUSE_CALLS = 3
    """Take no further calls."""


@dataclass(frozen=True, slots=True)
class LaneHealth:
    """One queue of jobs and what works it off: a CPU lane, or an MLX executor."""

    slots: int
    """Jobs that can be worked on at once."""
    waiting: int
    running: int
    late_ms: float
    """How far its latest job is past the time it should have been served by."""
    busy_s: float
    """Work done since the start, over all slots. What it grows by in a second, for each slot, is the share in use."""
    overload: Overload = Overload.NONE


BackendState = Literal["up", "loading", "standing_by", "paused", "down"]
"""``standing_by``: loaded when a request needs it; ``paused``: it failed, and is left alone for a while."""


@dataclass(frozen=True, slots=True)
class BackendHealth:
    """One backend of a stage. ``host`` is where it runs, None: in this process."""

    stage: str
    name: str
    state: BackendState
    host: str | None = None


@dataclass(frozen=True, slots=True)
class HostHealth:
    """One place where engines run, as operators see it."""

    up: bool
    restarts: int = 0
    memory_bytes: int = 0
    """Physical memory of the host's process; 0 where it is this process."""
    device_bytes: int = 0
    """Of a GPU, or of unified memory, that MLX holds."""
    waiting: int = 0
    """Jobs that wait for a quantum or a slot."""
    pid: int | None = None
    reason: str = ""
    """Why it is not up."""
    lanes: Mapping[str, LaneHealth] = field(default_factory=lambda: MappingProxyType({}))
    cpu_s: float = 0.0
    """User and system CPU time of the host's process since it began; 0 where it is this process."""


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """Whether a set of engines can serve a call now. ``reason`` is for a person, and empty when ``healthy``."""

    healthy: bool
    reason: str = ""
    overload: Overload = Overload.NONE
    takes_calls: bool = True
    """False when a stage has nobody to do it: a new call could hear nothing but apologies."""
    hosts: Mapping[str, HostHealth] = field(default_factory=lambda: MappingProxyType({}))
    failed_requests: Mapping[tuple[str, str], int] = field(default_factory=lambda: MappingProxyType({}))
    """By stage and backend, where another stands behind it: what it failed, which a caller need not have noticed."""
    backends: Sequence[BackendHealth] = ()
    """In the order in which those of a stage are asked."""
    lanes: Mapping[str, LaneHealth] = field(default_factory=lambda: MappingProxyType({}))
    """Those of this process: ``cpu``, ``mlx``."""


HEALTHY = EngineHealth(healthy=True)


class Place(Protocol):
    """Where engines run: in this process, or in child processes."""

    def engine(self, spec: BackendSpec, weights: Sequence[Path]) -> Engine:
        """The engine of ``spec``, neither loaded nor started. ``weights`` are the folders of ``spec.weights`` in
        order. Raises :class:`EngineError` (``missing_extra``)."""

    async def close(self) -> None:
        """Free what the engines shared; they were closed before. Safe to call twice."""


@dataclass(frozen=True, slots=True)
class EngineSet:
    """One preset's engines, shared by all calls of the process."""

    vad: VoiceActivityDetector
    turn: EndOfTurnDetector | None
    stt: SpeechToText
    llm: LanguageModel
    tts: TextToSpeech
    health: Callable[[], EngineHealth] = lambda: HEALTHY
    """Asked often (before every call, at the start of every reply): must be quick."""
