"""Silero VAD on onnxruntime: one session and one worker thread for all calls.

The model (silero-vad 6, MIT; ``silero_vad.onnx`` of its wheel) scores windows of 512 samples at 16 kHz, each preceded
by the last 64 samples of the window before, and carries a recurrent state of shape (2, N, 128). So a call's windows
go one after the other, and a batch holds at most one window of each call: a call with minutes of backlog gets one
window a batch like everybody else. Batched results equal those of single streams.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
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
GATHER_S = 0.004
GATHERED = 16
MANY_CALLS = 16
"""With more open calls than this, and fewer windows there, a batch waits so long for more: a window alone costs twice
its share of eight (114 against 62 us)."""

Floats = npt.NDArray[np.float32]
Model = Callable[[Floats, Floats], tuple[Floats, Floats]]
"""``(input (N, 576), state (2, N, 128)) -> (probability (N, 1), state (2, N, 128))``."""

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
        self._state: Floats = np.zeros((2, STATE_WIDTH), np.float32)
        self._context: Floats = np.zeros(CONTEXT_SAMPLES, np.float32)

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

    def _take_window(self) -> tuple[Pcm16, int]:
        """The next 512 samples and where they end. With the lock held, and at least that many waiting."""
        window = np.empty(WINDOW_SAMPLES, np.int16)
        filled = 0
        while filled < WINDOW_SAMPLES:
            chunk = self._chunks.popleft()
            part = chunk[: WINDOW_SAMPLES - filled]
            window[filled : filled + len(part)] = part
            filled += len(part)
            if len(part) < len(chunk):
                self._chunks.appendleft(chunk[len(part) :])
        self._waiting_samples -= WINDOW_SAMPLES
        self._taken_samples += WINDOW_SAMPLES
        return window, self._taken_samples


class SileroVad:
    """Implements :class:`engines.api.VoiceActivityDetector`. ``model_dir`` holds ``silero_vad.onnx``."""

    def __init__(self, model_dir: Path, *, load: Callable[[Path], Model] | None = None) -> None:
        self._path = model_dir / "silero_vad.onnx"
        self._load = load or _load
        self._model: Model | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._work = threading.Condition()
        self._ready: deque[SileroStream] = deque()
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
            self._work.notify()
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

    def _add(self, stream: SileroStream, pcm: Pcm16) -> None:
        with self._work:
            if self._closing:
                return
            stream._chunks.append(pcm)
            stream._waiting_samples += len(pcm)
            self._queue_if_ready(stream)

    def _queue_if_ready(self, stream: SileroStream) -> None:
        if not stream._queued and stream._waiting_samples >= WINDOW_SAMPLES:
            stream._queued = True
            self._ready.append(stream)
            self._work.notify()

    def _forget(self, stream: SileroStream) -> None:
        with self._work:
            self._calls -= 1
            self._dropped += stream._waiting_samples // WINDOW_SAMPLES
            stream._chunks.clear()
            stream._waiting_samples = 0

    def _worker(self) -> None:
        while (batch := self._next_batch()) is not None:
            if batch:
                self._score(batch)
            del batch

    def _next_batch(self) -> list[tuple[SileroStream, Pcm16, int]] | None:
        """At most one window of each waiting call, longest waiting first; None when the detector closes."""
        with self._work:
            while not self._ready and not self._closing:
                self._work.wait()
            soon = self._calls > MANY_CALLS and len(self._ready) < GATHERED
        if soon:
            time.sleep(GATHER_S)  # in the thread that scores, and no other: whoever comes meanwhile need not wake it
        with self._work:
            if self._closing:
                return None
            batch = []
            for _ in range(min(MAX_BATCH, len(self._ready))):
                stream = self._ready.popleft()
                stream._queued = False
                if stream._waiting_samples >= WINDOW_SAMPLES:
                    batch.append((stream, *stream._take_window()))
            for stream, _, _ in batch:
                self._queue_if_ready(stream)  # behind everyone who waits already
            return batch

    def _score(self, batch: list[tuple[SileroStream, Pcm16, int]]) -> None:
        inputs, state = _empty_batch(len(batch))
        for row, (stream, window, _) in enumerate(batch):
            inputs[row, :CONTEXT_SAMPLES] = stream._context
            inputs[row, CONTEXT_SAMPLES:] = window
            state[:, row] = stream._state
        inputs[:, CONTEXT_SAMPLES:] /= 32768.0
        results: list[tuple[SileroStream, float | None, int]]
        try:
            assert self._model is not None
            probabilities, next_state = self._model(inputs, state)
        except Exception:  # noqa: BLE001
            # These windows are lost to their calls, which go on with the next.
            _log.exception("voice activity model failed", windows=len(batch))
            results = [(stream, None, end_samples) for stream, _, end_samples in batch]
        else:
            results = [
                (stream, float(probabilities[row, 0]), end_samples)
                for row, (stream, _, end_samples) in enumerate(batch)
            ]
            for row, (stream, _, _) in enumerate(batch):
                stream._state = next_state[:, row].copy()
        for row, (stream, _, _) in enumerate(batch):
            stream._context = inputs[row, -CONTEXT_SAMPLES:].copy()
        self._count(results)
        self._hand_over(results)

    def _count(self, results: list[tuple[SileroStream, float | None, int]]) -> None:
        lost = sum(probability is None for _, probability, _ in results)
        with self._work:
            self._batches += 1
            self._windows += len(results) - lost
            self._dropped += lost
            self._largest_batch = max(self._largest_batch, len(results))

    def _hand_over(self, results: list[tuple[SileroStream, float | None, int]]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(_deliver, results)
        except RuntimeError:
            if not self._loop.is_closed():
                raise  # a loop that ended has nobody left to tell


def _deliver(results: list[tuple[SileroStream, float | None, int]]) -> None:
    """On the event loop: one call a batch, however many calls it served."""
    for stream, probability, end_samples in results:
        stream._scored_samples = end_samples
        if stream._closed or probability is None:
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

    def run(inputs: Floats, state: Floats) -> tuple[Floats, Floats]:
        probabilities, next_state = session.run(None, {"input": inputs, "state": state, "sr": rate_hz})
        return probabilities, next_state

    return run
