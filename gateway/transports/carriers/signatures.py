"""How carriers prove who they are. Every comparison takes the same time wherever two values differ.

Twilio: https://www.twilio.com/docs/usage/security (HMAC-SHA1 of the URL and the sorted parameters; with a webhooks rule
HMAC-SHA256). Plivo: signature V3 (HMAC-SHA256, with a nonce). Telnyx: Ed25519 over ``timestamp|body``, five minutes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import parse_qsl, urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import SecretStr

from gateway.security.credentials import basic, bearer, fingerprint, same
from gateway.transports.carriers.dialect import Asked, Unauthentic

WINDOW_S = 300.0
"""How old a signed request may be, and how long it is remembered so that it is not taken twice."""

MAX_REMEMBERED = 50_000
MAX_SIGNATURE_CHARS = 1_024


def invalid() -> Unauthentic:
    return Unauthentic("signature_invalid", "The signature is wrong.")


def missing(header: str) -> Unauthentic:
    return Unauthentic("signature_missing", f"There is no {header} header.")


# --- Twilio -----------------------------------------------------------------------------------------------------------


def twilio_signature(secret: str, url: str, form: Iterable[tuple[str, str]] = (), *, sha256: bool = False) -> str:
    """Base64 of the HMAC over the URL and then every parameter's name and value, sorted by name; of a repeated one each
    value once, sorted."""
    parts = "".join(name + value for name, value in sorted(set(form)))
    digest = hashlib.sha256 if sha256 else hashlib.sha1
    return base64.b64encode(
        hmac.new(secret.encode(), (url + parts).encode("utf-8", "replace"), digest).digest()
    ).decode()


def twilio_urls(url: str) -> tuple[str, ...]:
    """The forms of a URL that Twilio may have signed: with and without its standard port, and of a WebSocket with a
    slash at the end."""
    parts = urlsplit(url)
    standard = {"https": 443, "wss": 443, "http": 80, "ws": 80}.get(parts.scheme, 0)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    forms = [url]
    if parts.port is None:
        forms.append(url.replace(f"//{parts.netloc}", f"//{host}:{standard}", 1))
    elif parts.port == standard:
        forms.append(url.replace(f"//{parts.netloc}", f"//{host}", 1))
    if parts.scheme in {"ws", "wss"} and not parts.query:
        forms += [form.removesuffix("/") if form.endswith("/") else form + "/" for form in tuple(forms)]
    return tuple(forms)


# --- Plivo ------------------------------------------------------------------------------------------------------------


def plivo_signature(secret: str, method: str, url: str, nonce: str, form: Iterable[tuple[str, str]] = ()) -> str:
    """Version 3, as the vendor's own clients compute it: the query sorted and decoded; of a POST its parameters
    after it, sorted, names and values run together."""
    parts = urlsplit(url)
    fields = sorted(form)
    signed = f"{parts.scheme}://{parts.netloc}{parts.path}"
    query = sorted(parse_qsl(parts.query, keep_blank_values=True))
    if method == "GET":
        query, fields = sorted([*query, *fields]), []
    if query or fields:
        signed += "?" + "&".join(f"{name}={value}" for name, value in query)
    if query and fields:
        signed += "."
    signed += "".join(name + value for name, value in fields)
    message = f"{signed}.{nonce}".encode("utf-8", "replace")
    return base64.b64encode(hmac.new(secret.encode(), message, hashlib.sha256).digest()).decode()


# --- Telnyx -----------------------------------------------------------------------------------------------------------


class Ed25519Verifier:
    """``public_key``: 32 bytes in base64."""

    def __init__(self, public_key: str) -> None:
        self._key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key))

    def check(self, signature: str, message: bytes) -> None:
        """Raises :class:`Unauthentic`."""
        try:
            raw = base64.b64decode(signature[:MAX_SIGNATURE_CHARS], validate=True)
            self._key.verify(raw, message)
        except (InvalidSignature, ValueError, binascii.Error):
            raise invalid() from None


# --- a word that both know --------------------------------------------------------------------------------------------


def check_stream_token(asked: Asked, token: SecretStr | None, *, allow_unsigned: bool) -> None:
    """For vendors that do not sign upgrades, and streams without a ticket of ours: ``?token=``, a bearer or basic
    password, or Telnyx's own header. ``allow_unsigned`` lets in who presents nothing where there is no token. Raises
    :class:`Unauthentic`."""
    given = [word for word in (*_presented(asked), asked.query.get("token", "")) if word]
    expected = token.get_secret_value() if token is not None else ""
    if not given:
        if allow_unsigned and not expected:
            return
        raise Unauthentic("signature_missing", "A stream needs the ticket of its call, or the stream_token.")
    matches = [same(word, expected) for word in given]
    if not expected or not any(matches):
        raise Unauthentic("signature_invalid", "The token of the stream is wrong.")


def _presented(asked: Asked) -> Iterator[str]:
    yield asked.headers.get("x-telnyx-streaming-auth-token", "")
    header = asked.headers.get("authorization", "")
    yield bearer(header)
    yield basic(header).partition(":")[2]


# --- time -------------------------------------------------------------------------------------------------------------


def check_timestamp(text: str, now_s: float, window_s: float = WINDOW_S) -> None:
    """Unix seconds. Raises :class:`Unauthentic` for one that is none, or too far from now, either way."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 12):
        raise invalid()
    if abs(now_s - int(text)) > window_s:
        raise Unauthentic("signature_expired", "The request was signed too long ago, or in the future.")


class Seen:
    """What was taken already. Only what is authentic goes in, so that strangers cannot push anything out."""

    def __init__(self, now_s: Callable[[], float], *, window_s: float = WINDOW_S, limit: int = MAX_REMEMBERED) -> None:
        self._now_s = now_s
        self._keep_s = 2 * window_s  # a request may be signed in the future, too
        self._limit = limit
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def take(self, what: str) -> None:
        """Once. Raises :class:`Unauthentic` for the second time."""
        now = self._now_s()
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)
        key = fingerprint(what)
        if key in self._until:
            raise Unauthentic("signature_replayed", "This request was made before.")
        self._until[key] = now + self._keep_s
        if len(self._until) > self._limit:
            self._until.popitem(last=False)
