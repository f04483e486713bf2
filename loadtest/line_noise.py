"""The noise of a line, so that it passes neither for the agent's voice nor for its silence: comfort noise, a noisy
trunk, the room that an agent is mixed into. Sans-IO, one slot of 20 ms at a time; powers are mean squares of int16.

Noise is what keeps its level: :data:`STEADY_MS` within :data:`STEADY_DB`, and below :data:`LOUD_DBFS`. Speech does not
do that: of recorded lines at -18 to -36 dBFS not one stretch passes for noise. What is louder is never taken for it,
however steady: a server that does not fall silent is heard not to.
"""

from __future__ import annotations

import math

VOICED_DBFS = -50.0
"""On a line without noise: below this, sound is silence to an ear on a phone line."""

ABOVE_NOISE_DB = 6.0
"""On a line with noise, voice is so far above the loudest 20 ms of it."""

LOUD_DBFS = -36.0
QUIET_DBFS = VOICED_DBFS - ABOVE_NOISE_DB
"""Noise that is softer changes nothing."""

STEADY_MS = 400
STEADY_DB = 8.0


def power_at(dbfs: float) -> float:
    """1.0 at full scale is 32768 squared."""
    return float(32768.0**2 * 10.0 ** (dbfs / 10.0))


def voice_from_dbfs(noise_dbfs: float | None) -> float:
    """What is softer is no voice, on a line with that noise."""
    return VOICED_DBFS if noise_dbfs is None else max(VOICED_DBFS, noise_dbfs + ABOVE_NOISE_DB)


_LOUD, _QUIET = power_at(LOUD_DBFS), power_at(QUIET_DBFS)
_STEADY = 10.0 ** (STEADY_DB / 10.0)


class LineNoise:
    """What is known of one call's, slot by slot. As long as nothing is (neither noise nor quiet was heard), what might
    be noise is no voice; later, noise that sets in is voice until it was steady for long enough. The loudest that was
    found counts for the rest of the call, so that pauses in the noise cost nothing."""

    def __init__(self, slot_ms: int) -> None:
        self.dbfs: float | None = None
        """Of the loudest slot; None: none that matters."""
        self._steady_slots = STEADY_MS // slot_ms
        self._voice_from = _LOUD
        self._quiet = power_at(VOICED_DBFS)
        self._slots = 0
        self._softest = self._loudest = 0.0

    def is_voice(self, power: float) -> bool:
        return power >= self._voice_from

    def hear(self, power: float) -> bool:
        """The next slot; whether there is voice in it."""
        if power < _QUIET:
            self._slots = 0
            if self._voice_from == _LOUD:
                self._voice_from = self._quiet
        elif power >= _LOUD:
            self._slots = 0
        else:
            self._hear_soft(power)
        return power >= self._voice_from

    def hear_nothing(self) -> None:
        """Nothing came: that says nothing of the line."""
        self._slots = 0

    def _hear_soft(self, power: float) -> None:
        softest, loudest = min(self._softest, power), max(self._loudest, power)
        if not self._slots or loudest > softest * _STEADY:
            self._slots, softest, loudest = 0, power, power
        self._slots, self._softest, self._loudest = self._slots + 1, softest, loudest
        if self._slots >= self._steady_slots:
            dbfs = 10.0 * math.log10(loudest / 32768.0**2)
            self.dbfs = dbfs if self.dbfs is None else max(self.dbfs, dbfs)
            self._voice_from = power_at(voice_from_dbfs(self.dbfs))
