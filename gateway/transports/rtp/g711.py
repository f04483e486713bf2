"""G.711 in RTP: one byte a sample at 8 kHz, both ways by table, and something for what is lost (RFC 3551, 4.5.14)."""

from __future__ import annotations

from collections.abc import Callable

from engines.api import Pcm16
from gateway.transports.rtp.concealment import Concealment
from streaming.audio.g711 import decode_alaw, decode_mulaw, encode_alaw, encode_mulaw

CLOCK_HZ = 8000
MAX_PACKET_SAMPLES = 1600
"""200 ms: more than anybody sends at once."""


class G711:
    """One call's coding of one law. Stateless but for the concealment."""

    clock_hz = rate_hz = encode_hz = CLOCK_HZ
    longest_hole_ticks = 480
    """60 ms, over which concealment fades out (G.711 Appendix I, section I.2.7)."""

    tail_frames = 2

    def __init__(self, law: str) -> None:
        """``pcmu`` or ``pcma``."""
        self.name = law
        self._encode, self._decode = _LAWS[law]
        self._concealment = Concealment(CLOCK_HZ)

    def ticks(self, payload: bytes) -> int:
        if not 0 < len(payload) <= MAX_PACKET_SAMPLES:
            raise ValueError(f"{len(payload)} bytes")
        return len(payload)

    def decode(self, payload: bytes) -> Pcm16:
        return self._concealment.heard(self._decode(payload))

    def conceal(self, ticks: int, following: bytes) -> Pcm16:
        return self._concealment.conceal(ticks)

    def is_quiet(self, payload: bytes) -> bool:
        return False

    def encode(self, pcm: Pcm16) -> bytes:
        """20 ms."""
        return self._encode(pcm)


_LAWS: dict[str, tuple[Callable[[Pcm16], bytes], Callable[[bytes], Pcm16]]] = {
    "pcmu": (encode_mulaw, decode_mulaw),
    "pcma": (encode_alaw, decode_alaw),
}
