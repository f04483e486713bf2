"""Silero VAD on onnxruntime: one session and one worker thread for all calls.

The model (silero-vad 6, MIT; ``silero_vad.onnx`` of its wheel) scores windows of 512 samples at 16 kHz, each preceded
by the last 64 samples of the window before, and carries a recurrent state of shape (2, N, 128). So a call's windows
go one after the other, and a batch holds at most one window of each call: a call with minutes of backlog gets one
window a batch like everybody else. Batched results equal those of single streams.

The event loop wakes the thread, once enough windows are there or the first of them has waited a little: to wake it for
each cost nearly as much as the model. A thread that finds many more when it has run a batch goes on by itself, for a
busy machine may take long to come round to the loop.
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
"""With more open calls than this, fewer windows there, and windows of fewer than half of the calls, a batch waits so
long for more. A window alone costs nearly twice its share of eight (109 against 60 us), each batch wakes a thread, and
between batches others take the model's weights out of the core's cache: these few milliseconds save a third of what
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
        self._scored_samples = 0
        # With the detector's lock: what waits. By the worker alone: state and context.
        self._chunks: deque[Pcm16] = deque()
        self._waiting_samples = 0
        self._queued = False
        self._taken_samples = 0
        self._state: Floats = _FRESH_STATE
        self._context: Pcm16 = _FRESH_CONTEXT

    @property
    def backlog_samples(self) -> int:
        return self._fed_samples - self._scored_samples

    def feed(self, pcm: Pcm16) -> None:
        if self._closed or len(pcm) == 0:
            return
        self._fed_samples += len(pcm)
        self._detector._add(self, pcm.copy())

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._detector._forget(self)

    def _take_window(self) -> tuple[list[Pcm16], int]:
        """The pieces of the next 512 samples and where they end. With the lock held, and at least that many waiting."""
        pieces = []
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
        return pieces, self._taken_samples


_Result = tuple[SileroStream, float | None, int]
"""A window's probability and where it ends; None: the model failed."""


