"""From speech probabilities to the two edges a conversation needs: hysteresis, with the edges dated back."""

from __future__ import annotations

from dataclasses import dataclass

from streaming.jobs import INPUT_RATE_HZ

WINDOW_SAMPLES = 512
"""The window of Silero VAD at 16 kHz."""
WINDOW_MS = 32

HYSTERESIS = 0.15
"""Once speaking, a window counts as voiced down to this much below the threshold (Silero's own rule)."""

ONSET_WINDOWS = 2
OFFSET_WINDOWS = 2


@dataclass(frozen=True, slots=True)
class VoiceStarted:
    """``at_samples`` is where the first voiced window begins."""

    at_samples: int


@dataclass(frozen=True, slots=True)
class VoiceStopped:
    """``at_samples`` is where the last voiced window ends."""

    at_samples: int


class VoiceGate:
    """Speech begins after two voiced windows in a row (64 ms: a click has one), and pauses after two silent ones (the
    model's own inertia bridges the closure of a plosive)."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.speaking = False
        self.voiced_end_samples = 0
        """Where the last voiced window ended."""
        self._voiced_run = 0
        self._silent_run = 0

    @property
    def rising(self) -> bool:
        """Whether the last window was voiced: not enough for an onset yet, too much to call it silence."""
        return self._voiced_run > 0

    def feed(self, probability: float, end_samples: int) -> VoiceStarted | VoiceStopped | None:
        """One window that ends at ``end_samples``."""
        level = self.threshold - HYSTERESIS if self.speaking else self.threshold
        if probability >= level:
            self._silent_run = 0
            self._voiced_run += 1
            self.voiced_end_samples = end_samples
            if not self.speaking and self._voiced_run >= ONSET_WINDOWS:
                self.speaking = True
                return VoiceStarted(max(0, end_samples - self._voiced_run * WINDOW_SAMPLES))
            return None
        self._voiced_run = 0
        if self.speaking:
            self._silent_run += 1
            if self._silent_run >= OFFSET_WINDOWS:
                self.speaking = False
                self._silent_run = 0
                return VoiceStopped(self.voiced_end_samples)
        return None


def samples_to_ms(samples: int) -> int:
    """Input samples (16 kHz) to whole milliseconds."""
    return samples * 1000 // INPUT_RATE_HZ


def ms_to_samples(ms: float) -> int:
    """Milliseconds to input samples (16 kHz)."""
    return int(ms * INPUT_RATE_HZ / 1000)
