"""The host's side: builds engines when told to, runs jobs on them, and sends back what they say.

Everything here is on the host's event loop; the engines have their threads behind it. An engine never waits for the
socket: results go into the channel's outbox, and a job whose results find it full is ended (``overloaded``).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import structlog

from engines.api import EngineError, Place
from engines.host import protocol as wire
from engines.host.channel import Channel
from engines.host.protocol import TooLargeError
from engines.registry import BackendSpec
from streaming.jobs import (
    FinalTranscript,
    GenerationDone,
    GenerationFailed,
    PartialTranscript,
    Synthesis,
    SynthesisChunk,
    SynthesisFailed,
    TranscriptionFailed,
)

CHUNK_S = 0.2
"""The longest piece of audio that is sent as one message."""
MAX_JOBS = 4096

_log = structlog.get_logger(__name__)


class _Key(NamedTuple):
    """To whom a job and its results belong: an epoch of a call, or a stream."""

    engine: int
    call: str
    epoch: int = 0
    stream: int = 0


@dataclass(eq=False, slots=True)
class _Job:
    number: int
    key: _Key
    failed: Callable[[str, str], Any]
    """The result that says so, of a code and a message."""
    stream: Any = None
    unanswered: int = 0


class HostServer:
    """Serves one gateway. ``stopped`` is set when it wants no more, or is gone; then call :meth:`close`. ``vitals`` is
    asked at every ping."""

    def __init__(self, place: Place, vitals: Callable[[], wire.Vitals]) -> None:
        self._place = place
        self._vitals = vitals
        self._channel: Channel | None = None
        self._engines: dict[int, Any] = {}
        self._jobs: dict[int, _Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._overflowed = 0
        self.stopped = asyncio.Event()
        self._handlers: dict[type, Callable[[Any], None]] = {
            wire.Load: lambda m: self._spawn(self._load(m)),
            wire.Unload: lambda m: self._spawn(self._unload(m.engine)),
            wire.OpenStream: self._open_stream,
            wire.Feed: lambda m: self._on_stream(m.job, "feed", np.frombuffer(m.pcm, "<i2").astype(np.int16)),
            wire.FinalizeStream: self._finalize,
            wire.CloseStream: self._close_stream,
            wire.StartGeneration: self._generate,
            wire.StartSynthesis: self._synthesize,
            wire.Prioritize: lambda m: self._ask(m.engine, "prioritize", m.call, m.epoch),
            wire.Postpone: lambda m: self._ask(m.engine, "postpone", m.call, m.epoch, m.until),
            wire.CancelEpoch: self._cancel,
            wire.ForgetCall: self._forget,
            wire.Ping: self._pong,
            wire.Stop: lambda _: self.stopped.set(),
        }

    def attach(self, channel: Channel) -> None:
        """Answer there. The channel calls :meth:`on_messages` and :meth:`on_lost`."""
        self._channel = channel

    def on_messages(self, messages: list[wire.ToHost]) -> None:
        for message in messages:
            try:
                self._handlers[type(message)](message)
            except Exception:  # noqa: BLE001 (one call's exception never reaches another's)
                _log.exception("a message could not be served", kind=type(message).__name__)

    def on_lost(self, error: Exception | None) -> None:
        """The gateway is gone: nobody is left to work for."""
        if error is not None:
            _log.error("the connection to the gateway broke", error=str(error))
        self.stopped.set()

    async def close(self) -> None:
        """Close every engine, the last first, then what they share."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for engine in reversed(list(self._engines)):
            await self._close_engine(engine)
        await self._place.close()

    # --- engines ----------------------------------------------------------------------------------------------

    async def _load(self, message: wire.Load) -> None:
        name = message.backend.name
        try:
            engine = await self._loaded(message)
        except EngineError as error:
            self._send(wire.LoadFailed(message.engine, error.code, str(error)), must=True)
        except Exception as error:  # noqa: BLE001 (whatever a library raises while it loads)
            _log.exception("a model could not be loaded", backend=name)
            self._send(wire.LoadFailed(message.engine, "load_failed", f"{type(error).__name__}: {error}"), must=True)
        else:
            rate_hz, voices = (engine.rate_hz, tuple(engine.voices)) if message.backend.kind == "tts" else (0, ())
            self._send(wire.Loaded(message.engine, rate_hz, voices), must=True)

    async def _loaded(self, message: wire.Load) -> Any:
        backend = message.backend
        spec = BackendSpec(
            backend.name,
            backend.kind,
            backend.factory,
            backend.extra,
            shares=backend.shares,
            options=MappingProxyType(backend.options),
        )
        # Imported beside the loop, which may be serving other engines' jobs; the place reports what is missing.
        with contextlib.suppress(ModuleNotFoundError):
            await asyncio.to_thread(importlib.import_module, spec.factory.partition(":")[0])
        engine: Any = self._place.engine(spec, [Path(folder) for folder in message.weights])
        self._engines[message.engine] = engine  # before it starts: whatever ends us then closes it
        try:
            await engine.start()
        except BaseException:
            await self._close_engine(message.engine)
            raise
        return engine

    async def _unload(self, engine: int) -> None:
        self._drop(lambda key: key.engine == engine)
        await self._close_engine(engine)
        self._send(wire.Unloaded(engine), must=True)

    async def _close_engine(self, engine: int) -> None:
        closing = self._engines.pop(engine, None)
        if closing is None:
            return
        try:
            await closing.close()
        except Exception:  # noqa: BLE001 (the others must be closed all the same)
            _log.exception("an engine did not close cleanly")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- transcription ----------------------------------------------------------------------------------------

    def _open_stream(self, message: wire.OpenStream) -> None:
        utterance = message.request.utterance
        key = _Key(message.engine, message.request.call, stream=message.job)
        job = _Job(message.job, key, lambda code, text: TranscriptionFailed(utterance, 0, code, text))

        def start(engine: Any) -> None:
            job.stream = engine.open(message.request, partial(self._transcribed, job))

        self._begin(job, start)

    def _finalize(self, message: wire.FinalizeStream) -> None:
        job = self._jobs.get(message.job)
        request = message.request
        if job is None or job.stream is None:  # it failed to open, and so does every transcript of it
            failure = TranscriptionFailed(request.utterance, request.revision, "engine_raised", "no such stream here")
            self._send(wire.FinalFailed(message.job, failure), must=True)
            return
        job.unanswered += 1
        job.failed = lambda code, text: TranscriptionFailed(request.utterance, request.revision, code, text)
        self._on_stream(message.job, "finalize", request)

    def _close_stream(self, message: wire.CloseStream) -> None:
        job = self._jobs.get(message.job)
        if job is not None:
            self._on_stream(message.job, "close")
            self._drop(lambda key: key == job.key)

    def _on_stream(self, number: int, method: str, *args: object) -> None:
        job = self._jobs.get(number)
        if job is None or job.stream is None:
            return
        try:
            getattr(job.stream, method)(*args)
        except Exception as error:  # noqa: BLE001 (it must not, and may all the same)
            self._raised(job, method, error)

    def _transcribed(self, job: _Job, result: Any) -> None:
        if self._jobs.get(job.number) is not job:
            return
        if isinstance(result, PartialTranscript):
            self._send(wire.Partial(job.number, result), job.key)  # one that finds no room is worth nothing later
            return
        job.unanswered = max(0, job.unanswered - 1)
        kind = wire.Final if isinstance(result, FinalTranscript) else wire.FinalFailed
        self._send(kind(job.number, result), job.key, must=True)

    # --- generation and speech --------------------------------------------------------------------------------

    def _generate(self, message: wire.StartGeneration) -> None:
        request = message.request
        key = _Key(message.engine, request.call, request.epoch)
        job = _Job(message.job, key, partial(GenerationFailed, request.epoch))
        job.unanswered = 1
        self._begin(job, lambda engine: engine.generate(request, partial(self._deliver, job)))

    def _synthesize(self, message: wire.StartSynthesis) -> None:
        request = message.request
        failed = partial(SynthesisFailed, request.epoch, request.segment)
        job = _Job(message.job, _Key(message.engine, request.call, request.epoch), failed)
        job.unanswered = 1
        self._begin(job, lambda engine: engine.synthesize(request, partial(self._spoken, job)))

    def _spoken(self, job: _Job, result: Synthesis) -> None:
        if isinstance(result, SynthesisFailed):
            self._deliver(job, result)
            return
        for piece in pieces(result):
            self._deliver(job, piece)

    def _deliver(self, job: _Job, result: Any) -> None:
        if self._jobs.get(job.number) is not job:
            return
        job.unanswered = 0
        over = isinstance(result, GenerationDone | GenerationFailed | SynthesisFailed)
        message = wire.RESULTS[type(result)](job.number, result)
        if not self._send(message, job.key, must=over):
            self._overflow(job)
        elif over or (isinstance(result, SynthesisChunk) and result.last):
            self._jobs.pop(job.number, None)

    def _overflow(self, job: _Job) -> None:
        """The gateway does not take what this job makes."""
        self._overflowed += 1
        _log.warning("a job was ended: the gateway does not take its results", job=job.number)
        self._cancel_in_engine(job)
        if self._channel is not None:  # what waits of it makes room for the others
            self._channel.drop(lambda owner: owner == job.key)
        self._fail(job, "overloaded", "the gateway did not take the results in time")

    def _cancel(self, message: wire.CancelEpoch) -> None:
        dead = _Key(message.engine, message.call, message.epoch)
        self._drop(lambda key: key == dead)
        self._ask(message.engine, "cancel", message.call, message.epoch)

    def _forget(self, message: wire.ForgetCall) -> None:
        dead = (message.engine, message.call)
        self._drop(lambda key: key[:2] == dead)
        self._ask(message.engine, "forget", message.call)

    # --- jobs -------------------------------------------------------------------------------------------------

    def _begin(self, job: _Job, start: Callable[[Any], None]) -> None:
        engine = self._engines.get(job.key.engine)
        self._jobs[job.number] = job
        if engine is None:
            self._fail(job, "not_loaded", "this engine is not loaded here")
        elif len(self._jobs) > MAX_JOBS:
            self._fail(job, "overloaded", f"{MAX_JOBS} jobs are under way already")
        else:
            try:
                start(engine)
            except Exception as error:  # noqa: BLE001 (it must not, and may all the same)
                self._raised(job, "start", error)

    def _raised(self, job: _Job, method: str, error: Exception) -> None:
        _log.error("an engine raised", method=method, exc_info=error)
        self._cancel_in_engine(job)
        self._fail(job, "engine_raised", f"{type(error).__name__}: {error}")

    def _fail(self, job: _Job, code: str, message: str) -> None:
        self._jobs.pop(job.number, None)
        result = job.failed(code, message)
        self._send(wire.RESULTS[type(result)](job.number, result), job.key, must=True)

    def _drop(self, dead: Callable[[_Key], bool]) -> None:
        """End these jobs; what waits to be sent of them, and of such as have ended before, is forgotten."""
        for job in [job for job in self._jobs.values() if dead(job.key)]:
            del self._jobs[job.number]
        if self._channel is not None:
            self._channel.drop(lambda owner: isinstance(owner, _Key) and dead(owner))

    def _cancel_in_engine(self, job: _Job) -> None:
        if not job.key.stream:
            self._ask(job.key.engine, "cancel", job.key.call, job.key.epoch)

    def _ask(self, engine: int, method: str, *args: object) -> None:
        asked = self._engines.get(engine)
        if asked is None:
            return
        try:
            getattr(asked, method)(*args)
        except Exception:  # noqa: BLE001 (it must not, and what has to be done beside it is done all the same)
            _log.exception("an engine raised", method=method)

    def _pong(self, message: wire.Ping) -> None:
        waiting = sum(job.unanswered for job in self._jobs.values())
        pong = wire.Pong(message.number, waiting, self._overflowed, self._vitals())
        self._send(pong, must=True)

    def _send(self, message: Any, owner: _Key | None = None, *, must: bool = False) -> bool:
        try:
            return self._channel is None or self._channel.send(message, owner, must=must)
        except TooLargeError:
            _log.error("a result is too large to be sent", kind=type(message).__name__)
            return False


def pieces(chunk: SynthesisChunk) -> list[SynthesisChunk]:
    """A chunk cut into pieces of at most :data:`CHUNK_S`; its words go with the first, ``last`` with the last."""
    step = int(chunk.rate_hz * CHUNK_S) * 2
    if len(chunk.pcm) <= step:
        return [chunk]
    cuts = range(0, len(chunk.pcm), step)
    return [
        msgspec.structs.replace(
            chunk,
            pcm=chunk.pcm[at : at + step],
            last=chunk.last and at == cuts[-1],
            words=chunk.words if at == 0 else (),
        )
        for at in cuts
    ]
