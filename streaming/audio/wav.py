"""WAV files as bytes (Microsoft/IBM RIFF; Multimedia Programming Interface 1.0; WAVE_FORMAT_EXTENSIBLE)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Pcm16 = npt.NDArray[np.int16]

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE


class WavError(ValueError):
    """The bytes are not a WAV file that can be read here."""


def read_wav(data: bytes) -> tuple[Pcm16, int]:
    """Mono samples, shape (n,), and their rate in Hz.

    Takes PCM of 8, 16, 24 and 32 bits and 32-bit float, any number of channels (their mean is taken). A data chunk
    that claims more than there is (a recording cut off, a stream of unknown length) is read to its end. Raises
    :class:`WavError`.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise WavError("not a RIFF/WAVE file")
    layout: tuple[int, int, int, int] | None = None
    at = 12
    while at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        body = data[at + 8 : at + 8 + size]
        if name == b"fmt ":
            layout = _layout(body)
        elif name == b"data":
            if layout is None:
                raise WavError("data before format")
            return _samples(body, *layout[:3]), layout[3]
        at += 8 + size + size % 2
    raise WavError("no data chunk")


def _layout(body: bytes) -> tuple[int, int, int, int]:
    """Format tag, channels, bits a sample, rate."""
    if len(body) < 16:
        raise WavError("format chunk too short")
    tag, channels, rate_hz, _, _, bits = struct.unpack_from("<HHIIHH", body)
    if tag == _EXTENSIBLE and len(body) >= 26:
        (tag,) = struct.unpack_from("<H", body, 24)
    if channels == 0 or rate_hz == 0:
        raise WavError("no channels or no rate")
    return tag, channels, bits, rate_hz


def _samples(body: bytes, tag: int, channels: int, bits: int) -> Pcm16:
    frame = channels * (bits // 8)
    body = body[: len(body) // frame * frame] if frame else b""
    values: npt.NDArray[np.float64]
    if (tag, bits) == (_PCM, 16):
        values = np.frombuffer(body, dtype="<i2").astype(np.float64)
    elif (tag, bits) == (_PCM, 8):
        values = (np.frombuffer(body, dtype=np.uint8).astype(np.float64) - 128.0) * 256.0
    elif (tag, bits) == (_PCM, 24):
        octets = np.frombuffer(body, dtype=np.uint8).reshape(-1, 3)
        padded = np.concatenate((np.zeros((len(octets), 1), dtype=np.uint8), octets), axis=1)
        values = padded.view("<i4")[:, 0].astype(np.float64) / 65536.0
    elif (tag, bits) == (_PCM, 32):
        values = np.frombuffer(body, dtype="<i4").astype(np.float64) / 65536.0
    elif (tag, bits) == (_FLOAT, 32):
        values = np.nan_to_num(np.frombuffer(body, dtype="<f4").astype(np.float64)) * 32768.0
    else:
        raise WavError(f"unsupported WAV encoding: format {tag}, {bits} bits")
    mono = np.clip(np.rint(values.reshape(-1, channels).mean(axis=1)), -32768, 32767)
    samples: Pcm16 = mono.astype(np.int16)
    return samples


def encode_wav(channels: Sequence[Pcm16], rate_hz: int) -> bytes:
    """A 16-bit PCM WAV with one channel per array of shape (n,); shorter ones are padded with silence.

    Raises :class:`ValueError` without channels."""
    frames = max(len(channel) for channel in channels)
    block = np.zeros((frames, len(channels)), dtype="<i2")
    for column, channel in enumerate(channels):
        block[: len(channel), column] = channel
    body = block.tobytes()
    frame = 2 * len(channels)
    header = struct.pack("<HHIIHH", _PCM, len(channels), rate_hz, rate_hz * frame, frame, 16)
    chunks = b"WAVEfmt " + struct.pack("<I", len(header)) + header + b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks
