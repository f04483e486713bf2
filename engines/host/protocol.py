"""What crosses the socket between a gateway and an engine host: framed, versioned, sans-IO.

A frame is a length (4 bytes, big-endian) and that many bytes of MessagePack: an array of messages, each an array whose
first element names its kind. The first frame of either side is its :class:`Hello` alone, whose layout never changes.

Times are absolute seconds of ``CLOCK_MONOTONIC``, as ``time.monotonic()`` reads it: on Linux and macOS that clock is
one for all processes of the machine. A gateway whose event loop keeps another one converts (:mod:`engines.host.jobs`).

Jobs are numbered by the gateway, once for the life of a connection: whatever a host says of a number that the gateway
has forgotten is dropped.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from streaming.jobs import (
    FinalizeTranscription,
    FinalTranscript,
    Generate,
    GenerationDone,
    GenerationFailed,
    OpenTranscription,
    PartialTranscript,
    SynthesisChunk,
    SynthesisFailed,
    Synthesize,
    Token,
    ToolCalled,
    TranscriptionFailed,
)

VERSION = 2
MAGIC = "offhook-host"
MAX_FRAME_BYTES = 8 * 2**20
"""A prompt of a thousand long messages fits; a length beyond it is garbage."""
FRAME_ROOM_BYTES = 64
"""Of a frame, for what wraps its only message."""

_LENGTH = struct.Struct(">I")


class ProtocolError(Exception):
    """The other side does not speak as it must: the connection is worth nothing any more. ``code`` is one of
    ``frame_too_large``, ``truncated``, ``garbage``, ``version_mismatch``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class TooLargeError(Exception):
    """One message is longer than a frame may be: its job fails, the connection lives."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    magic: str
    version: int
    pid: int


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message: an array that begins with its class's name."""


# --- to the host ----------------------------------------------------------------------------------------------


class Backend(msgspec.Struct, frozen=True, array_like=True):
    """As much of a :class:`engines.registry.BackendSpec` as it takes to build its engine."""

    name: str
    kind: Literal["stt", "llm", "tts"]
    factory: str
    extra: str | None
    shares: Literal["lane", "mlx"] | None
    options: dict[str, Any]


class Load(_Message, frozen=True):
    """Answered by :class:`Loaded` or :class:`LoadFailed`. ``weights`` are folders, in the backend's order."""

    engine: int
    backend: Backend
    weights: tuple[str, ...]


class Unload(_Message, frozen=True):
    """Cancel what runs there, free the weights; answered by :class:`Unloaded`. An unknown engine is so, too."""

    engine: int


class OpenStream(_Message, frozen=True):
    engine: int
    job: int
    request: OpenTranscription


class Feed(_Message, frozen=True):
    """The next audio of a stream: 16-bit little-endian mono samples at 16 kHz."""

    job: int
    pcm: bytes


class FinalizeStream(_Message, frozen=True):
    job: int
    request: FinalizeTranscription


class CloseStream(_Message, frozen=True):
    job: int


class StartGeneration(_Message, frozen=True):
    engine: int
    job: int
    request: Generate


class Prioritize(_Message, frozen=True):
    engine: int
    call: str
    epoch: int


class Postpone(_Message, frozen=True):
    engine: int
    call: str
    epoch: int
    until: float


class StartSynthesis(_Message, frozen=True):
    engine: int
    job: int
    request: Synthesize


class CancelEpoch(_Message, frozen=True):
    """End the generation, or the speech, of a dead epoch: nothing more of it is sent."""

    engine: int
    call: str
    epoch: int


class ForgetCall(_Message, frozen=True):
    engine: int
    call: str


class Ping(_Message, frozen=True):
    """Answered by :class:`Pong` from the host's event loop."""

    number: int


class Stop(_Message, frozen=True):
    """Close every engine, then exit with 0."""


ToHost = (
    Load
    | Unload
    | OpenStream
    | Feed
    | FinalizeStream
    | CloseStream
    | StartGeneration
    | Prioritize
    | Postpone
    | StartSynthesis
    | CancelEpoch
    | ForgetCall
    | Ping
    | Stop
)


# --- from the host --------------------------------------------------------------------------------------------


class Loaded(_Message, frozen=True):
    """``rate_hz`` and ``voices`` are those of a text-to-speech, else 0 and ()."""

    engine: int
    rate_hz: int
    voices: tuple[str, ...]


class LoadFailed(_Message, frozen=True):
    engine: int
    code: str
    message: str


class Unloaded(_Message, frozen=True):
    engine: int


class Partial(_Message, frozen=True):
    job: int
    result: PartialTranscript


class Final(_Message, frozen=True):
    job: int
    result: FinalTranscript


class FinalFailed(_Message, frozen=True):
    job: int
    result: TranscriptionFailed


class NextToken(_Message, frozen=True):
    job: int
    result: Token


class Called(_Message, frozen=True):
    job: int
    result: ToolCalled


