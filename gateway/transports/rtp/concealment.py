"""Something for what is lost, where the codec has nothing: the last period of the voice, again and fading.

After G.711 Appendix I (09/1999), in short: the period is where the last samples are most like those before, the seams
are cross-faded, and after 60 ms there is silence.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engines.api import Pcm16

_SHORTEST_S, _LONGEST_S = 0.005, 0.015
"""Periods of 200 to 66 Hz, as in the appendix."""
_MATCH_S = 0.02
_SEAM_S = 0.004
_FULL_S, _FADE_S = 0.01, 0.05
"""At full level so long, then down to nothing."""


class Concealment:
    """One stream. Samples in order: those that came to :meth:`heard`, what is missing from :meth:`conceal`."""

    __slots__ = ("_blocks", "_kept", "_made", "_rate_hz", "_seam", "_step", "_wave")

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._seam = int(_SEAM_S * rate_hz)
        self._kept = int((_MATCH_S + _LONGEST_S) * rate_hz)
        self._blocks: list[Pcm16] = []
        """The last that were heard, the newest last: together at least ``_kept`` samples, if there were so many."""
        self._made = 0
        """Samples made since one was heard."""
        self._wave: npt.NDArray[np.float64] = np.zeros(0)
        self._step = 0.0
        """How far the first sample made is from where the voice was."""

    def heard(self, pcm: Pcm16) -> Pcm16:
        """The samples, with a seam from what was made before them (the only change that is made)."""
        if self._made:
            pcm = self._joined(pcm)
        self._blocks.append(pcm)
        if len(self._blocks) > 2 and sum(map(len, self._blocks[1:])) >= self._kept:
            del self._blocks[0]
        return pcm

    def conceal(self, samples: int) -> Pcm16:
        made = self._continued(samples)
        self._made += samples
        return np.rint(made).astype(np.int16)

    def _joined(self, pcm: Pcm16) -> Pcm16:
        seam = min(self._seam, len(pcm))
        old = self._continued(seam)
        weight = np.arange(1, seam + 1) / (seam + 1)
        self._made = 0
        self._wave = np.zeros(0)
        mixed = old * (1.0 - weight) + pcm[:seam] * weight
        return np.concatenate((np.rint(mixed).astype(np.int16), pcm[seam:]))

    def _continued(self, samples: int) -> npt.NDArray[np.float64]:
        """The next samples of the voice as it was, if it had gone on."""
        if not self._made:
            self._wave = self._period()
        if not len(self._wave):
            return np.zeros(samples)
        at = self._made + np.arange(samples)
        level = np.clip(1.0 - (at / self._rate_hz - _FULL_S) / _FADE_S, 0.0, 1.0)
        wave = self._wave[at % len(self._wave)] + self._step * np.clip(1.0 - at / self._seam, 0.0, 1.0)
        return np.clip(wave * level, -32768, 32767)

    def _period(self) -> npt.NDArray[np.float64]:
        """One period of the last samples, that can be repeated without a click."""
        past = np.concatenate(self._blocks).astype(np.float64)[-self._kept :] if self._blocks else np.zeros(0)
        if len(past) < self._kept:
            return np.zeros(0)
        match = int(_MATCH_S * self._rate_hz)
        shortest, longest = int(_SHORTEST_S * self._rate_hz), int(_LONGEST_S * self._rate_hz)
        newest = past[-match:]
        windows = np.lib.stride_tricks.sliding_window_view(past, match)[longest - np.arange(shortest, longest + 1)]
        likeness = (windows @ newest) / np.sqrt(np.einsum("nt,nt->n", windows, windows) + 1.0)
        period = shortest + int(np.argmax(likeness))
        wave = past[-period:].copy()
        seam = period // 4
        weight = np.arange(1, seam + 1) / (seam + 1)
        wave[-seam:] = wave[-seam:] * (1.0 - weight) + past[-period - seam : -period] * weight
        self._step = float(past[-1] - past[-period - 1])
        return wave
