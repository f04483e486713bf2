"""SIP messages: read strictly, bounded, and echoed as they were written (RFC 3261, sections 7, 8 and 18.3).

Lines end with CRLF and nothing else; a message is either understood or refused. Header values keep bytes that are
not UTF-8 (``surrogateescape``), so that what is echoed is echoed to the bit.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gateway.transports.sip.address import (
    TOKEN,
    Address,
    BadSyntax,
    Via,
    format_host,
    parse_address,
    parse_via,
    split_outside_quotes,
)

MAX_MESSAGE_BYTES = 32 * 1024
"""Of a whole message; larger ones are refused (413), on a stream together with their connection."""
MAX_HEAD_BYTES = 16 * 1024
"""Of it, all before its body."""
MAX_HEADERS = 128
MAX_VIAS = 70
MAX_CSEQ = 2**31 - 1

BRANCH_COOKIE = "z9hG4bK"

_COMPACT = {
    "a": "accept-contact",
    "b": "referred-by",
    "c": "content-type",
    "d": "request-disposition",
    "e": "content-encoding",
    "f": "from",
    "i": "call-id",
    "j": "reject-contact",
    "k": "supported",
    "l": "content-length",
    "m": "contact",
    "o": "event",
    "r": "refer-to",
    "s": "subject",
    "t": "to",
    "u": "allow-events",
    "v": "via",
    "x": "session-expires",
    "y": "identity",
}
_SINGLE = ("from", "to", "call-id", "cseq", "max-forwards", "content-length", "content-type")
_MANDATORY = ("via", "from", "to", "call-id", "cseq")
_NAMES = {"call-id": "Call-ID", "cseq": "CSeq", "www-authenticate": "WWW-Authenticate", "rack": "RAck", "rseq": "RSeq"}
_NAMES["min-se"] = "Min-SE"
_NAME_ENDS = r"(?=[\s;=]|$)"
_ENTITY = frozenset({"content-length"})

REASONS = {
    100: "Trying", 180: "Ringing", 183: "Session Progress", 200: "OK", 202: "Accepted", 400: "Bad Request",
    401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout",
    413: "Request Entity Too Large", 415: "Unsupported Media Type", 416: "Unsupported URI Scheme",
    420: "Bad Extension", 422: "Session Interval Too Small", 469: "Bad Info Package", 480: "Temporarily Unavailable",
    481: "Call/Transaction Does Not Exist", 482: "Loop Detected", 483: "Too Many Hops", 486: "Busy Here",
    487: "Request Terminated", 488: "Not Acceptable Here", 489: "Bad Event", 491: "Request Pending",
    500: "Server Internal Error", 501: "Not Implemented", 503: "Service Unavailable", 504: "Server Time-out",
    505: "Version Not Supported", 513: "Message Too Large", 603: "Decline",
}  # fmt: skip


class Malformed(Exception):  # noqa: N818 (an answer, or nothing)
    """Not a SIP message that can be taken. ``answerable`` is the request, if a refusal (``status``) can reach its
    sender. The message says which element is wrong, never what it holds."""

    def __init__(self, what: str, status: int = 400, answerable: Request | None = None) -> None:
        super().__init__(what)
        self.status = status
        self.answerable = answerable


class Headers:
    """Fields in their order. Names are given and kept in lower case."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Iterable[tuple[str, str]] = ()) -> None:
        self._fields = list(fields)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def get(self, name: str, default: str = "") -> str:
        """The first of the name."""
        return next((value for known, value in self._fields if known == name), default)

    def all(self, name: str) -> list[str]:
        return [value for known, value in self._fields if known == name]

    def listed(self, name: str) -> list[str]:
        """The elements of a header that holds a list, over all its lines. Raises :class:`BadSyntax`."""
        parts = (part.strip() for value in self.all(name) for part in split_outside_quotes(value, ","))
        return [part for part in parts if part]

    def tokens(self, name: str) -> frozenset[str]:
        """:meth:`listed` in lower case without parameters, for Supported, Require and the like."""
        parts = (part.partition(";")[0].strip() for value in self.all(name) for part in value.split(","))
        return frozenset(part.lower() for part in parts if part)

    def add(self, name: str, value: str) -> None:
        self._fields.append((name, _one_line(value)))

    def set(self, name: str, value: str) -> None:
        self._fields = [(known, old) for known, old in self._fields if known != name]
        self.add(name, value)


