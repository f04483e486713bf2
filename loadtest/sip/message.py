"""SIP messages as text and back (RFC 3261 sections 7 and 25), as much of it as a caller meets. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MAX_MESSAGE_BYTES = 64 * 1024

_COMPACT = {
    "i": "call-id",
    "m": "contact",
    "l": "content-length",
    "c": "content-type",
    "f": "from",
    "k": "supported",
    "t": "to",
    "v": "via",
    "r": "refer-to",
    "x": "session-expires",
}
_LENGTH = re.compile(rb"\r\n(?:content-length|l)[ \t]*:[ \t]*(\d{1,6})[ \t]*\r\n", re.IGNORECASE)
_LISTS = frozenset({"via", "record-route", "contact", "route"})
_URI = re.compile(
    r"(?P<scheme>sips?):(?:(?P<user>[^@:;?\s<>]+)@)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:;?<>\[\]@]+)"
    r"(?::(?P<port>\d{1,5}))?(?P<parameters>(?:;[^\s;?<>]+)*)"
)


class BadMessage(ValueError):  # noqa: N818 (noted and ignored)
    """Not a SIP message."""


@dataclass(frozen=True, slots=True)
class SipUri:
    """``sip:user@host:port;parameters``; ``host`` without the brackets of IPv6, ``port`` None if none is said."""

    user: str | None
    host: str
    port: int | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    scheme: str = "sip"

    def parameter(self, name: str) -> str | None:
        return next((value for known, value in self.parameters if known == name), None)

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = f":{self.port}" if self.port else ""
        tail = "".join(f";{name}={value}" if value else f";{name}" for name, value in self.parameters)
        return f"{self.scheme}:{user}{host}{port}{tail}"


def parse_uri(text: str) -> SipUri:
    """A URI alone, or the one inside a name-addr (``"Name" <sip:…>;tag=…``). Raises :class:`ValueError`."""
    inside = re.search(r"<([^>]*)>", text)
    match = _URI.fullmatch(inside.group(1).partition("?")[0] if inside else text.strip())
    if match is None or int(match["port"] or 1) not in range(1, 65536):
        raise ValueError(f"not a SIP address: {text}")
    pairs = (entry.partition("=") for entry in match["parameters"].split(";") if entry)
    parameters = tuple((name.lower(), value) for name, _, value in pairs)
    port = int(match["port"]) if match["port"] else None
    return SipUri(match["user"], match["host"].strip("[]"), port, parameters, match["scheme"])


def parameter_of(header: str, name: str) -> str | None:
    """A parameter behind a name-addr: ``tag`` of From and To."""
    match = re.search(rf";\s*{name}\s*=\s*([^\s;,]+)", header.rpartition(">")[2] if ">" in header else header, re.I)
    return match.group(1) if match else None


@dataclass(frozen=True, slots=True)
class SipMessage:
    """A request or a response. Header names are in lower case and whole; lists are one entry a value."""

    start: str
    headers: tuple[tuple[str, str], ...]
    body: str = ""

    @property
    def method(self) -> str:
        """Of a request; empty for a response."""
        return "" if self.start.startswith("SIP/") else self.start.split(" ", 1)[0]

    @property
    def status(self) -> int:
        """Of a response; 0 for a request."""
        return int(self.start.split(" ", 2)[1]) if self.start.startswith("SIP/") else 0

    @property
    def reason(self) -> str:
        return self.start.split(" ", 2)[2] if self.start.count(" ") > 1 else ""

    def first(self, name: str) -> str:
        """The first value of a header; empty if there is none."""
        return next((value for known, value in self.headers if known == name), "")

    def all(self, name: str) -> list[str]:
        return [value for known, value in self.headers if known == name]

    @property
    def cseq(self) -> tuple[int, str]:
        number, _, method = self.first("cseq").partition(" ")
        return int(number), method.strip()

    @property
    def branch(self) -> str:
        return parameter_of(self.first("via"), "branch") or ""


def parse_message(data: bytes) -> SipMessage:
    """Raises :class:`BadMessage`."""
    head, separator, body = data.partition(b"\r\n\r\n")
    lines = re.sub(r"\r\n[ \t]+", " ", head.decode("utf-8", "replace")).split("\r\n")
    if not separator or not re.fullmatch(r"SIP/2\.0 [1-6]\d\d .*|[A-Z]+ \S+ SIP/2\.0|SIP/2\.0 [1-6]\d\d", lines[0]):
        raise BadMessage("not a SIP message")
    headers: list[tuple[str, str]] = []
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadMessage(f"not a header: {line[:40]}")
        name = name.strip().lower()
        name = _COMPACT.get(name, name)
        values = _split(value) if name in _LISTS else [value.strip()]
        headers += [(name, each) for each in values]
    message = SipMessage(lines[0], tuple(headers), body.decode("utf-8", "replace"))
    if not re.fullmatch(r"\d{1,10} +[A-Z]+", message.first("cseq")) or not message.first("call-id"):
        raise BadMessage("no CSeq or no Call-ID")
    return message


def _split(value: str) -> list[str]:
    """A list's entries: commas outside of quotes and angle brackets part them."""
    parts = re.findall(r'(?:"(?:\\.|[^"\\])*"|<[^>]*>|[^,"<])+', value)
    return [part.strip() for part in parts if part.strip()]


def serialise(start: str, headers: Iterable[tuple[str, str]], body: str = "", content_type: str = "") -> bytes:
    content = body.encode()
    lines = [start, *(f"{name}: {value}" for name, value in headers)]
    if content:
        lines.append(f"Content-Type: {content_type or 'application/sdp'}")
    lines.append(f"Content-Length: {len(content)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


class StreamFraming:
    """Cuts a TCP stream into messages (RFC 3261 section 18.3)."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that are whole now. Raises :class:`BadMessage` if the stream can't be followed any longer."""
        self._buffer += data
        while True:
            while self._buffer.startswith(b"\r\n"):  # keep-alives (RFC 5626)
                del self._buffer[:2]
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > MAX_MESSAGE_BYTES:
                    raise BadMessage("a message without end")
                return
            length = re.search(
                rb"\r\n(?:content-length|l)[ \t]*:[ \t]*(\d{1,6})[ \t]*\r\n", self._buffer[: end + 2], re.I
            )
            total = end + 4 + (int(length.group(1)) if length else 0)
            if total > MAX_MESSAGE_BYTES:
                raise BadMessage("a message that is too long")
            if len(self._buffer) < total:
                return
            message = bytes(self._buffer[:total])
            del self._buffer[:total]
            yield message
