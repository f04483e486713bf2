"""What an :class:`gateway.transports.rtp.receiver.RtpReceiver` asks of a codec, and Opus as one."""

from __future__ import annotations

from typing import Protocol

from engines.api import Pcm16
from streaming.audio.opus import DECODER_HZ, MAX_PACKET_TICKS, RTP_CLOCK_HZ, OpusDecoder, packet_ticks

_NOT_CODED_BYTES = 2
"""A packet no longer than this says that nothing was coded: the sender is silent until a longer one (DTX)."""


class Decoding(Protocol):
    """One stream of one codec."""

    @property
    def clock_hz(self) -> int:
        """Of the RTP timestamps: a tick is one of it."""

    @property
    def rate_hz(self) -> int:
        """Of the audio that comes out; it divides, or is a multiple of, ``clock_hz``."""

    @property
    def longest_hole_ticks(self) -> int:
        """What :meth:`conceal` takes."""

    def ticks(self, payload: bytes) -> int:
        """How much audio a payload holds, more than 0. Raises :class:`ValueError` if it is none."""

    def decode(self, payload: bytes) -> Pcm16:
        """The audio of ``ticks``. Raises :class:`ValueError`; the stream goes on."""

    def conceal(self, ticks: int, following: bytes) -> Pcm16:
        """Something for what is missing before the ``following`` payload (empty: it is not known)."""

    def is_quiet(self, payload: bytes) -> bool:
        """Whether the payload says that the sender is silent, and sends no more until it is not."""


class OpusDecoding:
    """To 16 kHz mono."""

    clock_hz = RTP_CLOCK_HZ
    rate_hz = DECODER_HZ
    longest_hole_ticks = MAX_PACKET_TICKS

    def __init__(self) -> None:
        self._decoder = OpusDecoder()

    def ticks(self, payload: bytes) -> int:
        return packet_ticks(payload)

    def decode(self, payload: bytes) -> Pcm16:
        return self._decoder.decode(payload)

    def conceal(self, ticks: int, following: bytes) -> Pcm16:
        return self._decoder.conceal(ticks, following or None)

    def is_quiet(self, payload: bytes) -> bool:
        return 0 < len(payload) <= _NOT_CODED_BYTES