@dataclass(slots=True)
class _Message(ABC):
    headers: Headers = field(default_factory=Headers)
    body: bytes = b""

    @abstractmethod
    def first_line(self) -> str: ...

    def encode(self) -> bytes:
        lines = [self.first_line()]
        lines += [f"{_NAMES.get(name) or name.title()}: {value}" for name, value in self.headers if name not in _ENTITY]
        lines.append(f"Content-Length: {len(self.body)}\r\n\r\n")
        return "\r\n".join(lines).encode("utf-8", "surrogateescape") + self.body

    @property
    def call_id(self) -> str:
        return self.headers.get("call-id")

    @property
    def cseq(self) -> tuple[int, str]:
        """Number and method. Raises :class:`BadSyntax`."""
        number, _, method = self.headers.get("cseq").replace("\t", " ").partition(" ")
        method = method.strip()
        if not (number.isascii() and number.isdecimal() and len(number) <= 10) or int(number) > MAX_CSEQ:
            raise BadSyntax("CSeq")
        if not TOKEN.fullmatch(method):
            raise BadSyntax("CSeq")
        return int(number), method

    @property
    def via(self) -> Via:
        """The topmost. Raises :class:`BadSyntax`."""
        return parse_via(split_outside_quotes(self.headers.get("via"), ",")[0])

    @property
    def from_(self) -> Address:
        """Raises :class:`BadSyntax`."""
        return parse_address(self.headers.get("from"))

    @property
    def to(self) -> Address:
        """Raises :class:`BadSyntax`."""
        return parse_address(self.headers.get("to"))

    @property
    def content_type(self) -> str:
        """In lower case, without parameters."""
        return self.headers.get("content-type").partition(";")[0].strip().lower()

    @property
    def contact(self) -> Address | None:
        """The first. Raises :class:`BadSyntax`."""
        listed = self.headers.listed("contact")
        return parse_address(listed[0]) if listed else None


@dataclass(slots=True)
class Request(_Message):
    method: str = ""
    uri: str = ""

    def first_line(self) -> str:
        return f"{self.method} {self.uri} SIP/2.0"


@dataclass(slots=True)
class Response(_Message):
    status: int = 0
    reason: str = ""

    def first_line(self) -> str:
        return f"SIP/2.0 {self.status} {self.reason}"


def parse(data: bytes, *, stream: bool = False) -> Request | Response:
    """One message. From a datagram, bytes beyond Content-Length are dropped, as the RFC has it; from a stream there
    are none (the framer cut it). Raises :class:`Malformed`."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise Malformed("size", 413)
    head, blank, body = data.lstrip(b"\r\n").partition(b"\r\n\r\n")
    if not blank:
        raise Malformed("no end of headers")
    if len(head) > MAX_HEAD_BYTES:
        raise Malformed("head too long", 513)
    lines = unfold(head.decode("utf-8", "surrogateescape"))
    headers = Headers()
    fault = _read_fields(lines[1:], headers)
    message = _first_line(lines[0], headers)
    if isinstance(message, Malformed):
        fault, message = message, message.answerable or Request(headers)
    try:
        if fault is not None:
            raise fault
        _check(message)
        message.body = _body(headers, body, stream)
    except (Malformed, BadSyntax) as error:
        status = error.status if isinstance(error, Malformed) else 400
        raise Malformed(str(error), status, _answerable(message)) from None
    return message


def unfold(head: str) -> list[str]:
    """The lines of a head; one that begins with white space continues the line before it (7.3.1)."""
    lines: list[str] = []
    for line in head.split("\r\n"):
        if lines and line.startswith((" ", "\t")):
            lines[-1] += " " + line.strip(" \t")
        else:
            lines.append(line)
    return lines


def _first_line(line: str, headers: Headers) -> Request | Response | Malformed:
    words = line.split(" ", 2)
    if len(words) < 2:
        return Malformed("first line")
    if words[0].upper() == "SIP/2.0":
        code = words[1]
        if not (len(code) == 3 and code.isascii() and code.isdecimal() and 100 <= int(code) <= 699):
            return Malformed("status")
        return Response(headers, status=int(code), reason=words[2] if len(words) > 2 else "")
    request = Request(headers, method=words[0], uri=words[1])
    if len(words) < 3 or not TOKEN.fullmatch(words[0]):
        return Malformed("request line", 400, request)
    if words[2].upper() != "SIP/2.0":
        version = re.fullmatch(r"SIP/\d{1,9}\.\d{1,9}", words[2].upper())
        return Malformed("version", 505 if version else 400, request)
    return request


def _read_fields(lines: list[str], headers: Headers) -> Malformed | None:
    """All that can be read, and what was wrong first."""
    fault = Malformed("too many headers") if len(lines) > MAX_HEADERS else None
    for line in lines[:MAX_HEADERS]:
        name, colon, value = line.partition(":")
        name = name.rstrip(" \t").lower()
        if not colon or not TOKEN.fullmatch(name) or "\n" in value or "\r" in value:
            fault = fault or Malformed("header line")
            continue
        headers.add(_COMPACT.get(name, name), value.strip(" \t"))
    return fault


def _check(message: Request | Response) -> None:
    headers = message.headers
    for name in _MANDATORY:
        if not headers.get(name):
            raise Malformed(f"no {name}")
    for name in _SINGLE:
        if len(headers.all(name)) > 1:
            raise Malformed(f"more than one {name}")
    vias = headers.listed("via")
    if len(vias) > MAX_VIAS:
        raise Malformed("too many via", 483)
    for via in vias:
        parse_via(via)
    for name in ("from", "to"):
        parse_address(headers.get(name))
    _, method = message.cseq
    if isinstance(message, Request):
        if method != message.method:
            raise Malformed("CSeq method")
        hops = headers.get("max-forwards", "70")
        if not (hops.isascii() and hops.isdecimal() and len(hops) <= 10 and int(hops) <= 255):
            raise Malformed("max-forwards")


def _body(headers: Headers, body: bytes, stream: bool) -> bytes:
    declared = headers.get("content-length")
    if not declared:
        if stream:
            raise Malformed("no content-length")
        return body
    length = content_length(declared)
    if length > len(body):
        raise Malformed("content-length beyond the end")
    return body[:length]


def content_length(text: str) -> int:
    """Raises :class:`Malformed`."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise Malformed("content-length")
    return int(text)


