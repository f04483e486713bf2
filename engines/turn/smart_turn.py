"""Smart Turn v3.2 on onnxruntime: does the caller sound finished? One session and one worker thread for all calls.

The model (BSD-2-Clause; ``smart-turn-v3.2-cpu.onnx`` of the pipecat-ai wheel) takes log-mel features (N, 80, 800) of
the last 8 s and gives a probability in 0..1, although its output is named ``logits``. It goes by melody more than by
words, so it wants the first 200 to 400 ms of the silence after them in its audio: with none it often cannot tell, and
after 600 ms it takes most pauses for the end. A decision costs about 45 ms of one core, 1 ms of it for the features
of a 3 s utterance; the input's shape is fixed, so shorter audio makes only the features cheaper.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog

from engines.api import Pcm16
from engines.onnx import open_session
from engines.turn.features import BANDS, FRAMES, INPUT_SAMPLES, log_mel
from streaming.jobs import EndOfTurnScored, ScoreEndOfTurn

MAX_QUEUED = 64
MAX_QUEUED_S = 1.0
"""After that the policy has fallen back to silence, and the score would only delay those that still count."""

Deliver = Callable[[EndOfTurnScored], None]
Model = Callable[[npt.NDArray[np.float32]], float]
"""``features (80, 800) -> probability``."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TurnSnapshot:
    """Counters since the start. ``replaced``: by a newer revision; ``expired``: waited over a second; ``refused``:
    pushed out of a full queue; ``failed``: the model raised."""

    queued: int
    scored: int
    replaced: int
    expired: int
    refused: int
    failed: int


@dataclass(frozen=True, slots=True)
class _Queued:
    request: ScoreEndOfTurn
    pcm: Pcm16
    deliver: Deliver
    queued_at: float


class SmartTurn:
    """Implements :class:`engines.api.EndOfTurnDetector`. ``model_dir`` holds ``smart-turn-v3.2-cpu.onnx``.

    A newer request replaces a waiting one of the same utterance. Utterances are told apart by their number and by
    ``deliver``, as two calls may use the same number: give the same (or an equal) callable for all of a call.
    """

    def __init__(
        self,
        model_dir: Path,
        *,
        load: Callable[[Path], Model] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = model_dir / "smart-turn-v3.2-cpu.onnx"
        self._load = load or _load
        self._clock = clock
        self._model: Model | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._work = threading.Condition()
        self._queue: dict[tuple[Deliver, int], _Queued] = {}  # in order of arrival; a replacement keeps the place
        self._closing = False
        self._scored = self._replaced = self._expired = self._refused = self._failed = 0

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._model = await asyncio.to_thread(self._load_and_warm)
        self._thread = threading.Thread(target=self._worker, name="smart-turn", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        with self._work:
            self._closing = True
            self._queue.clear()
            self._work.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None
        self._model = None

    def score(self, request: ScoreEndOfTurn, pcm: Pcm16, deliver: Deliver) -> None:
        queued = _Queued(request, pcm[-INPUT_SAMPLES:].copy(), deliver, self._clock())
        key = (deliver, request.utterance)
        with self._work:
            if self._closing:
                return
            waiting = self._queue.get(key)
            if waiting is not None:
                self._replaced += 1
                if waiting.request.revision > request.revision:
                    return
            elif len(self._queue) >= MAX_QUEUED:
                del self._queue[next(iter(self._queue))]
                self._refused += 1
            self._queue[key] = queued
            self._work.notify()

    def snapshot(self) -> TurnSnapshot:
        with self._work:
            return TurnSnapshot(
                len(self._queue), self._scored, self._replaced, self._expired, self._refused, self._failed
            )

    def _load_and_warm(self) -> Model:
        model = self._load(self._path)
        model(np.zeros((BANDS, FRAMES), np.float32))
        return model

    def _worker(self) -> None:
        while (queued := self._next()) is not None:
            self._answer(queued)
            del queued

    def _next(self) -> _Queued | None:
        """The longest waiting request that still counts; None when the detector closes."""
        with self._work:
            while not self._closing:
                while self._queue:
                    queued = self._queue.pop(next(iter(self._queue)))
                    if self._clock() - queued.queued_at <= MAX_QUEUED_S:
                        return queued
                    self._expired += 1
                self._work.wait()
            return None

    def _answer(self, queued: _Queued) -> None:
        try:
            assert self._model is not None
            probability = self._model(log_mel(queued.pcm))
        except Exception:  # noqa: BLE001
            # Nothing is delivered: the session falls back to silence.
            with self._work:
                self._failed += 1
            _log.exception("end-of-turn model failed", utterance=queued.request.utterance)
            return
        with self._work:
            self._scored += 1
        scored = EndOfTurnScored(queued.request.utterance, queued.request.revision, probability)
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(queued.deliver, scored)
        except RuntimeError:
            if not self._loop.is_closed():
                raise  # a loop that ended has nobody left to tell


def _load(path: Path) -> Model:
    session: Any = open_session(path)

    def run(features: npt.NDArray[np.float32]) -> float:
        (probabilities,) = session.run(None, {"input_features": features[np.newaxis]})
        return float(probabilities[0, 0])

    return run
