"""Whom a call is placed to: what may be written for it, made into one form that rules can be held against.

Taken are ``sip:`` and ``sips:`` URIs (RFC 3261, 19.1), ``tel:`` URIs with a global number (RFC 3966) and numbers as
people write them after a plus. A URI is never passed on as it came: parameters that would lead the request elsewhere
than its host says (``maddr``, ``?Route=``) are refused, and what is dialled is written anew from the parts that were
judged.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

MAX_CHARS = 256
MIN_NUMBER_DIGITS = 7
MAX_NUMBER_DIGITS = 15
"""Of an international number without its plus: ITU-T E.164, 6."""

SIP_PORTS = frozenset({None, 5060, 5061})
TRANSPORTS = frozenset({"udp", "tcp", "tls"})

_SEPARATORS = str.maketrans("", "", " -.()")
"""Visual ones: RFC 3966, 3, and the space that people write."""
_URI = re.compile(r"(?P<scheme>sips?):(?:(?P<user>[^@]*)@)?(?P<hostport>[^;?]+)(?P<parameters>(?:;[^;?]*)*)", re.I)
_HOSTPORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::(?P<port>[0-9]{1,5}))?")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_USER = re.compile(r"[A-Za-z0-9_.!~*'()&=+$,/#-]{1,64}")
_PUNCTUATION = re.compile(r"[^A-Za-z0-9]")
_PLAIN_USER = re.compile(r"[^A-Za-z0-9_.!~*'()&=+$,/-]")


class BadDestination(Exception):  # noqa: N818 (an answer: who asked is told)
    """What was given cannot be dialled. ``code`` is ``bad_destination``, ``not_e164`` or ``no_trunk``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Destination:
    """``number`` is the international number with its plus, empty where none is dialled. ``host`` (lower case; IPv6 in
    its brackets) and ``port`` are the URI's; empty and None where the trunk takes the call."""

    uri: str
    number: str
    user: str
    host: str
    port: int | None

    @property
    def key(self) -> str:
        """What counts as one destination: a number is the same one by whichever way, an extension however it is
        punctuated, a server by either of SIP's own ports."""
        keys = keys_of(self.user)
        user = keys if keys.isdecimal() else self.user.lower()
        return self.number or f"{user}@{self.host}:{'' if self.port in SIP_PORTS else self.port}"

    def redacted(self) -> str:
        """For logs: enough to find a call by, not enough to call."""
        whom = redacted_number(self.number) if self.number else _veiled(self.user)
        return f"{whom}@{self.host}" if self.host else whom


def redacted_number(number: str) -> str:
    """``+15551234567`` as ``+155…67``."""
    return f"{number[:4]}…{number[-2:]}" if len(number) >= 9 else "…"


def keys_of(user: str) -> str:
    """Its letters and digits: an exchange may take ``9,1-555…`` and ``*72…`` for keys that were pressed."""
    return _PUNCTUATION.sub("", user)


def _veiled(user: str) -> str:
    return f"{user[:1]}…" if user else ""


def parse_destination(text: str, *, trunk: str = "", longest_extension: int = 6) -> Destination:
    """``trunk`` (``HOST`` or ``HOST:PORT``) is where numbers go that name no host. A SIP user that is digits only and
    longer than ``longest_extension`` is a phone number, and must be written as one. Raises :class:`BadDestination`."""
    text = text.strip()
    if len(text) > MAX_CHARS or not text.isascii() or not text.isprintable():
        raise _bad(f"a destination is at most {MAX_CHARS} printable ASCII characters")
    scheme, colon, rest = text.partition(":")
    if colon and scheme.lower() in ("sip", "sips"):
        return _sip(text, longest_extension)
    if colon and scheme.lower() == "tel":
        text = rest
    elif not text.startswith("+"):
        raise _bad("it is neither sip:USER@HOST nor a number such as +15551234567")
    number = _number(text)
    if not trunk:
        raise BadDestination(
            "no_trunk", "no trunk takes phone numbers here (sip.trunks, outbound.trunk); dial sip:USER@HOST"
        )
    return Destination(f"sip:{number}@{trunk}", number, number, "", None)


def _number(text: str) -> str:
    number = text.translate(_SEPARATORS)
    digits = number.removeprefix("+")
    if number == digits or not digits.isdecimal() or digits.startswith("0"):
        raise BadDestination("not_e164", "a phone number is written internationally, such as +15551234567")
    if not MIN_NUMBER_DIGITS <= len(digits) <= MAX_NUMBER_DIGITS:
        raise BadDestination(
            "not_e164", f"an international number has {MIN_NUMBER_DIGITS} to {MAX_NUMBER_DIGITS} digits after its plus"
        )
    return number


def _sip(text: str, longest_extension: int) -> Destination:
    found = _URI.fullmatch(text)
    if found is None:
        raise _bad("it is not a URI such as sip:USER@HOST; headers in it (?…) are not taken")
    user = _user(found["user"] or "")
    host, port = host_and_port(found["hostport"])
    parameters = _parameters(found["parameters"])
    keys = keys_of(user)
    number = ""
    if user.startswith("+") or (keys.isdecimal() and len(keys) > longest_extension):
        user = number = _number(user)
    written = _PLAIN_USER.sub(lambda odd: f"%{ord(odd[0]):02X}", user)
    where = f"{host}:{port}" if port is not None else host
    uri = f"{found['scheme'].lower()}:{f'{written}@' if user else ''}{where}{parameters}"
    return Destination(uri, number, user, host, port)


def _user(written: str) -> str:
    """Unescaped, because ``%39%31%31`` is 911. Its parameters (``;phone-context=``) are refused."""
    try:
        user = unquote_to_bytes(written).decode("ascii")
    except UnicodeDecodeError:
        raise _bad("its user is not ASCII") from None
    if user and not _USER.fullmatch(user):
        raise _bad("its user has characters that are not taken, a password, or more than 64")
    return user


def host_and_port(text: str) -> tuple[str, int | None]:
    """The host in lower case. Raises :class:`BadDestination`."""
    found = _HOSTPORT.fullmatch(text)
    if found is None:
        raise _bad(f"{text!r} is not HOST or HOST:PORT")
    host, port = found["host"].lower(), int(found["port"]) if found["port"] else None
    if host.startswith("["):
        try:
            host = f"[{ipaddress.IPv6Address(host[1:-1])}]"
        except ValueError:
            raise _bad(f"{host} is not an IPv6 address") from None
    elif not _is_name_or_ipv4(host):
        raise _bad(f"{host!r} is neither a host name nor an address")
    if port is not None and not 1 <= port <= 65_535:
        raise _bad(f"{port} is not a port")
    return host, port


def _is_name_or_ipv4(host: str) -> bool:
    """A name whose last label is a number is an address, or some resolver's way to write one (``127.1``)."""
    labels = host.removesuffix(".").split(".")
    if labels[-1].isdecimal() or labels[-1].startswith("0x"):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            return False
        return True
    return len(host) <= 253 and all(_LABEL.fullmatch(label) for label in labels)


def _parameters(text: str) -> str:
    transport = ""
    for parameter in text.split(";")[1:]:
        name, _, value = parameter.lower().partition("=")
        if name == "transport" and value in TRANSPORTS and not transport:
            transport = f";transport={value}"
        elif (name, value) != ("user", "phone"):
            raise _bad(f"the parameter {name[:20]!r} is not taken, only transport=udp, tcp or tls, and user=phone")
    return transport


def _bad(message: str) -> BadDestination:
    return BadDestination("bad_destination", message)
