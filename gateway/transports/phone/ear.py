"""Caller audio from a wire's rate to the engines', with the holes that the wire's media times tell of. Sans-IO."""

from __future__ import annotations

import numpy as np

from engines.api import Pcm16
from streaming.audio.resample import Resampler
from streaming.jobs import INPUT_RATE_HZ

LEAST_GAP_MS = 40.0
"""Media times wobble by less than this without a hole."""

FILL_MS = 1_000.0
"""A hole is filled up to this; behind a longer one the audio goes on as if it had not been."""

AHEAD_MS = 2_000.0
"""So far may what was filled bring the audio ahead of real time: a sender whose times run must not make hours of
silence here."""

BLOCK_MS = 1_000
"""The longest block that is handed on."""


class Ear:
    """One call's caller audio. Nothing is reordered: what comes late by its media time is heard when it comes."""

    def __init__(self) -> None:
        self.gaps = 0
        """Holes that were found."""
        self._rate_hz = INPUT_RATE_HZ
        self._resampler = Resampler(INPUT_RATE_HZ, INPUT_RATE_HZ)
        self._expected_ms: float | None = None
        self._began_at: float | None = None
        self._taken_ms = 0.0

    def hear(self, pcm: Pcm16, rate_hz: int, at_ms: float | None, now: float) -> list[Pcm16]:
        """Blocks at 16 kHz, in order. ``at_ms``: the media time of the first sample, if the wire has one; ``now`` in
        seconds. Raises :class:`ValueError` for a rate that cannot be resampled; then nothing was taken."""
        blocks: list[Pcm16] = []
        if rate_hz != self._rate_hz:
            resampler = Resampler(rate_hz, INPUT_RATE_HZ)
            blocks.append(self._resampler.flush())
            self._resampler, self._rate_hz = resampler, rate_hz
        if self._began_at is None:
            self._began_at = now
        fill_ms = self._hole_ms(at_ms, now)
        if fill_ms:
            blocks.append(self._resampler.process(np.zeros(round(fill_ms * rate_hz / 1000), np.int16)))
        size = rate_hz * BLOCK_MS // 1000
        if len(pcm) <= size:
            blocks.append(self._resampler.process(pcm))
        else:
            blocks += [self._resampler.process(pcm[at : at + size]) for at in range(0, len(pcm), size)]
        length_ms = len(pcm) * 1000 / rate_hz
        self._taken_ms += fill_ms + length_ms
        if self._expected_ms is not None:
            self._expected_ms += length_ms
        return [block for block in blocks if len(block)]

    def _hole_ms(self, at_ms: float | None, now: float) -> float:
        """How much silence goes before audio of this media time. Moves the expected time on to it."""
        if at_ms is None:
            self._expected_ms = None
            return 0.0
        expected_ms = self._expected_ms
        if expected_ms is None:
            self._expected_ms = at_ms
            return 0.0
        gap_ms = at_ms - expected_ms
        if abs(gap_ms) < LEAST_GAP_MS:
            return 0.0
        if gap_ms < 0:
            if gap_ms < -FILL_MS:
                self._expected_ms = at_ms  # the wire's clock began anew
            return 0.0
        self.gaps += 1
        self._expected_ms = at_ms
        real_ms = (now - (self._began_at or now)) * 1000
        return max(0.0, min(gap_ms, FILL_MS, real_ms + AHEAD_MS - self._taken_ms))
