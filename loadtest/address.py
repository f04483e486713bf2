"""What a call's URL means: which transport, and where exactly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from loadtest.call import CALL_RATE_HZ, PHONE_RATE_HZ, Transport
from loadtest.phone_address import audiosocket_address, sip_address, twilio_url

CALLS_PATH = "/v1/realtime/calls"
SECRETS_PATH = "/v1/realtime/client_secrets"

_TRANSPORTS = {
    "ws": Transport.WEBSOCKET,
    "wss": Transport.WEBSOCKET,
    "http": Transport.WEBRTC,
    "https": Transport.WEBRTC,
    "sip": Transport.SIP,
    "twilio+ws": Transport.TWILIO,
    "twilio+wss": Transport.TWILIO,
    "audiosocket": Transport.AUDIOSOCKET,
}

_BY_TLS = frozenset({"wss", "https", "twilio+wss"})
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class CallAddress:
    """``url`` is called as it stands, and the caller's lines are spoken at ``rate_hz``."""

    transport: Transport
    url: str
    rate_hz: int = CALL_RATE_HZ

    def beside(self, path: str) -> str:
        """The HTTP address of another of the server's paths (``/v1/...``), behind the same prefix, if it has one; of
        SIP and AudioSocket there is none."""
        parts = urlsplit(self.url)
        scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
        prefix = parts.path.partition("/v1/")[0] if "/v1/" in parts.path else ""
        return urlunsplit((scheme, parts.netloc, prefix + path, "", ""))


def call_address(url: str, agent: str | None) -> CallAddress:
    """``ws`` and ``wss`` mean the WebSocket, ``http`` and ``https`` WebRTC; ``agent`` joins the query.

    A WebRTC address may be the server's (``http://host:8080``), that of its API (``.../v1``, ``.../v1/realtime``) or
    the whole of it (``.../v1/realtime/calls``). Of phones: ``sip:agent@host:port``, ``twilio+ws://host/path``,
    ``audiosocket://host:port`` (:mod:`loadtest.phone_address`). Raises :class:`ValueError`.
    """
    parts = urlsplit(url)
    transport = _TRANSPORTS.get(parts.scheme)
    match transport:
        case Transport.SIP:
            return CallAddress(transport, str(sip_address(url, agent).target), PHONE_RATE_HZ)
        case Transport.TWILIO:
            return CallAddress(transport, twilio_url(url), PHONE_RATE_HZ)
        case Transport.AUDIOSOCKET:
            if agent is not None:
                raise ValueError("AudioSocket names no agent: its UUID says whose call it is")
            return CallAddress(transport, url, audiosocket_address(url).rate_hz)
    if transport is None or not parts.hostname or parts.port == 0:  # asking for a port that is none raises
        raise ValueError(f"not a {_known()} URL: {shown_url(url)}")
    path = parts.path if transport is Transport.WEBSOCKET else _calls_path(parts.path)
    query = parse_qsl(parts.query, keep_blank_values=True)
    if agent is not None:
        query = [(name, value) for name, value in query if name != "agent"] + [("agent", agent)]
    return CallAddress(transport, urlunsplit((parts.scheme, parts.netloc, path, urlencode(query), "")))


def is_http(url: str) -> bool:
    """The address of something that can be asked for by HTTP."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def may_be_told_the_key(url: str | None, urls: Iterable[str]) -> bool:
    """Whether something lies on a machine that is called, and is not asked in clear where calls go by TLS."""
    if url is None:
        return False
    host = urlsplit(url).hostname
    called = {urlsplit(each).scheme for each in urls if _host(each) == host}
    secret = urlsplit(url).scheme == "https" or host in _LOOPBACK
    return bool(called) and (secret or not called <= _BY_TLS)


def shown_url(url: str) -> str:
    """For reports and messages: without a password, and without values of the query but the agent's, for they may be
    keys."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "a URL that is none"
    user, at, host = parts.netloc.rpartition("@")
    netloc = f"{user.partition(':')[0]}:…@{host}" if ":" in user else user + at + host
    pairs = (pair.partition("=") for pair in parts.query.split("&"))
    query = "&".join(f"{name}={value if name == 'agent' else '…'}" if value else name for name, _, value in pairs)
    return urlunsplit((parts.scheme, netloc, parts.path, query, ""))


def bearer(key: str) -> bytes:
    """What the ``Authorization`` header says: as UTF-8, for beyond Latin-1 a header takes no text."""
    return f"Bearer {key}".encode()


def _host(url: str) -> str | None:
    return urlsplit(url).hostname or urlsplit("//" + url.partition(":")[2]).hostname


def _calls_path(path: str) -> str:
    path = path.rstrip("/")
    for known in (CALLS_PATH, "/v1/realtime", "/v1"):
        if path.endswith(known):
            return path.removesuffix(known) + CALLS_PATH
    return path + CALLS_PATH


def _known() -> str:
    names = [f"{scheme}:" if scheme == "sip" else f"{scheme}://" for scheme in _TRANSPORTS]
    return f"{', '.join(names[:-1])} or {names[-1]}"
