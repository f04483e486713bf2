"""When the agents talk, and what they say."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

Pcm16 = npt.NDArray[np.int16]

FRAME_MS = 20
AGENT_HZ = 24_000
HEARD_HZ = 16_000
AGENT_FRAME = AGENT_HZ * FRAME_MS // 1000
LINES = Path(__file__).parents[2] / "loadtest" / "lines"


@dataclass(frozen=True, slots=True)
class Pattern:
    """Every agent talks ``on_ms``, is silent ``off_ms``, and so on. 0 ms of silence: it talks all the time."""

    on_ms: int
    off_ms: int

    def talking(self, at_ms: float, call: int) -> bool:
        """Whether the agent of call number ``call`` talks: calls take turns, so that their talk is spread evenly."""
        if not self.off_ms:
            return True
        period_ms = self.on_ms + self.off_ms
        # The golden ratio spreads any number of calls over the period.
        return (at_ms + call * 0.618034 * period_ms) % period_ms < self.on_ms


class Speech:
    """Speech of an agent, 24 kHz mono, looped, cut into frames of 20 ms."""

    def __init__(self, pcm: Pcm16) -> None:
        self._frames = pcm[: len(pcm) - len(pcm) % AGENT_FRAME].reshape(-1, AGENT_FRAME)

    def frame(self, index: int) -> Pcm16:
        """The frame number ``index``, shape (480,)."""
        row: Pcm16 = self._frames[index % len(self._frames)]
        return row

    def frames(self, start: int, count: int) -> Pcm16:
        """``count`` frames from number ``start`` on, shape (count * 480,)."""
        return np.concatenate([self.frame(start + index) for index in range(count)])


def joined_lines(folder: Path) -> Pcm16:
    """Every recording of ``folder``, one after the other, at 24 kHz, shape (n,)."""
    resampler = av.AudioResampler(format="s16", layout="mono", rate=AGENT_HZ)
    pieces: list[Pcm16] = []
    for path in sorted(folder.glob("*.wav")):
        with av.open(io.BytesIO(path.read_bytes()), "r") as container:
            for frame in container.decode(audio=0):
                frame.pts = None
                pieces += [piece.to_ndarray()[0] for piece in resampler.resample(frame)]
    return np.concatenate(pieces)
