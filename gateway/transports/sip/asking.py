"""Requests of ours that may be challenged: asked again with the password, if there is one (RFC 3261, 22.2)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from gateway.transports.sip.address import BadSyntax
from gateway.transports.sip.digest import Credentials, answer_challenge, parse_digest
from gateway.transports.sip.message import Headers, Request, Response
from gateway.transports.sip.transaction import ClientTransaction, Peer, Transactions, TransactionsFull

MAX_ATTEMPTS = 3
"""The request, its repetition with credentials, and one more if the nonce was stale."""

Fields = list[tuple[str, str]]
Make = Callable[[Fields], tuple[Request, Peer]]
"""Builds the request anew, with its next CSeq and branch, and these fields."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request of ours ended. ``status`` 408: no answer came."""

    status: int
    reason: str = ""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


Done = Callable[[Outcome], None]


class Asking:
    """One request, from its first attempt to its last answer."""

    def __init__(
        self,
        transactions: Transactions,
        make: Make,
        credentials: Credentials | None,
        on_response: Callable[[Response], None],
        on_timeout: Callable[[], None],
        random_hex: Callable[[], str],
    ) -> None:
        self._transactions = transactions
        self._make = make
        self._credentials = credentials
        self._on_response = on_response
        self._on_timeout = on_timeout
        self._random_hex = random_hex
        self._attempts = 0
        self.transaction: ClientTransaction
        """The latest."""
        self._attempt([])

    def _attempt(self, extra: Fields) -> None:
        self._attempts += 1
        request, peer = self._make(extra)
        self.transaction = self._transactions.begin_client(
            request, peer, on_response=self._answered, on_timeout=self._on_timeout
        )

    def _answered(self, response: Response) -> None:
        if response.status in {401, 407} and self._attempts < MAX_ATTEMPTS:
            extra = self._credentials_for(response)
            if extra is not None:
                with contextlib.suppress(TransactionsFull):
                    self._attempt(extra)
                    return
        self._on_response(response)

    def _credentials_for(self, response: Response) -> Fields | None:
        asked, given = (
            ("www-authenticate", "authorization")
            if response.status == 401
            else ("proxy-authenticate", "proxy-authorization")
        )
        challenges = response.headers.all(asked)
        if self._credentials is None or (self._attempts > 1 and not any(map(_is_stale, challenges))):
            return None  # without a password, or it is wrong
        request = self.transaction.request
        said = answer_challenge(challenges, self._credentials, request.method, request.uri, cnonce=self._random_hex())
        return None if said is None else [(given, said)]


def cancel_of(sent: Request) -> Request:
    """The CANCEL of an INVITE (RFC 3261, 9.1)."""
    headers = Headers((name, value) for name, value in sent.headers if name in _KEPT)
    headers.add("cseq", f"{sent.cseq[0]} CANCEL")
    return Request(headers, method="CANCEL", uri=sent.uri)


_KEPT = frozenset({"via", "max-forwards", "from", "to", "call-id", "route"})


def _is_stale(challenge: str) -> bool:
    try:
        return parse_digest(challenge).get("stale", "").lower() == "true"
    except BadSyntax:
        return False
