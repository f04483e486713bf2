"""URIs and addresses of SIP headers (RFC 3261, sections 19.1, 20.10 and 20.42), each read in one pass.

What is echoed to a peer is echoed as it was written; these are for what we must understand of it.
"""

from __future__ import annotations

import ipaddress
import re
import urllib.parse
from dataclasses import dataclass, field

TOKEN = re.compile(r"[A-Za-z0-9\-.!%*_+`'~]+")
_HOST_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_\-.]*[A-Za-z0-9_.])?")
_USER = re.compile(r"(?:[A-Za-z0-9\-_.!~*'()&=+$,;?/#\[\]]|%[0-9A-Fa-f]{2})+")
_NOT_IN_URI = re.compile(r'[\x00-\x20\x7f<>"]')
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+\-.]*")
_SIP_SCHEMES = frozenset({"sip", "sips"})
_SENT_BY = re.compile(rf"\s*+({TOKEN.pattern}+)\s++([^\s:\[]++|\[[^\]\s]*+\])(?:\s*+:\s*+(\d++))?+\s*+")
"""Transport, host and port, with white space where people put it."""
MAX_HOST = 255
MAX_PARAMETERS = 64
MAX_PARTS = 256
"""Elements of one header line that is a list."""
_PIECES = {
    separator: re.compile(rf'(?:"(?:[^"\\]++|\\.)*+"|<[^>]*+>|[^"<{separator}]++)*+', re.DOTALL)
    for separator in (";", ",")
}
"""Everything up to the next separator that counts. Possessive: no text makes it look twice."""

_QUOTED = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)

Parameters = dict[str, str | None]
"""Names in lower case; None: a flag without a value. Quoted values without their quotes."""


class BadSyntax(ValueError):  # noqa: N818 (an answer)
    """The text is not what it should be. The message names the element, never its content."""


@dataclass(frozen=True, slots=True)
class Uri:
    """``sip:``, ``sips:``, or another scheme, of which only :attr:`opaque` is known."""

    scheme: str
    user: str = ""
    host: str = ""
    port: int | None = None
    parameters: Parameters = field(default_factory=dict, hash=False)
    opaque: str = ""
    """All behind the colon, as written."""

    @property
    def is_sip(self) -> bool:
        return self.scheme in _SIP_SCHEMES

    @property
    def transport(self) -> str:
        """``udp``, ``tcp`` or ``tls``: where a request to it goes (RFC 3263, without the DNS records)."""
        if self.scheme == "sips":
            return "tls"
        return (self.parameters.get("transport") or "udp").lower()


@dataclass(frozen=True, slots=True)
class Address:
    """A name-addr or addr-spec with its header parameters."""

    uri: Uri
    uri_text: str
    name: str = ""
    parameters: Parameters = field(default_factory=dict, hash=False)

    @property
    def tag(self) -> str:
        return self.parameters.get("tag") or ""


@dataclass(frozen=True, slots=True)
class Via:
    transport: str
    """In lower case."""
    host: str
    port: int | None
    parameters: Parameters = field(default_factory=dict, hash=False)

    @property
    def branch(self) -> str:
        return self.parameters.get("branch") or ""

    @property
    def sent_by(self) -> str:
        return f"{self.host.lower()}:{self.port or ''}"


def parse_uri(text: str) -> Uri:
    """Raises :class:`BadSyntax`."""
    scheme, colon, rest = text.partition(":")
    if not colon or not _SCHEME.fullmatch(scheme) or not rest or _NOT_IN_URI.search(text):
        raise BadSyntax("URI")
    scheme = scheme.lower()
    if scheme not in _SIP_SCHEMES:
        return Uri(scheme, opaque=rest)
    userinfo, at, where = rest.rpartition("@")
    user = userinfo.partition(":")[0]
    if at and ("@" in userinfo or not _USER.fullmatch(user)):
        raise BadSyntax("URI user")
    where = where.partition("?")[0]
    host_port, semicolon, parameters = where.partition(";")
    host, port = parse_host_port(host_port)
    return Uri(
        scheme,
        urllib.parse.unquote(user, errors="surrogateescape"),
        host,
        port,
        parse_parameters(f"{semicolon}{parameters}"),
        rest,
    )


