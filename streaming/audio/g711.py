"""G.711 µ-law and A-law (ITU-T G.711, 11/1988), int16 samples to bytes and back, by table lookup.

The tables are built once at import from the recommendation's segment rule; µ-law takes the upper 14 bits of a sample,
A-law the upper 13.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Pcm16 = npt.NDArray[np.int16]

_SAMPLES = np.arange(65536, dtype=np.uint16).view(np.int16).astype(np.int32)
_CODES = np.arange(256, dtype=np.int32)
_MULAW_BIAS = 33
_MULAW_MAX = 8158  # of 14 bits; what lies above shares its code


def _segment(magnitude: npt.NDArray[np.int32], first_end: int) -> npt.NDArray[np.int32]:
    """Which of the eight segments, each twice as wide as the one before, a magnitude falls in (0..7)."""
    ends = np.array([((first_end + 1) << n) - 1 for n in range(8)], dtype=np.int32)
    return np.searchsorted(ends, magnitude).astype(np.int32)


def _mulaw_encode_table() -> npt.NDArray[np.uint8]:
    linear = _SAMPLES >> 2
    magnitude = np.minimum(np.abs(linear), _MULAW_MAX) + _MULAW_BIAS
    segment = _segment(magnitude, 0x3F)
    code = (segment << 4) | ((magnitude >> (segment + 1)) & 0x0F)
    table: npt.NDArray[np.uint8] = (code ^ np.where(linear < 0, 0x7F, 0xFF)).astype(np.uint8)
    return table


def _alaw_encode_table() -> npt.NDArray[np.uint8]:
    linear = _SAMPLES >> 3
    magnitude = np.where(linear < 0, -linear - 1, linear)
    segment = _segment(magnitude, 0x1F)
    code = (segment << 4) | ((magnitude >> np.maximum(segment, 1)) & 0x0F)
    return (code ^ np.where(linear < 0, 0x55, 0xD5)).astype(np.uint8)


def _mulaw_decode_table() -> Pcm16:
    code = _CODES ^ 0xFF
    magnitude = ((((code & 0x0F) << 3) + 0x84) << ((code >> 4) & 7)) - 0x84
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.int16)


def _alaw_decode_table() -> Pcm16:
    code = _CODES ^ 0x55
    segment = (code >> 4) & 7
    step = (code & 0x0F) << 4
    magnitude = np.where(segment == 0, step + 8, (step + 0x108) << np.maximum(segment - 1, 0))
    return np.where(code & 0x80, magnitude, -magnitude).astype(np.int16)


_MULAW_ENCODE = _mulaw_encode_table()
_ALAW_ENCODE = _alaw_encode_table()
_MULAW_DECODE = _mulaw_decode_table()
_ALAW_DECODE = _alaw_decode_table()


def encode_mulaw(pcm: Pcm16) -> bytes:
    """One byte a sample; ``pcm`` has shape (n,)."""
    return _MULAW_ENCODE.take(pcm.view(np.uint16)).tobytes()


def decode_mulaw(data: bytes) -> Pcm16:
    """One sample a byte, shape (n,)."""
    return _MULAW_DECODE.take(np.frombuffer(data, dtype=np.uint8))


def encode_alaw(pcm: Pcm16) -> bytes:
    """One byte a sample; ``pcm`` has shape (n,)."""
    return _ALAW_ENCODE.take(pcm.view(np.uint16)).tobytes()


def decode_alaw(data: bytes) -> Pcm16:
    """One sample a byte, shape (n,)."""
    return _ALAW_DECODE.take(np.frombuffer(data, dtype=np.uint8))
