"""Answers a digest challenge (RFC 8760 and RFC 2617: SHA-256 and MD5, with ``qop=auth`` or without). Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadtest.sip.message import SipMessage

_MAX_TRIES = 3
_ALGORITHMS = {"sha-256": "sha256", "md5": "md5"}  # the stronger first


@dataclass(frozen=True, slots=True)
class Credentials:
    user: str
    password: str = field(repr=False)


def authorization(
    refusal: SipMessage, tries: int, credentials: Credentials | None, uri: str, client_nonce: str
) -> tuple[str, str] | None:
    """The header that answers the challenge of a 401 or 407, if it can be answered. ``tries``: how often the request
    was sent so far. What it was told before is wrong, unless its nonce had become too old."""
    challenges = refusal.all("www-authenticate") + refusal.all("proxy-authenticate")
    again = tries > 1 and not is_stale(challenges)
    if refusal.status not in (401, 407) or credentials is None or again or tries >= _MAX_TRIES:
        return None
    value = answer_challenge(challenges, credentials, refusal.cseq[1], uri, client_nonce)
    return None if value is None else ("Authorization" if refusal.status == 401 else "Proxy-Authorization", value)


def answer_challenge(
    challenges: Sequence[str], credentials: Credentials, method: str, uri: str, client_nonce: str
) -> str | None:
    """The value of ``Authorization`` for the strongest challenge that can be answered; None if none can."""
    offered = [_parse(challenge) for challenge in challenges if challenge.lower().startswith("digest ")]
    for algorithm, digest in _ALGORITHMS.items():
        for challenge in offered:
            if challenge.get("algorithm", "MD5").lower() == algorithm and "nonce" in challenge:
                return _answer(challenge, digest, credentials, method, uri, client_nonce)
    return None


def is_stale(challenges: Sequence[str]) -> bool:
    """The nonce was too old, the credentials were not wrong."""
    return any(_parse(challenge).get("stale", "").lower() == "true" for challenge in challenges)


def _parse(challenge: str) -> dict[str, str]:
    pairs = re.findall(r'(\w+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^\s,]+))', challenge.partition(" ")[2])
    return {name.lower(): quoted or bare for name, quoted, bare in pairs}


def _answer(
    challenge: dict[str, str], digest: str, credentials: Credentials, method: str, uri: str, client_nonce: str
) -> str:
    def hashed(text: str) -> str:
        return hashlib.new(digest, text.encode(), usedforsecurity=False).hexdigest()

    realm, nonce = challenge.get("realm", ""), challenge["nonce"]
    secret = hashed(f"{credentials.user}:{realm}:{credentials.password}")
    request = hashed(f"{method}:{uri}")
    fields = [f'username="{credentials.user}"', f'realm="{realm}"', f'nonce="{nonce}"', f'uri="{uri}"']
    if "auth" in re.split(r"[\s,]+", challenge.get("qop", "")):
        response = hashed(f"{secret}:{nonce}:00000001:{client_nonce}:auth:{request}")
        fields += ["qop=auth", "nc=00000001", f'cnonce="{client_nonce}"']
    else:
        response = hashed(f"{secret}:{nonce}:{request}")
    fields.append(f'response="{response}"')
    if "algorithm" in challenge:
        fields.append(f"algorithm={challenge['algorithm']}")
    if "opaque" in challenge:
        fields.append(f'opaque="{challenge["opaque"]}"')
    return "Digest " + ", ".join(fields)
