"""What a caller's microphone picks up beside the voice: noise, and an echo of what its loudspeaker plays.

Sans-IO, one frame of 20 ms at a time. The echo is the agent's own voice, late and soft: what a speakerphone sends back,
and a common cause of agents that interrupt themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Pcm16 = npt.NDArray[np.int16]

FRAME_MS = 20

MAX_ECHO_MS = 2_000.0


@dataclass(frozen=True, slots=True)
class Noise:
    """``loop`` is played round and round from ``start``, at the call's rate."""

    loop: Pcm16 = field(repr=False)
    start: int = 0


@dataclass(frozen=True, slots=True)
class Echo:
    """What is heard comes back ``delay_ms`` later (20 ms at least: it is heard frame by frame), ``loss_db`` softer.
    Raises :class:`ValueError`."""

    loss_db: float
    delay_ms: float

    def __post_init__(self) -> None:
        if not FRAME_MS <= self.delay_ms <= MAX_ECHO_MS or self.loss_db < 0:
            raise ValueError(f"an echo is {FRAME_MS} to {MAX_ECHO_MS:.0f} ms late, and no louder than what was heard")


class CallerSound:
    """One call's; frames are mono int16 of 20 ms at ``rate_hz``."""

    def __init__(self, rate_hz: int, noise: Noise | None = None, echo: Echo | None = None) -> None:
        self._frame_samples = rate_hz * FRAME_MS // 1000
        self._noise = noise
        self._at = noise.start % len(noise.loop) if noise is not None else 0
        self._gain = np.float32(10 ** (-echo.loss_db / 20)) if echo is not None else None
        late_samples = round((echo.delay_ms - FRAME_MS) * rate_hz / 1000) if echo is not None else 0
        self._air = np.zeros(late_samples + self._frame_samples, dtype=np.float32)
        """The echo under way: its first frame is picked up next."""
        self._sounding = 0

    def frame(self, line: Pcm16 | None, heard: Pcm16) -> Pcm16 | None:
        """The next frame that is sent. ``line`` is the caller's own voice in it (None: it is silent), ``heard`` what
        was heard in the slot before. None: nothing but the voice is in it."""
        echo = self._echo(heard)
        if self._noise is None and echo is None:
            return None
        mix = np.zeros(self._frame_samples, dtype=np.float32) if echo is None else echo
        if self._noise is not None:
            mix += self._next_noise(self._noise.loop)
        if line is not None:
            mix[: len(line)] += line
        return np.clip(mix, -32768, 32767).astype(np.int16)

    def _echo(self, heard: Pcm16) -> npt.NDArray[np.float32] | None:
        """None while there is nothing in the air."""
        if self._gain is None:
            return None
        size = self._frame_samples
        if heard.any():
            self._air[-size:] = 0
            self._air[len(self._air) - size : len(self._air) - size + len(heard)] = heard * self._gain
            self._sounding = len(self._air)
        elif self._sounding > 0:
            self._air[-size:] = 0
        else:
            return None
        picked = self._air[:size].copy()
        self._air[:-size] = self._air[size:]
        self._sounding -= size
        return picked

    def _next_noise(self, loop: Pcm16) -> Pcm16:
        at, end = self._at, self._at + self._frame_samples
        self._at = end % len(loop)
        return loop[at:end] if end <= len(loop) else np.take(loop, range(at, end), mode="wrap")
