"""Keys for SRTP in the session description (SDES, RFC 4568), and the packets under them (RFC 3711, by libsrtp).

The keys are as secret as the signalling that carries them: with TLS they are, without it the media is only hidden from
those who do not see the signalling. They are never logged.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field

import pylibsrtp

_SUITES = {
    "AES_CM_128_HMAC_SHA1_80": (pylibsrtp.Policy.SRTP_PROFILE_AES128_CM_SHA1_80, 30),
    "AES_CM_128_HMAC_SHA1_32": (pylibsrtp.Policy.SRTP_PROFILE_AES128_CM_SHA1_32, 30),
    "AEAD_AES_128_GCM": (pylibsrtp.Policy.SRTP_PROFILE_AEAD_AES_128_GCM, 28),
    "AEAD_AES_256_GCM": (pylibsrtp.Policy.SRTP_PROFILE_AEAD_AES_256_GCM, 44),
}
"""libsrtp's profile, and how many bytes master key and salt have together (RFC 4568, 6.2; RFC 7714, 14.2)."""

OFFERED_SUITE = "AES_CM_128_HMAC_SHA1_80"
"""The one that every peer has to know (RFC 4568, section 6.2.1)."""
MAX_CRYPTOS = 16

_CRYPTO = re.compile(r"(\d{1,9})\s+(\S{1,64})\s+inline:([A-Za-z0-9+/=]{1,128})(\|\S{0,64})?((?:\s+\S+)*)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Crypto:
    tag: int
    suite: str
    key: bytes = field(repr=False)
    """Master key and salt."""

    def is_key_of(self, other: Crypto) -> bool:
        return (self.suite, self.key) == (other.suite, other.key)

    @property
    def attribute(self) -> str:
        return f"crypto:{self.tag} {self.suite} inline:{base64.b64encode(self.key).decode()}"


def read_crypto(value: str) -> Crypto | None:
    """None: malformed, or something that we do not do (another suite, MKI, unencrypted, a key derivation rate)."""
    match = _CRYPTO.fullmatch(value)
    if match is None:
        return None
    tag, suite, encoded, rest, parameters = match.groups()
    if suite.upper() not in _SUITES or ":" in (rest or "") or (rest or "").count("|") > 1:
        return None
    if any(not word.upper().startswith("WSH=") for word in parameters.split()):
        return None
    try:
        key = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        return None
    if len(key) != _SUITES[suite.upper()][1]:
        return None
    return Crypto(int(tag), suite.upper(), key)


def usable_crypto(values: tuple[str, ...]) -> Crypto | None:
    """The first that can be used: the peer's order is its wish."""
    for value in values[:MAX_CRYPTOS]:
        crypto = read_crypto(value)
        if crypto is not None:
            return crypto
    return None


def key_bytes(suite: str) -> int:
    return _SUITES[suite][1]


class SecureMedia:
    """Both directions' SRTP and SRTCP. ``ours`` protects what we send, ``theirs`` what they do.

    A direction whose key is that of ``before`` goes on where it was: begun anew it would count packets from zero, and
    put a second text under the same key stream.

    Methods raise :class:`pylibsrtp.Error` for packets that are forged, replayed or broken, and :class:`ValueError` for
    those that are too long.
    """

    def __init__(self, ours: Crypto, theirs: Crypto, before: SecureMedia | None = None) -> None:
        self._ours, self._theirs = ours, theirs
        out = before._out if before is not None and before._ours.is_key_of(ours) else None
        into = before._in if before is not None and before._theirs.is_key_of(theirs) else None
        self._out: pylibsrtp.Session = out or _session(ours, pylibsrtp.Policy.SSRC_ANY_OUTBOUND)
        self._in: pylibsrtp.Session = into or _session(theirs, pylibsrtp.Policy.SSRC_ANY_INBOUND)
        self.protect = self._out.protect
        self.protect_rtcp = self._out.protect_rtcp
        self.unprotect = self._in.unprotect
        self.unprotect_rtcp = self._in.unprotect_rtcp


def _session(crypto: Crypto, direction: int) -> pylibsrtp.Session:
    profile, _ = _SUITES[crypto.suite]
    policy = pylibsrtp.Policy(key=crypto.key, ssrc_type=direction, srtp_profile=profile)
    policy.allow_repeat_tx = False
    policy.window_size = 128
    return pylibsrtp.Session(policy)
