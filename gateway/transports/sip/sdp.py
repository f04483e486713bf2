"""Session descriptions, read and written (RFC 8866, of it what RFC 3264 needs for one stream of audio).

Pure. Reading is tolerant of what real peers write (bare newlines, unknown lines, attributes in odd places) and bounded:
whatever the bytes, it ends in a :class:`Description` or in :class:`BadSdp`, and nothing of it is logged.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

MAX_CHARS = 16 * 1024
MAX_LINES = 512
MAX_STREAMS = 16
MAX_FORMATS = 64

DIRECTIONS = ("sendrecv", "sendonly", "recvonly", "inactive")
STATIC_FORMATS = {0: ("pcmu", 8000), 8: ("pcma", 8000), 9: ("g722", 8000), 13: ("cn", 8000)}
"""Payload types that need no ``a=rtpmap`` (RFC 3551, section 6); G.722's clock is 8,000 by an old error that stands."""


class BadSdp(Exception):  # noqa: N818 (an answer to the peer)
    """The description cannot be taken. ``status`` is SIP's: 400 malformed, 488 nothing in it that we can do."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class Address:
    """Where a peer wants packets. ``ip`` is empty where it names none that could be sent to (a host name, 0.0.0.0)."""

    ip: str
    port: int


@dataclass(frozen=True, slots=True)
class Format:
    payload_type: int
    name: str
    """Lower case."""
    clock_hz: int
    channels: int = 1
    parameters: str = ""


@dataclass(frozen=True, slots=True)
class Stream:
    """One ``m=`` line with what belongs to it."""

    media: str
    port: int
    """0: rejected, or no longer used."""
    profile: str
    format_words: tuple[str, ...]
    formats: tuple[Format, ...] = ()
    address: Address = Address("", 0)
    rtcp: Address = Address("", 0)
    rtcp_mux: bool = False
    direction: str = "sendrecv"
    holds_by_address: bool = False
    """``c=0.0.0.0``: on hold, as RFC 2543 had it."""
    multicast: bool = False
    cryptos: tuple[str, ...] = ()
    """Values of ``a=crypto``: secrets."""


@dataclass(frozen=True, slots=True)
class Description:
    streams: tuple[Stream, ...]
    origin: str = ""


@dataclass(slots=True)
class _Section:
    """The lines of one stream, or those before the first."""

    head: str = ""
    connection: str = ""
    attributes: list[tuple[str, str]] = field(default_factory=list)


def read_sdp(text: str) -> Description:
    """Raises :class:`BadSdp` (400)."""
    if len(text) > MAX_CHARS:
        raise BadSdp(400, "sdp_too_long", "The session description is too long.")
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        raise BadSdp(400, "sdp_too_long", "The session description has too many lines.")
    if not lines or lines[0].strip() != "v=0":
        raise BadSdp(400, "bad_sdp", "The session description does not begin with v=0.")
    sections, origin = [_Section()], ""
    for line in lines[1:]:
        kind, equals, value = line.strip().partition("=")
        if not equals:
            continue
        if kind == "m":
            sections.append(_Section(head=value))
        elif kind == "c":
            sections[-1].connection = value
        elif kind == "a":
            name, _, content = value.partition(":")
            sections[-1].attributes.append((name.strip().lower(), content.strip()))
        elif kind == "o" and len(sections) == 1:
            origin = value
    if len(sections) > MAX_STREAMS + 1:
        raise BadSdp(400, "bad_sdp", "The session description has too many streams.")
    session, *media = sections
    return Description(tuple(_stream(section, session) for section in media), origin)


def _stream(section: _Section, session: _Section) -> Stream:
    words = section.head.split()
    port_word = words[1].partition("/")[0] if len(words) >= 4 else ""
    port = _number(port_word, 65_535)
    if port is None:
        raise BadSdp(400, "bad_sdp", "The session description has an m= line that is none.")
    format_words = tuple(words[3:])
    if len(format_words) > MAX_FORMATS:
        raise BadSdp(400, "bad_sdp", "The session description has a stream with too many formats.")
    ip, holds, multicast = _connection(section.connection or session.connection)
    shared = [name for name, _ in session.attributes if name in DIRECTIONS]
    own = [name for name, _ in section.attributes if name in DIRECTIONS]
    rtcp = Address(ip, port + 1)
    for name, value in section.attributes:
        if name == "rtcp":
            rtcp = _rtcp(value, rtcp)
    return Stream(
        media=words[0].lower(),
        port=port,
        profile=words[2].upper(),
        format_words=format_words,
        formats=_formats(format_words, section.attributes),
        address=Address(ip, port),
        rtcp=rtcp,
        rtcp_mux=any(name == "rtcp-mux" for name, _ in section.attributes),
        direction=(own or shared or ["sendrecv"])[-1],
        holds_by_address=holds,
        multicast=multicast,
        cryptos=tuple(value for name, value in section.attributes if name == "crypto"),
    )


def _connection(value: str) -> tuple[str, bool, bool]:
    """The address of a ``c=`` line; whether it says hold; whether it is a group's."""
    words = value.split()
    if len(words) < 3 or words[0].upper() != "IN":
        return "", False, False
    try:
        address = ipaddress.ip_address(words[2].partition("/")[0])
    except ValueError:
        return "", False, False
    if address.is_unspecified:
        return "", True, False
    return str(address), False, address.is_multicast


def _rtcp(value: str, default: Address) -> Address:
    """``a=rtcp:PORT [IN IP4 ADDRESS]`` (RFC 3605)."""
    word, _, rest = value.partition(" ")
    port = _number(word, 65_535)
    if not port:
        return default
    ip, holds, multicast = _connection(rest) if rest else (default.ip, False, False)
    return Address("" if holds or multicast else ip, port)


def _formats(words: tuple[str, ...], attributes: list[tuple[str, str]]) -> tuple[Format, ...]:
    maps = {key: rest for name, value in attributes if name == "rtpmap" for key, rest in [_keyed(value)]}
    parameters = {key: rest for name, value in attributes if name == "fmtp" for key, rest in [_keyed(value)]}
    found = []
    for word in words:
        number = _number(word, 127)
        if number is None:
            continue
        coding, _, rates = maps.get(number, "").partition("/")
        clock_word, _, channel_word = rates.partition("/")
        clock_hz, channels = _number(clock_word, 192_000), _number(channel_word or "1", 8)
        if coding and clock_hz and channels:
            found.append(Format(number, coding.strip().lower(), clock_hz, channels, parameters.get(number, "")))
        elif number in STATIC_FORMATS and number not in maps:
            found.append(Format(number, *STATIC_FORMATS[number], parameters=parameters.get(number, "")))
    return tuple(found)


def _keyed(value: str) -> tuple[int | None, str]:
    word, _, rest = value.partition(" ")
    return _number(word, 127), rest.strip()


def _number(word: str, greatest: int) -> int | None:
    if not (word.isascii() and word.isdecimal() and len(word) <= 6):
        return None
    number = int(word)
    return number if number <= greatest else None


def write_sdp(origin: str, ip: str, streams: list[list[str]]) -> str:
    """``streams``: of each, its ``m=`` line's value and the values of its ``a=`` lines."""
    family = "IP6" if ":" in ip else "IP4"
    lines = ["v=0", f"o={origin} IN {family} {ip}", "s=-", f"c=IN {family} {ip}", "t=0 0"]
    for head, *attributes in streams:
        lines.append(f"m={head}")
        lines += [f"a={attribute}" for attribute in attributes]
    return "\r\n".join(lines) + "\r\n"