class SileroVad:
    """Implements :class:`engines.api.VoiceActivityDetector`. ``model_dir`` holds ``silero_vad.onnx``. All but the model
    is called on the event loop."""

    def __init__(self, model_dir: Path, *, load: Callable[[Path], Model] | None = None) -> None:
        self._path = model_dir / "silero_vad.onnx"
        self._load = load or _load
        self._model: Model | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._wakes: SimpleQueue[bool] = SimpleQueue()
        """False ends the worker."""
        self._gathering: asyncio.TimerHandle | None = None
        self._work = threading.Lock()
        # With the lock.
        self._ready: deque[SileroStream] = deque()
        self._awake = False
        """The worker will look at what is ready without being woken."""
        self._closing = False
        self._calls = 0
        self._windows = self._batches = self._largest_batch = self._dropped = 0

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._model = await asyncio.to_thread(self._load_and_warm)
        self._thread = threading.Thread(target=self._worker, name="silero-vad", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        with self._work:
            self._closing = True
            self._ready.clear()
        self._stop_gathering()
        self._wakes.put(False)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None
        self._model = None

    def open(self, deliver: Callable[[float, int], None]) -> SileroStream:
        with self._work:
            self._calls += 1
        return SileroStream(self, deliver)

    def snapshot(self) -> VadSnapshot:
        with self._work:
            return VadSnapshot(self._windows, self._batches, self._largest_batch, self._dropped)

    def _load_and_warm(self) -> Model:
        model = self._load(self._path)
        for batch in (1, MAX_BATCH):  # the largest sizes the arena once
            model(*_empty_batch(batch))
        return model

    # --- on the event loop ----------------------------------------------------------------------------------------

    def _add(self, stream: SileroStream, pcm: Pcm16) -> None:
        with self._work:
            if self._closing:
                return
            stream._chunks.append(pcm)
            stream._waiting_samples += len(pcm)
            if not self._queue_if_ready(stream) or self._awake:
                return
        self._wake_soon()

    def _queue_if_ready(self, stream: SileroStream) -> bool:
        if stream._queued or stream._waiting_samples < WINDOW_SAMPLES:
            return False
        stream._queued = True
        self._ready.append(stream)
        return True

    def _forget(self, stream: SileroStream) -> None:
        with self._work:
            self._calls -= 1
            self._dropped += stream._waiting_samples // WINDOW_SAMPLES
            stream._chunks.clear()
            stream._waiting_samples = 0

    def _wake_soon(self) -> None:
        """Windows are ready, and the worker sleeps."""
        assert self._loop is not None
        if self._enough():
            self._wake()
        elif self._gathering is None:
            self._gathering = self._loop.call_later(GATHER_S, self._wake)

    def _enough(self) -> bool:
        ready = len(self._ready)
        return self._calls <= MANY_CALLS or ready >= GATHERED or 2 * ready >= self._calls

    def _wake(self) -> None:
        self._stop_gathering()
        with self._work:
            if self._awake or not self._ready:
                return
            self._awake = True
        self._wakes.put(True)

    def _stop_gathering(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None

    def _deliver(self, results: list[_Result]) -> None:
        """One callback a batch, however many calls it served."""
        if self._ready and not self._awake:
            self._wake_soon()
        for stream, probability, end_samples in results:
            stream._scored_samples = end_samples
            if stream._closed or probability is None:
                continue
            try:
                stream._deliver(probability, end_samples)
            except Exception:  # noqa: BLE001
                # A defect in one call must not cost the others their windows.
                _log.exception("a call failed on a voice activity score")

    # --- in the thread --------------------------------------------------------------------------------------------

    def _worker(self) -> None:
        while self._wakes.get():
            while self._serve_batch():
                pass

    def _serve_batch(self) -> bool:
        """Returns whether the worker goes on. A function of its own: while the thread waits it holds no call."""
        batch = self._next_batch()
        if not batch:
            return False
        results = self._score(batch)
        goes_on = self._count(results)
        self._hand_over(results)  # after it is known who sees to what is ready: this thread, or the loop
        return goes_on

    def _next_batch(self) -> list[tuple[SileroStream, list[Pcm16], int]]:
        """At most one window of each waiting call, longest waiting first; if there is none, the worker sleeps."""
        with self._work:
            batch = []
            for _ in range(min(MAX_BATCH, len(self._ready))):
                stream = self._ready.popleft()
                stream._queued = False
                if stream._waiting_samples >= WINDOW_SAMPLES:
                    batch.append((stream, *stream._take_window()))
            for stream, _, _ in batch:
                self._queue_if_ready(stream)  # behind everyone who waits already
            self._awake = bool(batch)
            return batch

    def _score(self, batch: list[tuple[SileroStream, list[Pcm16], int]]) -> list[_Result]:
        streams = [stream for stream, _, _ in batch]
        parts = [part for stream, pieces, _ in batch for part in (stream._context, *pieces)]
        samples = np.concatenate(parts).reshape(len(batch), CONTEXT_SAMPLES + WINDOW_SAMPLES)
        scores: list[float | None]
        try:
            assert self._model is not None
            state = np.concatenate([stream._state for stream in streams], axis=1)
            probabilities, next_state = self._model(samples * _FULL_SCALE, state)
            scores = probabilities[:, 0].tolist()
        except Exception:  # noqa: BLE001
            # These windows are lost to their calls, which go on with the next.
            _log.exception("voice activity model failed", windows=len(batch))
            scores = [None] * len(batch)
        else:
            for row, stream in enumerate(streams):
                stream._state = next_state[:, row : row + 1].copy()
        for stream, row_samples in zip(streams, samples, strict=True):
            stream._context = row_samples[-CONTEXT_SAMPLES:].copy()
        ends = (end_samples for _, _, end_samples in batch)
        return list(zip(streams, scores, ends, strict=True))

    def _count(self, results: list[_Result]) -> bool:
        """Returns whether the worker goes on: calls that are behind wait for nobody, nor for the loop to come round."""
        lost = sum(probability is None for _, probability, _ in results)
        with self._work:
            self._batches += 1
            self._windows += len(results) - lost
            self._dropped += lost
            self._largest_batch = max(self._largest_batch, len(results))
            behind = any(stream._waiting_samples >= WINDOW_SAMPLES for stream, _, _ in results)
            self._awake = bool(self._ready) and (behind or self._enough())
            return self._awake

    def _hand_over(self, results: list[_Result]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._deliver, results)
        except RuntimeError:
            if not self._loop.is_closed():
                raise  # a loop that ended has nobody left to tell


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
