"""Silero VAD on onnxruntime: one session and one worker thread for all calls.

The model (silero-vad 6, MIT; ``silero_vad.onnx`` of its wheel) scores windows of 512 samples at 16 kHz, each preceded
by the last 64 samples of the window before, and carries a recurrent state of shape (2, N, 128). So a call's windows
go one after the other, and a batch holds at most one window of each call: a call with minutes of backlog gets one
window a batch like everybody else. Batched results equal those of single streams.

The event loop makes the batches, and the thread only runs them, one at a time: what waits needs no lock, and the thread
is woken once a batch. To wake it for each window cost more than the model did.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog

from engines.api import Pcm16
from engines.onnx import open_session
from streaming.jobs import INPUT_RATE_HZ

WINDOW_SAMPLES = 512
CONTEXT_SAMPLES = 64
STATE_WIDTH = 128
MAX_BATCH = 64
GATHER_S = 0.008
GATHERED = 16
MANY_CALLS = 4
"""With more open calls than this, and fewer windows there, a batch waits so long for more. A window alone costs nearly
twice its share of eight (109 against 60 us), each batch the wake of a thread, and between batches others take the
model's weights out of the core's cache: these few milliseconds save a third of what
windows cost."""

Floats = npt.NDArray[np.float32]
Model = Callable[[Floats, Floats], tuple[Floats, Floats]]
"""``(input (N, 576), state (2, N, 128)) -> (probability (N, 1), state (2, N, 128))``."""

_FULL_SCALE = np.float32(1 / 32768)
_FRESH_CONTEXT = np.zeros(CONTEXT_SAMPLES, np.int16)
_FRESH_STATE = np.zeros((2, 1, STATE_WIDTH), np.float32)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class VadSnapshot:
    """Counters since the start. ``dropped_windows``: of streams closed before their turn, or lost to a failed run."""

    windows: int
    batches: int
    largest_batch: int
    dropped_windows: int


class SileroStream:
    """The voice activity of one call."""

    __slots__ = (
        "_chunks",
        "_closed",
        "_context",
        "_deliver",
        "_detector",
        "_fed_samples",
        "_queued",
        "_scored_samples",
        "_state",
        "_taken_samples",
        "_waiting_samples",
    )

    def __init__(self, detector: SileroVad, deliver: Callable[[float, int], None]) -> None:
        self._detector = detector
        self._deliver = deliver
        self._closed = False
        self._fed_samples = 0
        self._taken_samples = 0
        self._scored_samples = 0
        self._chunks: deque[Pcm16] = deque()
        self._waiting_samples = 0
        self._queued = False
        """A window of it is ready, or being scored."""
        self._state: Floats = _FRESH_STATE
        self._context: Pcm16 = _FRESH_CONTEXT

    @property
    def backlog_samples(self) -> int:
        return self._fed_samples - self._scored_samples

    def feed(self, pcm: Pcm16) -> None:
        """On the event loop, as everything here but the model."""
        if self._closed or self._detector._closing or len(pcm) == 0:
            return
        self._fed_samples += len(pcm)
        self._chunks.append(pcm.copy())
        self._waiting_samples += len(pcm)
        if self._waiting_samples >= WINDOW_SAMPLES and not self._queued:
            self._detector._queue(self)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._detector._forget(self)

    def _take_window(self) -> list[Pcm16]:
        """The pieces of the next window, with its context before it. At least 512 samples wait."""
        pieces = [self._context]
        missing = WINDOW_SAMPLES
        while missing:
            chunk = self._chunks.popleft()
            if len(chunk) > missing:
                self._chunks.appendleft(chunk[missing:])
                chunk = chunk[:missing]
            pieces.append(chunk)
            missing -= len(chunk)
        self._waiting_samples -= WINDOW_SAMPLES
        self._taken_samples += WINDOW_SAMPLES
        return pieces


@dataclass(frozen=True, slots=True)
class _Batch:
    """One window of each stream, in order."""

    streams: list[SileroStream]
    inputs: Floats
    state: Floats


class SileroVad:
    """Implements :class:`engines.api.VoiceActivityDetector`. ``model_dir`` holds ``silero_vad.onnx``."""

    def __init__(self, model_dir: Path, *, load: Callable[[Path], Model] | None = None) -> None:
        self._path = model_dir / "silero_vad.onnx"
        self._load = load or _load
        self._model: Model | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._batches_to_run: SimpleQueue[_Batch | None] = SimpleQueue()
        self._ready: deque[SileroStream] = deque()
        self._running = False
        self._gathering: asyncio.TimerHandle | None = None
        self._closing = False
        self._calls = 0
        self._windows = self._batches = self._largest_batch = self._dropped = 0

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._model = await asyncio.to_thread(self._load_and_warm)
        self._thread = threading.Thread(target=self._worker, name="silero-vad", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        self._closing = True
        self._ready.clear()
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._batches_to_run.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None
        self._model = None

    def open(self, deliver: Callable[[float, int], None]) -> SileroStream:
        self._calls += 1
        return SileroStream(self, deliver)

    def snapshot(self) -> VadSnapshot:
        return VadSnapshot(self._windows, self._batches, self._largest_batch, self._dropped)

    def _load_and_warm(self) -> Model:
        model = self._load(self._path)
        for batch in (1, MAX_BATCH):  # the largest sizes the arena once
            model(*_empty_batch(batch))
        return model

    # --- on the event loop ----------------------------------------------------------------------------------------

    def _queue(self, stream: SileroStream) -> None:
        """A window of it is there."""
        stream._queued = True
        self._ready.append(stream)
        if not self._running:
            self._run_soon()

    def _forget(self, stream: SileroStream) -> None:
        self._calls -= 1
        self._dropped += stream._waiting_samples // WINDOW_SAMPLES
        stream._chunks.clear()
        stream._waiting_samples = 0

    def _run_soon(self) -> None:
        """Windows are ready, and the thread is free."""
        if self._calls <= MANY_CALLS or len(self._ready) >= GATHERED:
            self._run()
        elif self._gathering is None:
            assert self._loop is not None
            self._gathering = self._loop.call_later(GATHER_S, self._run)

    def _run(self) -> None:
        """Give the thread a batch: at most one window of each waiting call, longest waiting first."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        streams: list[SileroStream] = []
        pieces: list[Pcm16] = []
        while self._ready and len(streams) < MAX_BATCH:
            stream = self._ready.popleft()
            if stream._waiting_samples >= WINDOW_SAMPLES:  # it was not closed
                streams.append(stream)
                pieces += stream._take_window()
        if not streams:
            return
        samples = np.concatenate(pieces).reshape(len(streams), CONTEXT_SAMPLES + WINDOW_SAMPLES)
        for stream, row in zip(streams, samples, strict=True):
            stream._context = row[-CONTEXT_SAMPLES:].copy()
        state = np.concatenate([stream._state for stream in streams], axis=1)
        self._running = True
        self._batches_to_run.put(_Batch(streams, samples * _FULL_SCALE, state))

    def _scored(self, batch: _Batch, probabilities: list[float] | None, state: Floats | None) -> None:
        """One callback a batch, however many calls it served. None: its windows are lost to their calls, which go on
        with the next."""
        streams = batch.streams
        self._running = False
        self._batches += 1
        self._largest_batch = max(self._largest_batch, len(streams))
        if probabilities is None or state is None:
            self._dropped += len(streams)
        else:
            self._windows += len(streams)
        ends = []
        for row, stream in enumerate(streams):
            if state is not None:
                stream._state = state[:, row : row + 1].copy()
            stream._scored_samples = stream._taken_samples
            ends.append(stream._taken_samples)
            stream._queued = stream._waiting_samples >= WINDOW_SAMPLES and not self._closing
            if stream._queued:
                self._ready.append(stream)  # behind everyone who waits already
        if self._ready:
            self._run_soon()  # before these are told: the thread need not wait for that
        if probabilities is not None:
            _tell(streams, probabilities, ends)

    # --- in the thread --------------------------------------------------------------------------------------------

    def _worker(self) -> None:
        while (batch := self._batches_to_run.get()) is not None:
            self._score(batch)
            del batch

    def _score(self, batch: _Batch) -> None:
        probabilities: list[float] | None = None
        state: Floats | None = None
        try:
            assert self._model is not None
            scores, state = self._model(batch.inputs, batch.state)
            probabilities = scores[:, 0].tolist()
        except Exception:  # noqa: BLE001
            state = None
            _log.exception("voice activity model failed", windows=len(batch.streams))
        self._hand_over(batch, probabilities, state)

    def _hand_over(self, batch: _Batch, probabilities: list[float] | None, state: Floats | None) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._scored, batch, probabilities, state)
        except RuntimeError:
            if not self._loop.is_closed():
                raise  # a loop that ended has nobody left to tell


def _tell(streams: list[SileroStream], probabilities: list[float], ends_samples: list[int]) -> None:
    for stream, probability, end_samples in zip(streams, probabilities, ends_samples, strict=True):
        if stream._closed:
            continue
        try:
            stream._deliver(probability, end_samples)
        except Exception:  # noqa: BLE001
            # A defect in one call must not cost the others their windows.
            _log.exception("a call failed on a voice activity score")


def _empty_batch(batch: int) -> tuple[Floats, Floats]:
    inputs = np.zeros((batch, CONTEXT_SAMPLES + WINDOW_SAMPLES), np.float32)
    return inputs, np.zeros((2, batch, STATE_WIDTH), np.float32)


def _load(path: Path) -> Model:
    session: Any = open_session(path)
    rate_hz = np.array(INPUT_RATE_HZ, np.int64)
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Floats, state: Floats) -> tuple[Floats, Floats]:
        probabilities, next_state = session.run(names, {"input": inputs, "state": state, "sr": rate_hz})
        return probabilities, next_state

    return run