class Generated(_Message, frozen=True):
    job: int
    result: GenerationDone


class GenerateFailed(_Message, frozen=True):
    job: int
    result: GenerationFailed


class Chunk(_Message, frozen=True):
    job: int
    result: SynthesisChunk


class SpeechFailed(_Message, frozen=True):
    job: int
    result: SynthesisFailed


class Lane(msgspec.Struct, frozen=True, array_like=True):
    """An :class:`engines.api.LaneHealth`."""

    slots: int
    waiting: int
    running: int
    late_ms: float
    busy_s: float
    overload: int


class Vitals(msgspec.Struct, frozen=True, array_like=True):
    """How a host is beside its jobs."""

    memory_bytes: int = 0
    device_bytes: int = 0
    """Of a GPU (or of the unified memory) that MLX holds, its cache included."""
    trouble: str = ""
    """Why its MLX thread is not well, for a person: it has not come to the end of a quantum for too long."""
    dead: bool = False
    """Its MLX thread has ended by an error: only a new process can have another."""
    overload: int = 0
    """An :class:`engines.api.Overload`, as its own schedulers see it."""
    lanes: dict[str, Lane] = {}
    cpu_s: float = 0.0
    """User and system time of the process, since it began."""


class Pong(_Message, frozen=True):
    """``waiting``: jobs begun there and not answered yet; ``overflowed``: jobs that were ended since the start because
    the gateway did not take their results."""

    number: int
    waiting: int
    overflowed: int
    vitals: Vitals


Result = Partial | Final | FinalFailed | NextToken | Called | Generated | GenerateFailed | Chunk | SpeechFailed
FromHost = Loaded | LoadFailed | Unloaded | Result | Pong

RESULTS: dict[type, type[Any]] = {
    PartialTranscript: Partial,
    FinalTranscript: Final,
    TranscriptionFailed: FinalFailed,
    Token: NextToken,
    ToolCalled: Called,
    GenerationDone: Generated,
    GenerationFailed: GenerateFailed,
    SynthesisChunk: Chunk,
    SynthesisFailed: SpeechFailed,
}
"""Which message carries which result of an engine."""


# --- the codec ------------------------------------------------------------------------------------------------

_encoder = msgspec.msgpack.Encoder()
_hello = msgspec.msgpack.Decoder(Hello)
TO_HOST: msgspec.msgpack.Decoder[list[ToHost]] = msgspec.msgpack.Decoder(list[ToHost])
FROM_HOST: msgspec.msgpack.Decoder[list[FromHost]] = msgspec.msgpack.Decoder(list[FromHost])


def packed(message: ToHost | FromHost) -> bytes:
    """One message, to be put into a frame. Raises :class:`TooLargeError`."""
    data = _encoder.encode(message)
    if len(data) > MAX_FRAME_BYTES - FRAME_ROOM_BYTES:
        raise TooLargeError(f"a {type(message).__name__} of {len(data)} bytes is longer than a frame may be")
    return data


def frame(messages: Sequence[bytes]) -> bytes:
    """The frame of :func:`packed` messages; together they must fit."""
    body = _encoder.encode([msgspec.Raw(message) for message in messages])
    return _LENGTH.pack(len(body)) + body


def hello_frame(pid: int, version: int = VERSION) -> bytes:
    body = _encoder.encode(Hello(MAGIC, version, pid))
    return _LENGTH.pack(len(body)) + body


def read_hello(body: bytes) -> Hello:
    """The first frame's. Raises :class:`ProtocolError`."""
    try:
        hello = _hello.decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError("garbage", f"the first frame is no hello: {error}") from None
    if hello.magic != MAGIC:
        raise ProtocolError("garbage", "the first frame is some other program's hello")
    if hello.version != VERSION:
        raise ProtocolError(
            "version_mismatch",
            f"the other side speaks version {hello.version} of the host protocol, this one {VERSION}: "
            "both must run the same release of Offhook",
        )
    return hello


def read_messages(body: bytes, decoder: msgspec.msgpack.Decoder[list[Any]]) -> list[Any]:
    """A later frame's. Raises :class:`ProtocolError`."""
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError("garbage", f"a frame that cannot be read: {error}") from None


class FrameReader:
    """Bytes in, whole frames out. Holds at most one frame and what one read brought."""

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies of the frames that are whole now. Raises :class:`ProtocolError` for a length beyond the bound."""
        self._buffer += data
        bodies = []
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            if length > self._max_bytes:
                raise ProtocolError("frame_too_large", f"a frame of {length} bytes; at most {self._max_bytes} are read")
            end = at + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[at + _LENGTH.size : end]))
            at = end
        del self._buffer[:at]
        return bodies

    def finish(self) -> None:
        """The other side has closed. Raises :class:`ProtocolError` if it did so inside a frame."""
        if self._buffer:
            raise ProtocolError("truncated", f"the connection ended {len(self._buffer)} bytes into a frame")
