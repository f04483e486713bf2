"""What a run and its generators say to each other: one JSON object a line, through the generator's standard input and
output."""

from __future__ import annotations

import msgspec

from loadtest.arrivals import Arrival
from loadtest.call import PhoneOptions
from loadtest.outcome import CallOutcome

MAX_LINE_BYTES = 64 * 1024 * 1024
"""The longest is the plan of a run."""


class Job(msgspec.Struct, frozen=True, kw_only=True, tag="job"):
    """All a generator must know. Key, password and token come this way and by no command line, where others could
    read them."""

    name: str
    scenario: str
    """Name or absolute path."""
    seed: int
    urls: tuple[str, ...]
    """Calls take them in turn."""
    agent: str | None = None
    key: str | None = None
    phone: PhoneOptions = PhoneOptions()
    """Without a ``caller`` each call has a number of its own."""
    codes: bool = False
    """Callers say code words: the server's engines say them back."""
    generator: int = 0
    """The number of this one, of ``generators``: which of the words are its own."""
    generators: int = 1
    words_begin: int = 0
    """Words before this were used on this server a moment ago."""
    arrivals: tuple[Arrival, ...] = ()
    recordings: str
    """The folder for the audio of the worst calls."""
    keep: int = 6
    """How many."""
    cores: tuple[int, ...] = ()
    """Run on these alone; empty: on any."""


class Go(msgspec.Struct, frozen=True, tag="go"):
    """Time 0 of the run, on :func:`time.monotonic`, which all processes of a machine share."""

    start_s: float


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Offer no more calls and hang all up; ``at_once``: without waiting for what the server says to that."""

    at_once: bool = False


ToGenerator = Job | Go | Stop


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The callers' lines are spoken and encoded."""

    notes: tuple[str, ...] = ()


class Counted(msgspec.Struct, frozen=True, kw_only=True, tag="counted"):
    """Once a second."""

    at_s: float
    offered: int
    """Calls that were begun, from the start."""
    up: int
    """Calls that are up."""
    cpu_share: float
    """Of a core, since the last."""
    rss_bytes: int | None
    ticks: int
    late_p99_ms: float | None
    """Of the ticker's own ticks, from the start."""
    late_worst_ms: float
    """Since the last."""
    measuring: int
    """Calls that are over and not yet measured."""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    outcome: CallOutcome


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """Every call is over and measured; nothing comes after it."""

    late_p99_ms: float | None
    late_worst_ms: float
    ticks: int
    ticks_skipped: int
    cpu_s: float
    offered_late_ms: float = 0.0
    """How long after its time a call was offered, at most, because its caller was not made yet."""
    kept: dict[int, str]
    """Of the worst calls by number: the name of the WAV in the folder."""
    unkept: str | None = None
    """Why the audio of a call was not kept, if one's should have been."""
    wordless: int = 0
    """Callers who should have had a code word, and for whom none was free."""
    broken: dict[str, int] = {}
    """Defects of callers, and how many calls each cost."""


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """The generator can't go on, for a person."""

    problem: str


FromGenerator = Ready | Counted | Ended | Done | Broken

_encoder = msgspec.json.Encoder()
_to_generator = msgspec.json.Decoder(ToGenerator)
_from_generator = msgspec.json.Decoder(FromGenerator)


def encode_line(message: ToGenerator | FromGenerator) -> bytes:
    return _encoder.encode(message) + b"\n"


def decode_order(line: bytes) -> ToGenerator:
    """Raises :class:`msgspec.MsgspecError`."""
    return _to_generator.decode(line)


def decode_word(line: bytes) -> FromGenerator:
    """Raises :class:`msgspec.MsgspecError`."""
    return _from_generator.decode(line)
