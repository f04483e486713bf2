"""A fake voice activity detector for tests and the ``null`` preset: loudness instead of a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from engines.api import Pcm16
from engines.vad.silero import WINDOW_SAMPLES

THRESHOLD_DBFS = -45.0
_THRESHOLD_POWER = (32768.0 * 10 ** (THRESHOLD_DBFS / 20)) ** 2


class EnergyStream:
    def __init__(self, deliver: Callable[[float, int], None]) -> None:
        self._deliver = deliver
        self._rest: Pcm16 = np.zeros(0, np.int16)
        self._fed_samples = 0
        self._cut_samples = 0
        self._delivered_samples = 0
        self._closed = False

    @property
    def backlog_samples(self) -> int:
        return self._fed_samples - self._delivered_samples

    def feed(self, pcm: Pcm16) -> None:
        if self._closed:
            return
        self._fed_samples += len(pcm)
        audio = np.concatenate([self._rest, pcm])
        windows = len(audio) // WINDOW_SAMPLES
        self._rest = audio[windows * WINDOW_SAMPLES :]
        if not windows:
            return
        scored = []
        for window in audio[: windows * WINDOW_SAMPLES].reshape(windows, WINDOW_SAMPLES):
            self._cut_samples += WINDOW_SAMPLES
            power = float(np.mean(np.square(window, dtype=np.float64)))
            scored.append((1.0 if power > _THRESHOLD_POWER else 0.0, self._cut_samples))
        asyncio.get_running_loop().call_soon(self._hand_over, scored)

    def close(self) -> None:
        self._closed = True

    def _hand_over(self, scored: list[tuple[float, int]]) -> None:
        for probability, end_samples in scored:
            self._delivered_samples = end_samples
            if not self._closed:
                self._deliver(probability, end_samples)


class EnergyVad:
    """A fake: probability 1.0 where a window's RMS is above -45 dBFS, else 0.0. Windows and delivery are those of
    the real one (512 samples, on the loop after :meth:`feed` returned), without a thread."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def open(self, deliver: Callable[[float, int], None]) -> EnergyStream:
        return EnergyStream(deliver)
