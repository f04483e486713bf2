"""When the agents talk, and the speech on both sides: ready-made, for nobody to make while others measure."""

from __future__ import annotations

import io
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

Pcm16 = npt.NDArray[np.int16]

FRAME_MS = 20
AGENT_HZ = 24_000
HEARD_HZ = 16_000
HEARD_FRAME = HEARD_HZ * FRAME_MS // 1000
AGENT_FRAME = AGENT_HZ * FRAME_MS // 1000
RTP_HZ = 48_000
RTP_FRAME = RTP_HZ * FRAME_MS // 1000


@dataclass(frozen=True, slots=True)
class Pattern:
    """Every agent talks ``on_ms``, is silent ``off_ms``, and so on. 0 ms of silence: it talks all the time."""

    on_ms: int
    off_ms: int

    @property
    def period_ms(self) -> int:
        return self.on_ms + self.off_ms

    def talking(self, at_ms: float, call: int) -> bool:
        """Whether the agent of call number ``call`` talks: calls take turns, so that their talk is spread evenly."""
        if not self.off_ms:
            return True
        # The golden ratio spreads any number of calls over the period.
        return (at_ms + call * 0.618034 * self.period_ms) % self.period_ms < self.on_ms


class Speech:
    """Speech of an agent, 24 kHz mono, looped, cut into frames of 20 ms."""

    def __init__(self, pcm: Pcm16) -> None:
        self._frames = pcm[: len(pcm) - len(pcm) % AGENT_FRAME].reshape(-1, AGENT_FRAME)

    @classmethod
    def load(cls, path: Path) -> Speech:
        return cls(np.load(path))

    def frame(self, index: int) -> Pcm16:
        """The frame number ``index``, shape (480,)."""
        row: Pcm16 = self._frames[index % len(self._frames)]
        return row

    def frames(self, start: int, count: int) -> Pcm16:
        """``count`` frames from number ``start`` on, shape (count * 480,)."""
        return np.concatenate([self.frame(start + index) for index in range(count)])


def joined_lines(folder: Path, rate_hz: int) -> Pcm16:
    """Every recording of ``folder``, one after the other, resampled, shape (n,)."""
    resampler = av.AudioResampler(format="s16", layout="mono", rate=rate_hz)
    pieces: list[Pcm16] = []
    for path in sorted(folder.glob("*.wav")):
        with av.open(io.BytesIO(path.read_bytes()), "r") as container:
            for frame in container.decode(audio=0):
                frame.pts = None
                pieces += [piece.to_ndarray()[0] for piece in resampler.resample(frame)]
    return np.concatenate(pieces)


def opus_packets(pcm: Pcm16) -> list[bytes]:
    """48 kHz mono as Opus packets of 20 ms at 32 kbit/s, a browser's usual for a voice."""
    codec = av.CodecContext.create("libopus", "w")
    assert isinstance(codec, av.AudioCodecContext)
    codec.bit_rate = 32_000
    codec.format = av.AudioFormat("s16")
    codec.layout = av.AudioLayout("mono")
    codec.sample_rate = RTP_HZ
    codec.time_base = Fraction(1, RTP_HZ)
    codec.options = {"application": "voip"}
    packets: list[bytes] = []
    for start in range(0, len(pcm) - RTP_FRAME + 1, RTP_FRAME):
        frame = av.AudioFrame.from_ndarray(pcm[None, start : start + RTP_FRAME], layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RTP_HZ, start, Fraction(1, RTP_HZ)
        packets += [bytes(packet) for packet in codec.encode(frame)]
    return packets
