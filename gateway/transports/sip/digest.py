"""HTTP digest authentication as SIP uses it (RFC 3261, section 22; RFC 7616; RFC 8760): both sides, ``qop=auth`` only.

A server's nonce carries its own time and is signed, so that none has to be kept until it is used. Used ones are kept
for as long as they live, with the highest count seen: what is sent twice is refused.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from gateway.transports.sip.address import TOKEN, BadSyntax, split_outside_quotes

NONCE_LIFE_S = 120.0
MAX_NONCES = 8_192
"""Used and not yet expired. Beyond, the oldest goes, and whoever used it is challenged anew."""

_ALGORITHMS: dict[str, Callable[[bytes], str]] = {
    "SHA-256": lambda data: hashlib.sha256(data).hexdigest(),
    "MD5": lambda data: hashlib.md5(data, usedforsecurity=False).hexdigest(),
}

Verdict = Literal["ok", "none", "wrong", "stale"]


@dataclass(frozen=True, slots=True)
class Credentials:
    user: str
    password: str


def parse_digest(value: str) -> dict[str, str]:
    """The parameters of a ``Digest`` challenge or of credentials, names in lower case. Raises :class:`BadSyntax`."""
    scheme, _, rest = value.strip().partition(" ")
    if scheme.lower() != "digest":
        raise BadSyntax("digest scheme")
    found: dict[str, str] = {}
    for part in split_outside_quotes(rest.strip(), ","):
        name, equals, text = part.strip().partition("=")
        name, text = name.strip().lower(), text.strip()
        if not equals or not TOKEN.fullmatch(name) or name in found:
            raise BadSyntax("digest")
        if text.startswith('"'):
            if len(text) < 2 or not text.endswith('"'):
                raise BadSyntax("digest")
            text = re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)
        found[name] = text
    return found


def digest_of(
    algorithm: str, who: Credentials, realm: str, method: str, uri: str, nonce: str, nc: str, cnonce: str, qop: str
) -> str:
    """The ``response`` value; ``qop`` empty: as of RFC 2069. Raises KeyError: an unknown algorithm."""
    of = _ALGORITHMS[algorithm.upper()]

    def hashed(*parts: str) -> str:
        return of(":".join(parts).encode("utf-8", "surrogateescape"))

    secret = hashed(who.user, realm, who.password)
    asked = hashed(method, uri)
    return hashed(secret, nonce, nc, cnonce, qop, asked) if qop else hashed(secret, nonce, asked)


class DigestGate:
    """Who may call, by password. ``users`` maps names to passwords; ``secret`` signs nonces; ``algorithms`` are those
    that callers may answer with, as they are offered."""

    def __init__(
        self,
        users: Mapping[str, str],
        realm: str,
        *,
        secret: bytes,
        now_s: Callable[[], float],
        random_hex: Callable[[], str],
        algorithms: Iterable[str] = tuple(_ALGORITHMS),
    ) -> None:
        self._algorithms = tuple(name.upper() for name in algorithms)
        self._users = users
        self._realm = realm
        self._secret = secret
        self._now_s = now_s
        self._random_hex = random_hex
        self._counts: OrderedDict[str, int] = OrderedDict()
        """The highest count of each nonce in use."""

    def challenges(self, source: str, *, stale: bool = False) -> list[tuple[str, str]]:
        """The WWW-Authenticate headers of a 401 to ``source``, one an algorithm (RFC 8760, 2.4)."""
        nonce = self._nonce(source)
        tail = ', qop="auth"' + (", stale=true" if stale else "")
        return [
            ("www-authenticate", f'Digest realm="{self._realm}", nonce="{nonce}", algorithm={algorithm}{tail}')
            for algorithm in self._algorithms
        ]

    def check(self, values: Iterable[str], method: str, source: str) -> Verdict:
        """Judge the Authorization headers of a request from ``source``: those of other realms are none. A nonce is good
        for whom it was given to: without it no password can be tried, nor can anybody be wrong in another's name. The
        address in them is the caller's own affair: proxies change the request's on its way, and some phones leave its
        user out (RFC 3261, 22.4)."""
        for value in values:
            try:
                given = parse_digest(value)
            except BadSyntax:
                continue
            if given.get("realm") == self._realm:
                return self._judge(given, method, source)
        return "none"

    def _judge(self, given: Mapping[str, str], method: str, source: str) -> Verdict:
        nonce, nc, uri = given.get("nonce", ""), given.get("nc", ""), given.get("uri", "")
        if not self._is_ours(nonce, source):
            return "stale"  # whatever the password: it is not looked at
        algorithm = given.get("algorithm", "MD5")
        if algorithm.upper() not in self._algorithms or given.get("qop") != "auth" or not uri:
            return "wrong"
        if not re.fullmatch(r"[0-9a-fA-F]{8}", nc) or not given.get("cnonce"):
            return "wrong"
        name = given.get("username", "")
        # Of one who is not known the same is computed, so that names cannot be told by the time it takes.
        who = Credentials(name, self._users.get(name, self._random_hex()))
        right = digest_of(algorithm, who, self._realm, method, uri, nonce, nc, given["cnonce"], "auth")
        matches = hmac.compare_digest(right.encode(), given.get("response", "").lower().encode("utf-8", "replace"))
        if not matches or name not in self._users:
            return "wrong"
        return "ok" if self._alive(nonce) and self._count(nonce, int(nc, 16)) else "stale"

    def _nonce(self, source: str) -> str:
        body = f"{int(self._now_s() * 1000):x}.{self._random_hex()}"
        return f"{body}.{self._sign(body, source)}"

    def _sign(self, body: str, source: str) -> str:
        signed = f"{source} {body}".encode("utf-8", "surrogateescape")
        return hmac.new(self._secret, signed, hashlib.sha256).hexdigest()[:32]

    def _is_ours(self, nonce: str, source: str) -> bool:
        body, _, signature = nonce.rpartition(".")
        return hmac.compare_digest(self._sign(body, source).encode(), signature.encode("utf-8", "surrogateescape"))

    def _alive(self, nonce: str) -> bool:
        made_s = int(nonce.partition(".")[0], 16) / 1000
        return 0 <= self._now_s() - made_s < NONCE_LIFE_S

    def _count(self, nonce: str, count: int) -> bool:
        """Whether the count is a new one: each is taken once."""
        if count <= self._counts.get(nonce, 0):
            return False
        if nonce not in self._counts and len(self._counts) >= MAX_NONCES:
            oldest = next(iter(self._counts))
            if self._alive(oldest):
                return False  # forgetting one that lives would let it be replayed
            del self._counts[oldest]
        self._counts[nonce] = count
        return True


def answer_challenge(challenges: Iterable[str], who: Credentials, method: str, uri: str, *, cnonce: str) -> str | None:
    """The credentials for the first challenge that we can answer; None: there is none."""
    known: list[dict[str, str]] = []
    for value in challenges:
        try:
            given = parse_digest(value)
        except BadSyntax:
            continue
        if given.get("algorithm", "MD5").upper() in _ALGORITHMS and given.get("nonce"):
            known.append(given)
    for algorithm in _ALGORITHMS:
        for given in known:
            if given.get("algorithm", "MD5").upper() == algorithm and (
                said := _answer(given, who, method, uri, cnonce)
            ):
                return said
    return None


def _answer(given: Mapping[str, str], who: Credentials, method: str, uri: str, cnonce: str) -> str | None:
    offered = {part.strip().lower() for part in given.get("qop", "").split(",") if part.strip()}
    if offered and "auth" not in offered:
        return None
    algorithm, realm, nonce = given.get("algorithm", "MD5"), given.get("realm", ""), given["nonce"]
    qop, nc = ("auth", "00000001") if offered else ("", "")
    response = digest_of(algorithm, who, realm, method, uri, nonce, nc, cnonce, qop)
    parts = [
        f'username="{_quoted(who.user)}"',
        f'realm="{_quoted(realm)}"',
        f'nonce="{_quoted(nonce)}"',
        f'uri="{uri}"',
        f'response="{response}"',
        f"algorithm={algorithm}",
    ]
    if qop:
        parts += [f"qop={qop}", f"nc={nc}", f'cnonce="{cnonce}"']
    if "opaque" in given:
        parts.append(f'opaque="{_quoted(given["opaque"])}"')
    return "Digest " + ", ".join(parts)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
