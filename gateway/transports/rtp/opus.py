"""Opus in RTP, both ways (RFC 7587): 24 kHz mono in, 16 kHz mono out."""

from __future__ import annotations

from engines.api import Pcm16
from gateway.transports.rtp.decoding import OpusDecoding
from streaming.audio.opus import ENCODER_HZ, OpusEncoder


class Opus(OpusDecoding):
    """One call's coding."""

    name = "opus"
    encode_hz = ENCODER_HZ
    tail_frames = 10
    """Coded silence after the voice; then the last packet of it again and again, which costs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._encoder = OpusEncoder()

    def encode(self, pcm: Pcm16) -> bytes:
        """20 ms."""
        return self._encoder.encode(pcm)