def parse_host_port(text: str) -> tuple[str, int | None]:
    """An IPv6 address comes without its brackets. Raises :class:`BadSyntax`."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or not _is_ipv6(host) or (rest and not rest.startswith(":")):
            raise BadSyntax("host")
        port = rest[1:] if rest else None
    else:
        host, colon, number = text.partition(":")
        if len(host) > MAX_HOST or not _HOST_NAME.fullmatch(host):
            raise BadSyntax("host")
        port = number if colon else None
    if port is None:
        return host, None
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) <= 65_535):
        raise BadSyntax("port")
    return host, int(port)


def format_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def is_address(host: str) -> bool:
    """Whether it is an IP address, which needs no look-up."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def parse_address(text: str) -> Address:
    """One From, To, Contact, Route, Refer-To value. Raises :class:`BadSyntax`."""
    text = text.strip()
    name, rest = "", text
    if text.startswith('"'):
        quoted = _QUOTED.match(text)
        if quoted is None:
            raise BadSyntax("quotes")
        name, rest = _unquote(quoted[0]), text[quoted.end() :].lstrip()
        if not rest.startswith("<"):
            raise BadSyntax("address")
    if "<" in rest:
        before, _, rest = rest.partition("<")
        uri_text, closed, parameters = rest.partition(">")
        if not closed or any(char in before for char in '<>",;:@'):
            raise BadSyntax("address")
        uri_text = uri_text.strip()
        name = name or before.strip()
    else:
        # Without angle brackets whatever follows a semicolon belongs to the header, not to the URI (20.10).
        uri_text, semicolon, parameters = rest.partition(";")
        uri_text, parameters = uri_text.strip(), f"{semicolon}{parameters}"
        if "," in uri_text or "?" in uri_text:
            raise BadSyntax("address")
    return Address(parse_uri(uri_text), uri_text, name, parse_parameters(parameters))


def parse_via(text: str) -> Via:
    """One Via value. Raises :class:`BadSyntax`."""
    head, semicolon, parameters = text.partition(";")
    protocol, slash, rest = head.partition("/")
    version, slash2, rest = rest.partition("/")
    if not (slash and slash2) or protocol.strip().upper() != "SIP" or version.strip() != "2.0":
        raise BadSyntax("Via")
    sent = _SENT_BY.fullmatch(rest)
    if sent is None:
        raise BadSyntax("Via")
    host, port = parse_host_port(sent[2] + (f":{sent[3]}" if sent[3] else ""))
    return Via(sent[1].lower(), host, port, parse_parameters(f"{semicolon}{parameters}"))


def parse_parameters(text: str) -> Parameters:
    """``;name=value;flag``. The first of a name stands. Raises :class:`BadSyntax`."""
    found: Parameters = {}
    for count, part in enumerate(split_outside_quotes(text, ";", MAX_PARAMETERS + 1)):
        part = part.strip()
        if not part:
            continue
        if count == 0:
            raise BadSyntax("parameters")
        name, equals, value = part.partition("=")
        name = name.strip().lower()
        if not name or any(char in ' \t"<>,' for char in name):
            raise BadSyntax("parameters")
        value = value.strip()
        found.setdefault(name, _unquote(value) if equals else None)
    return found


def split_outside_quotes(text: str, separator: str, most: int = MAX_PARTS) -> list[str]:
    """At each ``separator`` (a semicolon or a comma) that is neither inside quotes nor inside angle brackets. Raises
    :class:`BadSyntax`: one of those has no end, or there are more parts than ``most``."""
    parts: list[str] = []
    begin = at = 0
    while True:
        piece = _PIECES[separator].match(text, at)
        assert piece is not None  # it may be empty
        at = piece.end()
        if at == len(text):
            return [*parts, text[begin:]]
        if text[at] != separator:
            raise BadSyntax("quotes or angle brackets without an end")
        parts.append(text[begin:at])
        at = begin = at + 1
        if len(parts) >= most:
            raise BadSyntax("too many parts")


def _unquote(value: str) -> str:
    if not value.startswith('"'):
        return value
    if not _QUOTED.fullmatch(value):
        raise BadSyntax("quotes")
    return re.sub(r"\\(.)", r"\1", value[1:-1], flags=re.DOTALL)
