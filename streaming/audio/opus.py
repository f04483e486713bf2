"""Opus (RFC 6716) by libopus itself, over ctypes: mono in at 24 kHz, mono out at 16 kHz, no frame object between.

libopus resamples inside: it decodes to 8, 12, 16, 24 or 48 kHz and takes the same as input, so nothing here does.
A mono stream stays mono, so its level is what it was (FFmpeg's way through stereo costs 3 dB). The library is the one
in PyAV's wheel, which aiortc needs in any case, or else the system's.

Calls keep the interpreter's lock (:class:`ctypes.PyDLL`): they take 20-200 us, and giving the lock away for so little
would let a busy worker thread keep it for a whole switch interval, 5 ms.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.util
from pathlib import Path

import numpy as np
import numpy.typing as npt

Pcm16 = npt.NDArray[np.int16]

RTP_CLOCK_HZ = 48_000
"""Opus in RTP counts at 48 kHz whatever it carries (RFC 7587, section 4.1)."""

ENCODER_HZ = 24_000
DECODER_HZ = 16_000
FRAME_TICKS = 960
"""20 ms."""
MAX_PACKET_TICKS = 5760
"""120 ms, the longest packet there is (RFC 6716, section 3.2.5)."""
MAX_PACKET_BYTES = 1275
"""The longest frame, and so the longest packet that this encoder makes (RFC 6716, section 3.2.1)."""
TICKS_PER_SAMPLE = RTP_CLOCK_HZ // DECODER_HZ
_SHORTEST_TICKS = 120
"""2.5 ms: what libopus conceals is a multiple of it."""

_OK = 0
_APPLICATION_VOIP = 2048
_SIGNAL_VOICE = 3001
_RESET_STATE = 4028
_SET_BITRATE = 4002
_SET_COMPLEXITY = 4010
_SET_INBAND_FEC = 4012
_SET_PACKET_LOSS_PERC = 4014
_SET_SIGNAL = 4024

# Frame sizes of RFC 6716, table 2, by the 32 configurations of a packet's first byte, in 48 kHz samples.
_SILK = (480, 960, 1920, 2880)
_HYBRID = (480, 960)
_CELT = (120, 240, 480, 960)
_FRAME_TICKS_BY_CONFIG = _SILK * 3 + _HYBRID * 2 + _CELT * 4


class OpusUnavailable(RuntimeError):  # noqa: N818 (a state of the machine)
    """There is no libopus to be found. ``str()`` says where it was looked for and what brings it."""


class BadPacket(ValueError):  # noqa: N818 (counted and concealed, not a defect)
    """Not an Opus packet."""


def packet_ticks(packet: bytes) -> int:
    """How much audio a packet holds, in 48 kHz samples. Raises :class:`BadPacket`.

    Looks at the frame count and the code only (RFC 6716, section 3.1); the decoder finds the rest.
    """
    if not packet:
        raise BadPacket("empty")
    toc = packet[0]
    code = toc & 3
    if code == 3:
        if len(packet) < 2:
            raise BadPacket("no frame count")
        frames = packet[1] & 0x3F
    else:
        frames = 1 if code == 0 else 2
    ticks = frames * _FRAME_TICKS_BY_CONFIG[toc >> 3]
    if not 0 < ticks <= MAX_PACKET_TICKS:
        raise BadPacket(f"{frames} frames of {_FRAME_TICKS_BY_CONFIG[toc >> 3]} samples")
    return ticks


def silence_packet(like: bytes) -> bytes:
    """A packet of one frame that was not coded (DTX, RFC 6716 section 3.2.1) in the mode of ``like``: one byte."""
    return bytes([like[0] & 0xFC])


def find_library() -> str:
    """The path or name of a libopus to load. Raises :class:`OpusUnavailable`."""
    spec = importlib.util.find_spec("av")  # finds the package, imports none of it
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        package = Path(root)
        for pattern in ("../av.libs/libopus*.so*", ".dylibs/libopus*.dylib", "../av.libs/*opus*.dll"):
            for found in sorted(package.glob(pattern)):
                return str(found)
    name = ctypes.util.find_library("opus")
    if name is None:
        raise OpusUnavailable(
            "libopus is neither in the av package (its wheels from PyPI bring it) nor installed on the system "
            "(Debian: libopus0, Homebrew: opus)"
        )
    return name


@functools.lru_cache(maxsize=1)
def _library() -> ctypes.PyDLL:
    name = find_library()
    try:
        library = ctypes.PyDLL(name)
        _declare(library)
    except (OSError, AttributeError) as error:
        raise OpusUnavailable(f"{name} cannot be used: {error}") from error
    return library


def _declare(library: ctypes.PyDLL) -> None:
    integer, pointer = ctypes.c_int, ctypes.c_void_p
    library.opus_encoder_get_size.argtypes = library.opus_decoder_get_size.argtypes = [integer]
    library.opus_encoder_get_size.restype = library.opus_decoder_get_size.restype = integer
    library.opus_encoder_init.argtypes = [pointer, ctypes.c_int32, integer, integer]
    library.opus_decoder_init.argtypes = [pointer, ctypes.c_int32, integer]
    library.opus_encode.argtypes = [pointer, pointer, integer, pointer, ctypes.c_int32]
    library.opus_encode.restype = ctypes.c_int32
    library.opus_decode.argtypes = [pointer, ctypes.c_char_p, ctypes.c_int32, pointer, integer, integer]
    library.opus_decode.restype = integer
    library.opus_strerror.argtypes = [integer]
    library.opus_strerror.restype = ctypes.c_char_p


def _said(library: ctypes.PyDLL, code: int) -> str:
    text: bytes = library.opus_strerror(code)
    return text.decode()


class OpusEncoder:
    """One stream of speech, mono int16 at :data:`ENCODER_HZ`, 20 ms a packet.

    With in-band FEC: each packet carries a coarse copy of the one before it, so that a lost one can be had from the
    next (RFC 6716, section 2.1.7). Raises :class:`OpusUnavailable`.
    """

    __slots__ = ("_library", "_out", "_state", "_state_address")

    def __init__(self, *, bitrate: int = 32_000, complexity: int = 5, expected_loss_percent: int = 10) -> None:
        self._library = _library()
        # The state lies in memory of Python's own: nothing is left to free.
        self._state = ctypes.create_string_buffer(self._library.opus_encoder_get_size(1))
        self._state_address = ctypes.addressof(self._state)
        self._out = ctypes.create_string_buffer(MAX_PACKET_BYTES)
        code = self._library.opus_encoder_init(self._state_address, ENCODER_HZ, 1, _APPLICATION_VOIP)
        if code != _OK:
            raise OpusUnavailable(f"no encoder: {_said(self._library, code)}")
        self._set(_SET_BITRATE, bitrate)
        self._set(_SET_COMPLEXITY, complexity)
        self._set(_SET_SIGNAL, _SIGNAL_VOICE)
        self._set(_SET_INBAND_FEC, 1)
        self._set(_SET_PACKET_LOSS_PERC, expected_loss_percent)

    def _set(self, request: int, value: int) -> None:
        # Variadic in C: the arguments are typed here, for their declaration cannot be.
        code = self._library.opus_encoder_ctl(ctypes.c_void_p(self._state_address), request, ctypes.c_int32(value))
        if code != _OK:
            raise ValueError(f"encoder setting {request} = {value}: {_said(self._library, code)}")

    def encode(self, pcm: Pcm16) -> bytes:
        """One packet of ``pcm``, shape (n,), n one of Opus' frame sizes: 2.5, 5, 10, 20, 40 or 60 ms.

        Raises :class:`ValueError` for another length.
        """
        pcm = np.ascontiguousarray(pcm, dtype=np.int16)
        size = self._library.opus_encode(
            self._state_address, pcm.ctypes.data, len(pcm), ctypes.addressof(self._out), MAX_PACKET_BYTES
        )
        if size < 0:
            raise ValueError(f"{len(pcm)} samples: {_said(self._library, size)}")
        return self._out.raw[:size]

    def reset(self) -> None:
        """Forget the stream: the next frame is the first of a new one."""
        self._library.opus_encoder_ctl(ctypes.c_void_p(self._state_address), _RESET_STATE)


class OpusDecoder:
    """One stream from the wire, to mono int16 at ``rate_hz``: 8, 12, 16, 24 or 48 kHz. Raises
    :class:`OpusUnavailable`."""

    __slots__ = ("_address", "_library", "_out", "_state", "_state_address", "_ticks_per_sample")

    def __init__(self, rate_hz: int = DECODER_HZ) -> None:
        self._library = _library()
        self._state = ctypes.create_string_buffer(self._library.opus_decoder_get_size(1))
        self._state_address = ctypes.addressof(self._state)
        self._ticks_per_sample = RTP_CLOCK_HZ // rate_hz
        self._out = np.zeros(MAX_PACKET_TICKS // self._ticks_per_sample, dtype=np.int16)
        self._address = self._out.ctypes.data
        code = self._library.opus_decoder_init(self._state_address, rate_hz, 1)
        if code != _OK:
            raise OpusUnavailable(f"no decoder: {_said(self._library, code)}")

    def decode(self, packet: bytes) -> Pcm16:
        """The packet's audio, shape (n,), n by :func:`packet_ticks`. Raises :class:`BadPacket`; the stream goes on."""
        if not packet:
            raise BadPacket("empty")  # libopus would conceal
        return self._decode(packet, len(self._out), fec=False)

    def conceal(self, ticks: int, following: bytes | None = None) -> Pcm16:
        """What libopus makes of ``ticks`` that were lost, at 16 kHz of shape (ticks // 3,): the end of it from the
        redundancy that the ``following`` packet has of them (if it has), the rest from what was heard before.

        ``ticks`` at most :data:`MAX_PACKET_TICKS`; what is over a multiple of 2.5 ms comes as silence.
        """
        if not 0 < ticks <= MAX_PACKET_TICKS:
            raise ValueError(f"{ticks} ticks")
        samples = ticks // self._ticks_per_sample
        whole = ticks // _SHORTEST_TICKS * _SHORTEST_TICKS // self._ticks_per_sample
        try:
            pcm = self._decode(following, whole, fec=following is not None) if whole else self._out[:0]
        except BadPacket:
            pcm = self._decode(None, whole, fec=False)
        return np.pad(pcm, (0, samples - whole)) if whole < samples else pcm

    def _decode(self, packet: bytes | None, samples: int, *, fec: bool) -> Pcm16:
        size = self._library.opus_decode(
            self._state_address, packet, len(packet or b""), self._address, samples, int(fec)
        )
        if size < 0:
            raise BadPacket(_said(self._library, size))
        return self._out[:size].copy()
