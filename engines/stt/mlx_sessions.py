"""Streaming transcription sessions of mlx-audio on the executor's thread, one a caller's utterance, stepped in turn.

A session (:class:`mlx_audio.stt.streaming.StreamingSession`) takes audio as it comes and gives words that it never
takes back; its end is a flush, after which it is of no use. But a final is asked for at every pause, and the caller may
go on. So a final flushes a copy of the session: a fork shares the weights and copies the state, and the session itself
goes on as if nothing had been asked. Very long speech is cut at a quiet block into one session after another.

Sources: the session contract of mlx-audio 0.6 (``feed``, ``step``, ``close``, ``done``).
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from engines.api import EngineError, Pcm16
from engines.executor.policy import Choice, Key, Kind
from engines.executor.thread import MlxExecutor
from engines.executor.workload import EVICTED
from streaming.audio.level import rms_dbfs
from streaming.jobs import (
    INPUT_RATE_HZ,
    FinalizeTranscription,
    FinalTranscript,
    OpenTranscription,
    PartialTranscript,
    Priority,
    Transcript,
    TranscriptionFailed,
)

_PARTIAL_WORTH_S = 0.6
_QUIET_DBFS = -45.0
_WARM_S = 3
_WARM_STEPS = 2000

_log = structlog.get_logger(__name__)

Deliver = Callable[[int, Transcript], None]


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """``cut_s``: from here on a session ends at the next quiet block; at ``longest_s`` it ends anywhere."""

    feed_samples: int
    tokens_per_quantum: int
    waiting_samples: int
    cut_samples: int
    longest_samples: int
    delay_ms: int | None


class WaitingAudio:
    """Audio on its way from the loop, which pushes, to the thread, which takes. Bounded: beyond ``limit_samples`` the
    oldest is given up. Positions count the utterance's samples."""

    def __init__(self, limit_samples: int) -> None:
        self._limit = limit_samples
        self._lock = threading.Lock()
        self._blocks: deque[Pcm16] = deque()
        self._waiting = 0
        self.pushed = 0
        self.dropped = 0

    @property
    def taken(self) -> int:
        """Where the next block begins."""
        with self._lock:
            return self.pushed - self._waiting

    def push(self, pcm: Pcm16) -> bool:
        """False when older audio had to be given up for it."""
        kept = np.array(pcm[-self._limit :], np.int16)
        with self._lock:
            self.pushed += pcm.size
            self._blocks.append(kept)
            self._waiting += kept.size
            before = self.dropped
            while self._waiting > self._limit:
                gone = self._blocks.popleft()
                self._waiting -= gone.size
                self.dropped += gone.size
            return self.dropped == before

    def take(self, samples: int) -> Pcm16:
        """Up to so many."""
        parts: list[Pcm16] = []
        with self._lock:
            while self._blocks and samples > 0:
                head = self._blocks.popleft()
                if head.size > samples:
                    self._blocks.appendleft(head[samples:])
                    head = head[:samples]
                parts.append(head)
                samples -= head.size
                self._waiting -= head.size
        return np.concatenate(parts) if parts else np.zeros(0, np.int16)


@dataclass(eq=False, slots=True)
class _Wanted:
    """A final asked for when ``upto`` samples had been fed. ``fork`` is the flush under way, ``text`` its words."""

    request: FinalizeTranscription
    upto: int
    fork: Any = None
    text: str = ""


@dataclass(eq=False, slots=True)
class _Stream:
    serial: int
    key: Key
    opened: OpenTranscription
    audio: WaitingAudio
    session: Any = None
    ending: bool = False
    """The session was closed, and is stepped to its end."""
    in_session: int = 0
    text: str = ""
    """The session's words so far."""
    committed: list[str] = field(default_factory=list)
    wanted: _Wanted | None = None
    answered: tuple[int, str] | None = None
    """Up to where the last final heard, and its words."""
    shown: str = ""
    stirred: bool = False
    """The last step brought words, so there may be more."""

    def whole(self, text: str) -> str:
        return " ".join(part for part in [*self.committed, text.strip()] if part)

    def commit(self) -> None:
        """The session is over: its words stand, and the next audio opens another."""
        if self.text.strip():
            self.committed.append(self.text.strip())
        self.session, self.ending, self.in_session, self.text = None, False, 0, ""


