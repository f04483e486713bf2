"""What the URLs of phone calls mean: ``sip:``, ``twilio+ws://`` and ``audiosocket://``. Pure."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from loadtest.sip.message import SipUri, parse_uri

DEFAULT_PORT = 5060
"""Of SIP."""

CALLED_HZ = (8_000, 16_000, 24_000, 48_000)
"""What a caller may speak at."""

_SCHEMES = {"twilio+ws": "ws", "twilio+wss": "wss"}


@dataclass(frozen=True, slots=True)
class SipAddress:
    """``target`` is asked for at ``host``, ``port``."""

    target: SipUri
    host: str
    port: int
    tcp: bool


def sip_address(url: str, agent: str | None) -> SipAddress:
    """``sip:user@host:port``, with ``;transport=tcp`` or ``udp``; ``agent`` becomes the user. Raises
    :class:`ValueError`."""
    uri = parse_uri(url)
    transport = (uri.parameter("transport") or "udp").lower()
    if uri.scheme != "sip" or transport not in ("udp", "tcp"):
        raise ValueError(f"only UDP and TCP are spoken, not TLS: {url}")
    target = SipUri(agent or uri.user, uri.host, uri.port, uri.parameters)
    parse_uri(str(target))  # an agent's name that is no SIP user
    return SipAddress(target, uri.host, uri.port or DEFAULT_PORT, transport == "tcp")


def twilio_url(url: str) -> str:
    """The WebSocket's address of a ``twilio+ws://`` or ``twilio+wss://`` one. Raises :class:`ValueError`."""
    parts = urlsplit(url)
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None or not parts.hostname or parts.port == 0:
        raise ValueError(f"not a twilio+ws:// or twilio+wss:// URL: {url}")
    return parts._replace(scheme=scheme).geturl()


@dataclass(frozen=True, slots=True)
class AudioSocketAddress:
    host: str
    port: int
    call: uuid.UUID
    rate_hz: int


def audiosocket_address(url: str) -> AudioSocketAddress:
    """``audiosocket://host:port``, with the call's UUID as its path (a new one by default) and ``?rate=16000`` (8000 by
    default). Raises :class:`ValueError`."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    if parts.scheme != "audiosocket" or not parts.hostname or not parts.port or query.keys() - {"rate"}:
        raise ValueError(f"not audiosocket://host:port, with /UUID and ?rate=HZ at most: {url}")
    try:
        call = uuid.UUID(parts.path.strip("/")) if parts.path.strip("/") else uuid.uuid4()
        rate_hz = int(query.get("rate", ["8000"])[0])
    except ValueError as error:
        raise ValueError(f"not a UUID or a rate: {url}") from error
    if rate_hz not in CALLED_HZ:
        raise ValueError(f"an AudioSocket caller speaks at {', '.join(map(str, CALLED_HZ))} Hz, not at {rate_hz}")
    return AudioSocketAddress(parts.hostname, parts.port, call, rate_hz)
