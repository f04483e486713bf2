"""Client secrets: short-lived keys that open calls and do nothing else, to be handed to a browser.

They live in this process only. A used one is remembered until it would have expired, so that a second use is told
apart from a guess.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass

PREFIX = "ek_"
MIN_SECONDS, DEFAULT_SECONDS, MAX_SECONDS = 10, 600, 7_200
MAX_SECRETS = 10_000
MAX_BYTES = 32 * 1024 * 1024
"""All sessions of secrets that have not expired."""

_COST_BYTES = 512
"""What a secret takes besides its session."""


class TooManySecrets(Exception):  # noqa: N818 (an answer, not a defect)
    """The store is full of secrets that may still be used."""

    code = "too_many_client_secrets"


class AlreadyUsed(Exception):  # noqa: N818 (an answer, not a defect)
    """It opened its call, and it was good for one."""

    code = "ephemeral_token_already_used"


@dataclass(frozen=True, slots=True)
class ClientSecret:
    """``id`` is what may be kept and compared in its place; ``session`` the JSON it was made with (None: none).
    ``locked``: a call that it opens stays as it was made; its caller only takes part. ``by_page``: the key of the call
    page made it, which strangers may have."""

    id: str
    expires_at: float
    session: bytes | None = None
    agent: str | None = None
    locked: bool = False
    by_page: bool = False

    @property
    def size(self) -> int:
        return _COST_BYTES + len(self.session or b"")


class ClientSecrets:
    """``now_s`` is Unix time, because clients are told when a secret expires."""

    def __init__(
        self,
        now_s: Callable[[], float],
        *,
        reusable: bool = False,
        max_secrets: int = MAX_SECRETS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._now_s = now_s
        self._reusable = reusable
        self._max_secrets = max_secrets
        self._max_bytes = max_bytes
        self._known: dict[str, ClientSecret] = {}
        self._used: set[str] = set()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def mint(
        self,
        seconds: int,
        *,
        session: bytes | None = None,
        agent: str | None = None,
        locked: bool = False,
        by_page: bool = False,
    ) -> tuple[str, ClientSecret]:
        """A new secret's value, which is told once and not kept, and the secret. Raises :class:`TooManySecrets`."""
        value = PREFIX + secrets.token_urlsafe(24)
        secret = ClientSecret(secret_id(value), self._now_s() + seconds, session, agent, locked, by_page)
        self._forget_expired()
        if not self._has_room(secret):
            self._forget_used()
        if not self._has_room(secret):
            self._forget_pages_until_there_is_room(secret)
        if not self._has_room(secret):
            raise TooManySecrets("too many client secrets are waiting to be used")
        self._known[secret.id] = secret
        self._bytes += secret.size
        return value, secret

    def find(self, value: str) -> ClientSecret | None:
        """None: there is no such secret, or it has expired."""
        secret = self._known.get(secret_id(value))
        return secret if secret is not None and secret.expires_at > self._now_s() else None

    def is_used(self, secret: ClientSecret) -> bool:
        return secret.id in self._used

    def use(self, secret: ClientSecret) -> None:
        """It opens a call now. Raises :class:`AlreadyUsed`."""
        if self._reusable:
            return
        if secret.id in self._used or secret.id not in self._known:  # forgotten since it came in
            raise AlreadyUsed("this client secret has opened its call already")
        self._used.add(secret.id)

    def restore(self, secret: ClientSecret) -> None:
        """The call did not come to be: the secret may try again."""
        self._used.discard(secret.id)

    def _has_room(self, secret: ClientSecret) -> bool:
        return len(self._known) < self._max_secrets and self._bytes + secret.size <= self._max_bytes

    def _forget_expired(self) -> None:
        now = self._now_s()
        self._forget([secret for secret in self._known.values() if secret.expires_at <= now])

    def _forget_used(self) -> None:
        """A second use of one of these is then told that there is no such secret."""
        self._forget([self._known[known] for known in self._used if known in self._known])

    def _forget_pages_until_there_is_room(self, secret: ClientSecret) -> None:
        """The oldest first: a page uses its secret at once, and whoever only gathers them keeps out nobody."""
        for known in [known for known in self._known.values() if known.by_page]:
            if self._has_room(secret):
                return
            self._forget([known])

    def _forget(self, gone: list[ClientSecret]) -> None:
        for secret in gone:
            del self._known[secret.id]
            self._used.discard(secret.id)
            self._bytes -= secret.size


def secret_id(value: str) -> str:
    """:attr:`ClientSecret.id` of a value, also of one that is not known any more."""
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