class Sessions:
    """A :class:`engines.executor.thread.Workload`. Made anywhere; every method is for the executor's thread, except
    :meth:`key_of`. ``deliver(serial, transcript)`` is called on the loop."""

    def __init__(self, executor: MlxExecutor, limits: SessionLimits, deliver: Deliver) -> None:
        self._executor = executor
        self._limits = limits
        self._deliver = deliver
        self._streams: dict[Key, _Stream] = {}
        self._model: Any = None
        self._languages: dict[str, str] | None = None
        self._name = f"stt-{id(self):x}"
        self._start = Kind(self._name, "start", opens_stream=True)
        self._step = Kind(self._name, "transcribe")

    @property
    def name(self) -> str:
        return self._name

    @property
    def open_streams(self) -> int:
        """Sessions and forks alive: each holds caches between its steps."""
        return sum(
            (stream.session is not None) + (stream.wanted is not None and stream.wanted.fork is not None)
            for stream in self._streams.values()
        )

    def load(self, model_dir: Path) -> frozenset[str] | None:
        """Load, warm and attach. Returns the languages the model takes, None for any."""
        self._executor.require_thread()
        import mlx.core as mx
        from mlx_audio.stt.utils import load_model

        # Without parts of its name to guess from: a folder's name would win over the type that its config states.
        self._model = load_model(model_dir, model_name_parts=[])
        mx.eval(self._model.parameters())
        if not hasattr(self._model, "create_streaming_session"):
            raise EngineError("bad_weights", f"{model_dir} is no model with streaming sessions")
        self._languages = _languages_of(self._model)
        self._executor.attach(self)  # first, so that a failed warm-up is closed like everything else
        self._warm()
        return None if self._languages is None else frozenset(self._languages)

    def detach(self) -> None:
        self._executor.detach(self)

    def close(self) -> None:
        self._executor.require_thread()
        for key in self._streams:
            self._executor.agenda.drop(key)
        self._streams.clear()
        self._model = None

    def key_of(self, serial: int, opened: OpenTranscription) -> Key:
        """Where the utterance is on the agenda."""
        return Key(self._name, opened.call, opened.utterance, serial)

    # --- what the loop posts ----------------------------------------------------------------------------------

    def open(self, serial: int, opened: OpenTranscription, audio: WaitingAudio) -> None:
        """Know of an utterance. Its session begins with its audio."""
        self._executor.require_thread()
        if self._model is not None:
            key = self.key_of(serial, opened)
            self._streams[key] = _Stream(serial, key, opened, audio)

    def wake(self, key: Key) -> None:
        """There is audio. A stream on the agenda keeps its deadline: more audio is no reason to wait longer."""
        stream = self._streams.get(key)
        if stream is not None and key not in self._executor.agenda:
            self._schedule(stream)

    def finalize(self, key: Key, request: FinalizeTranscription, upto: int) -> None:
        """Answer with all words up to a position. What was wanted before is worthless now."""
        stream = self._streams.get(key)
        if stream is None:
            return
        wanted = stream.wanted
        if stream.answered is not None and stream.answered[0] == upto:
            stream.wanted = None
            self._emit(stream, FinalTranscript(request.utterance, request.revision, stream.answered[1]))
        elif wanted is not None and wanted.upto == upto:
            wanted.request = request
        else:
            stream.wanted = _Wanted(request, upto)
        self._schedule(stream)

    def forget(self, key: Key) -> None:
        self._executor.agenda.drop(key)
        self._streams.pop(key, None)

    # --- the executor's side ----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Nothing is put off: a forgotten stream has left no batch."""

    def quantum(self, choice: Choice) -> None:
        self._executor.require_thread()
        stream = self._streams[choice.keys[0]]
        if stream.wanted is not None and stream.wanted.fork is not None:
            self._flush(stream, stream.wanted)
        else:
            self._hear(stream)
        self._schedule(stream)

    def abandon(self, choice: Choice, message: str) -> None:
        """The stream's session is broken: its words stand, a final that waits fails, later audio gets a new session.
        One that lost its place to more urgent work keeps its session, and is back with the next audio."""
        stream = self._streams.get(choice.keys[0])
        if stream is None:
            return
        code = "overloaded" if message == EVICTED else "decode_failed"
        wanted, stream.wanted = stream.wanted, None
        if wanted is not None:
            request = wanted.request
            self._emit(stream, TranscriptionFailed(request.utterance, request.revision, code, message))
        if message != EVICTED:
            stream.commit()
            self._schedule(stream)

    # --- one quantum ------------------------------------------------------------------------------------------

    def _hear(self, stream: _Stream) -> None:
        # First: audio that breaks whatever hears it is gone, and not tried for ever.
        block = np.zeros(0, np.int16) if stream.ending else self._next_block(stream)
        if stream.session is None:
            stream.session = self._new_session(stream.opened.language)
        if block.size:
            stream.session.feed(block.astype(np.float32) / 32768.0)
            stream.in_session += block.size
        deltas = stream.session.step(max_decode_tokens=self._limits.tokens_per_quantum)
        stream.text += "".join(deltas)
        stream.stirred = bool(deltas)
        if stream.session.done:
            stream.commit()
        elif not stream.ending and self._is_long(stream, block):
            stream.session.close()
            stream.ending = True
        wanted = stream.wanted
        if wanted is None:
            self._show(stream)
        elif not stream.ending and stream.audio.taken >= wanted.upto and stream.session is not None:
            wanted.fork = _fork(stream.session)
            wanted.fork.close()
            wanted.text = stream.text

    def _next_block(self, stream: _Stream) -> Pcm16:
        room = self._limits.feed_samples
        if stream.wanted is not None:
            room = min(room, max(0, stream.wanted.upto - stream.audio.taken))
        return stream.audio.take(room)

    def _is_long(self, stream: _Stream, block: Pcm16) -> bool:
        if stream.in_session >= self._limits.longest_samples:
            return True
        return stream.in_session >= self._limits.cut_samples and block.size > 0 and rms_dbfs(block) < _QUIET_DBFS

    def _flush(self, stream: _Stream, wanted: _Wanted) -> None:
        wanted.text += "".join(wanted.fork.step(max_decode_tokens=self._limits.tokens_per_quantum))
        if wanted.fork.done:
            self._answer(stream, wanted, stream.whole(wanted.text))

    def _answer(self, stream: _Stream, wanted: _Wanted, text: str) -> None:
        stream.wanted = None
        stream.answered = (wanted.upto, text)
        stream.shown = text
        self._emit(stream, FinalTranscript(wanted.request.utterance, wanted.request.revision, text))

    def _show(self, stream: _Stream) -> None:
        text = stream.whole(stream.text)
        # A session lags behind the flush of its copy: what was told already is not told again, shorter.
        if stream.opened.partials and not stream.shown.startswith(text):
            stream.shown = text
            self._emit(stream, PartialTranscript(stream.opened.utterance, text))

    def _schedule(self, stream: _Stream) -> None:
        """Put the stream on the agenda as what it needs next, or take it off."""
        wanted, agenda = stream.wanted, self._executor.agenda
        waiting = stream.audio.taken < stream.audio.pushed
        if wanted is not None and stream.session is None and stream.audio.taken >= wanted.upto:
            self._answer(stream, wanted, stream.whole(""))
            wanted = None
        more = stream.session is not None and (stream.ending or stream.stirred)
        if wanted is None and not waiting and not more:
            agenda.drop(stream.key)
            return
        now = self._executor.now()
        kind = self._start if stream.session is None else self._step
        priority, deadline = Priority.PARTIAL, now + _PARTIAL_WORTH_S
        if wanted is not None:
            priority, deadline = wanted.request.priority, wanted.request.deadline
        if stream.key not in agenda:
            agenda.add(stream.key, kind, priority, deadline, now)
            return
        agenda.advance(stream.key, kind)
        agenda.move(stream.key, now, priority=priority, deadline=deadline)

    def _new_session(self, language: str) -> Any:
        wished: dict[str, Any] = {"temperature": 0.0, "transcription_delay_ms": self._limits.delay_ms}
        if self._languages is not None:
            wished["language"] = self._languages.get(language)
        create = self._model.create_streaming_session
        taken = inspect.signature(create).parameters
        return create(**{name: value for name, value in wished.items() if name in taken})

    def _warm(self) -> None:
        """One utterance of noise to its end, with a fork on the way."""
        session = self._new_session("en")
        if session.input_sample_rate != INPUT_RATE_HZ:
            raise EngineError("bad_weights", f"the model wants audio at {session.input_sample_rate} Hz")
        noise = np.random.default_rng(0).standard_normal(_WARM_S * INPUT_RATE_HZ).astype(np.float32) * 0.01
        session.feed(noise)
        for each in (session, _fork(session)):
            each.close()
            for _ in range(_WARM_STEPS):
                if each.done:
                    break
                each.step(max_decode_tokens=self._limits.tokens_per_quantum)

    def _emit(self, stream: _Stream, transcript: Transcript) -> None:
        self._executor.emit(partial(self._deliver, stream.serial, transcript))


def _fork(session: Any) -> Any:
    """A copy of a session's state that shares everything the model holds: weights, filters, vocabulary."""
    shared: dict[int, Any] = {}
    for module in session.model.modules():
        for value in (module, *module.values(), *vars(module).values()):
            shared[id(value)] = value
    for value in vars(session).values():
        if isinstance(value, type(threading.Lock())):
            shared[id(value)] = threading.Lock()
    return copy.deepcopy(session, shared)


def _languages_of(model: Any) -> dict[str, str] | None:
    """The model's own name of each language it can be told to expect ("en" -> "en-US"); None if it takes any."""
    names: list[str] = sorted(getattr(model, "prompt_dictionary", None) or {})
    default = getattr(model, "default_language", None)
    if not names:
        return None if default in (None, "auto") else {default.split("-")[0].lower(): default}
    languages: dict[str, str] = {}
    for name in names:
        if name != "auto":
            languages.setdefault(name.split("-")[0].lower(), name)
    if isinstance(default, str) and default != "auto":
        languages[default.split("-")[0].lower()] = default
    for name in ("en-US", "de-DE", "fr-FR", "es-ES", "pt-BR"):  # of several, the one most callers speak
        if name in names:
            languages[name.split("-")[0]] = name
    return languages or None
