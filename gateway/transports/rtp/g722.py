"""G.722 at 64 kbit/s in RTP (RFC 3551, section 4.5.2): 16 kHz audio, by FFmpeg's codec in PyAV's wheel.

Its RTP clock is 8 kHz by an old error of RFC 1890 that stands: a tick is one byte, and two samples.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import av
import numpy as np
from av.audio.codeccontext import AudioCodecContext

from engines.api import Pcm16
from gateway.transports.rtp.concealment import Concealment

RATE_HZ = 16_000
_SAMPLES_PER_TICK = 2
MAX_PACKET_TICKS = 1600
"""200 ms."""


class G722:
    """One call's coding."""

    name = "g722"
    clock_hz = 8000
    rate_hz = encode_hz = RATE_HZ
    longest_hole_ticks = 480
    tail_frames = 1 << 62
    """The codec's state is one with the far end's: silence is coded, too."""

    def __init__(self) -> None:
        self._encoder, self._decoder = _context("w"), _context("r")
        self._concealment = Concealment(RATE_HZ)

    def ticks(self, payload: bytes) -> int:
        if not 0 < len(payload) <= MAX_PACKET_TICKS:
            raise ValueError(f"{len(payload)} bytes")
        return len(payload)

    def decode(self, payload: bytes) -> Pcm16:
        """Raises :class:`ValueError`."""
        try:
            frames = self._decoder.decode(av.Packet(payload))
        except av.FFmpegError as error:
            raise ValueError(str(error)) from error
        blocks = [frame.to_ndarray()[0] for frame in frames]
        pcm: Pcm16 = np.concatenate(blocks) if len(blocks) != 1 else blocks[0]
        if len(pcm) != len(payload) * _SAMPLES_PER_TICK:
            raise ValueError(f"{len(pcm)} samples of {len(payload)} bytes")
        return self._concealment.heard(pcm)

    def conceal(self, ticks: int, following: bytes) -> Pcm16:
        return self._concealment.conceal(ticks * _SAMPLES_PER_TICK)

    def is_quiet(self, payload: bytes) -> bool:
        return False

    def encode(self, pcm: Pcm16) -> bytes:
        """An even number of samples."""
        frame = av.AudioFrame.from_ndarray(pcm[None], format="s16", layout="mono")
        frame.sample_rate = RATE_HZ
        return b"".join(bytes(packet) for packet in self._encoder.encode(frame))


def _context(mode: Literal["r", "w"]) -> AudioCodecContext:
    context = av.CodecContext.create("g722", mode)
    context.sample_rate, context.layout, context.format = RATE_HZ, "mono", "s16"
    if mode == "w":
        context.time_base = Fraction(1, RATE_HZ)
    context.thread_count = 1
    return context
