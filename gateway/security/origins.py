"""Which web pages may reach the gateway.

Any page a person opens can open a WebSocket to a port on their own machine, so an ``Origin`` must be one we know
(RFC 6454, RFC 6455 section 10.2). A page whose DNS name was pointed at this machine (DNS rebinding) sends a ``Host``
of its own, so a Host is believed only if nobody else can own it: a loopback name, an IP literal, or one we were told.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}")


def parse_origin(text: str) -> Origin | None:
    """An ``http`` or ``https`` origin; None for ``null``, other schemes, and anything with a path or a user."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or "@" in parts.netloc:
        return None
    if parts.path not in {"", "/"} or parts.query or parts.fragment or any(c.isspace() for c in text):
        return None
    return Origin(parts.scheme, parts.hostname, port or _DEFAULT_PORTS[parts.scheme])


def parse_host(header: str, *, scheme: str) -> Origin | None:
    """The gateway's own origin, as a Host header has it; ``scheme`` is the connection's (``wss`` counts as https)."""
    web = "https" if scheme in {"https", "wss"} else "http"
    return None if "/" in header else parse_origin(f"{web}://{header}")


@dataclass(frozen=True, slots=True)
class OriginPolicy:
    """``allowed`` are exact origins; ``listen_host`` is the name we were told to listen on."""

    allowed: frozenset[str]
    listen_host: str

    def host_is_ours(self, host: Origin) -> bool:
        """Whether nobody else can own this name."""
        name = host.host
        if name == "localhost" or name.endswith(".localhost") or name == self.listen_host.lower():
            return True
        if _is_address(name):
            return True
        return any((known := parse_origin(text)) is not None and known.host == name for text in self.allowed)

    def origin_is_allowed(self, origin: str, own: Origin | None) -> bool:
        """``own`` is from :func:`parse_host`. It proves nothing alone: where no key protects what is behind, ask
        :meth:`host_is_ours` first."""
        parsed = parse_origin(origin)
        return parsed is not None and (parsed == own or str(parsed) in self.allowed)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