def _answerable(message: Request | Response) -> Request | None:
    """The request, if it holds what an answer repeats. An ACK is never answered."""
    if not isinstance(message, Request) or message.method == "ACK" or not message.method:
        return None
    if not all(message.headers.get(name) for name in _MANDATORY):
        return None
    try:
        message.via  # noqa: B018 (whether it parses)
    except BadSyntax:
        return None
    return message


def _one_line(value: str) -> str:
    if "\r" in value or "\n" in value:
        raise ValueError("a header value is one line")
    return value


def answer(
    request: Request,
    status: int,
    *,
    to_tag: str = "",
    headers: Iterable[tuple[str, str]] = (),
    body: bytes = b"",
    content_type: str = "application/sdp",
    reason: str = "",
) -> Response:
    """The response to a request (8.2.6): its Via lines, From, To (with ``to_tag``, unless it has one), Call-ID and
    CSeq as they came, its Record-Route where a dialog begins."""
    given = request.headers
    made = Headers(("via", value) for value in given.all("via"))
    for name in ("from", "call-id", "cseq"):
        made.add(name, given.get(name))
    to = given.get("to")
    made.add("to", to if not to_tag or _has_tag(to) else f"{to};tag={to_tag}")
    if 100 < status < 300 and request.method == "INVITE":
        for value in given.all("record-route"):
            made.add("record-route", value)
    if status == 100 and given.get("timestamp"):
        made.add("timestamp", given.get("timestamp"))
    for name, value in headers:
        made.add(name, value)
    if body:
        made.add("content-type", content_type)
    return Response(made, body, status, reason or REASONS.get(status, "Unknown"))


def _has_tag(to: str) -> bool:
    try:
        return bool(parse_address(to).tag)
    except BadSyntax:
        return False


def note_source(request: Request, host: str, port: int) -> None:
    """Write where a request came from into its topmost Via (RFC 3261, 18.2.1, and RFC 3581), where its answers go."""
    first, *rest = split_outside_quotes(request.headers.get("via"), ",")
    via = parse_via(first)
    if "rport" in via.parameters:
        first = re.sub(rf"(?i);\s*rport{_NAME_ENDS}\s*(=[^;,]*)?", f";rport={port}", first, count=1)
    if "rport" in via.parameters or via.host.lower() != host.lower():
        first = re.sub(rf"(?i);\s*received{_NAME_ENDS}\s*(=[^;,]*)?", "", first).rstrip() + f";received={host}"
    value = ",".join([first, *rest])
    fields = list(request.headers)
    at = next(index for index, (name, _) in enumerate(fields) if name == "via")
    fields[at] = ("via", value)
    request.headers = Headers(fields)


def via_line(transport: str, host: str, port: int, branch: str) -> str:
    return f"SIP/2.0/{transport.upper()} {format_host(host)}:{port};rport;branch={branch}"
