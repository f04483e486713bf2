"""Speech that comes as a stream of bytes, cut anywhere, to PCM blocks of at most 200 ms. Without IO."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from engines.tts.spoken_audio import CHUNK_MS
from streaming.audio.resample import Resampler

LEAST_MS = 20
"""Smaller pieces wait for more: a server that dribbles must not cost a message a sample."""
MAX_HEADER_BYTES = 4096

_AUDIBLE = 164
"""Of full scale -46 dB: below it a stream has not begun to speak."""
_LEAD_MS = 30
"""Kept before the first audible sample: consonants rise from nothing."""


class BadStreamError(Exception):
    """The bytes are no 16-bit PCM."""


class StreamedPcm:
    """Takes raw 16-bit little-endian mono samples at ``rate_hz``, or a WAV file of any rate and one or two channels
    (its sizes, which streams don't know, are not believed). Silence before the first sound is left out: services pad
    by up to half a second, and the caller waits for it."""

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._head: bytearray | None = bytearray()  # until it is known what comes
        self._odd = b""
        self._channels = 1
        self._resampler: Resampler | None = None
        self._held = np.zeros(0, np.int16)
        self.audible = False
        self.samples = 0
        """Handed out so far."""

    def feed(self, block: bytes) -> Iterator[bytes]:
        """Raises :class:`BadStreamError`."""
        if self._head is not None:
            self._head += block
            block = self._begin()
        yield from self._cut(self._decode(block), LEAST_MS)

    def end(self) -> bytes:
        """What is left: under 200 ms, perhaps nothing. Half a sample is dropped."""
        rest = b""
        if self._head is not None:
            rest, self._head = bytes(self._head), None
            if rest[:4] == b"RIFF":
                raise BadStreamError("a WAV file ends in its header")
        pcm = self._decode(rest)
        if self._resampler is not None:
            pcm = np.concatenate((pcm, self._resampler.flush()))
        return b"".join(self._cut(pcm, 0))

    def _begin(self) -> bytes:
        """The samples that follow the header; none while it is not all there."""
        head = self._head
        assert head is not None
        if len(head) < 12:
            return b""
        if head[:4] != b"RIFF":
            if head.lstrip().startswith((b"ID3", b"fLaC", b"OggS", b"{", b"<")) or _is_frame(head):
                raise BadStreamError("the server sent something else than PCM")
            self._head = None
            return bytes(head)
        at, known = 12, False
        while at + 8 <= len(head):
            name, size = struct.unpack_from("<4sI", head, at)
            if name == b"data":
                if not known:
                    raise BadStreamError("a WAV file without a format")
                self._head = None
                return bytes(head[at + 8 :])
            if name == b"fmt ":
                if at + 24 > len(head):
                    break
                self._read_format(head, at + 8)
                known = True
            at += 8 + size + size % 2
        if len(head) > MAX_HEADER_BYTES:
            raise BadStreamError("a WAV file whose samples never begin")
        return b""

    def _read_format(self, head: bytearray, at: int) -> None:
        _, channels, rate_hz, _, _, bits = struct.unpack_from("<HHIIHH", head, at)
        if bits != 16 or channels not in (1, 2):
            raise BadStreamError(f"a WAV file of {channels} channels, {bits} bits")
        self._channels = channels
        if rate_hz != self._rate_hz:
            try:
                self._resampler = Resampler(rate_hz, self._rate_hz)
            except ValueError as error:
                raise BadStreamError(str(error)) from error

    def _decode(self, block: bytes) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
        block = self._odd + block
        whole = len(block) - len(block) % (2 * self._channels)
        self._odd = block[whole:]
        pcm = np.frombuffer(block[:whole], dtype="<i2").astype(np.int16)
        if self._channels == 2:
            pcm = (pcm.reshape(-1, 2).astype(np.int32).sum(axis=1) // 2).astype(np.int16)
        return pcm if self._resampler is None else self._resampler.process(pcm)

    def _cut(self, pcm: np.ndarray[tuple[int], np.dtype[np.int16]], least_ms: int) -> Iterator[bytes]:
        held = np.concatenate((self._held, pcm)) if self._held.size else pcm
        if not self.audible:
            loud = np.flatnonzero(np.abs(held.astype(np.int32)) > _AUDIBLE)
            lead = self._rate_hz * _LEAD_MS // 1000
            self.audible = bool(loud.size)
            held = held[max(0, int(loud[0]) - lead) :] if loud.size else held[-lead:]
            if not loud.size:
                self._held = held.copy()
                return
        step = self._rate_hz * CHUNK_MS // 1000
        least = max(1, self._rate_hz * least_ms // 1000)
        at = 0
        while held.size - at >= least:
            piece = held[at : at + step]
            at += piece.size
            self.samples += piece.size
            yield piece.astype("<i2", copy=False).tobytes()
        self._held = held[at:].copy()


def _is_frame(head: bytes | bytearray) -> bool:
    """Of MP3 (ISO 11172-3, 2.4.1.3: layer III, a bit rate and a sampling rate that there are) or of AAC (ISO 13818-7,
    6.2.1). Played as PCM it would be noise at full scale."""
    if head[0] != 0xFF:
        return False
    mp3 = head[1] & 0xE6 == 0xE2 and head[1] & 0x18 != 0x08 and head[2] >> 4 not in (0, 15) and head[2] & 0x0C != 0x0C
    return mp3 or head[1] & 0xF6 == 0xF0
