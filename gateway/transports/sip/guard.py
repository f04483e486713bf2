"""Who may ask for something, and how often: networks, passwords, and a limit for each source."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.security.networks import Networks
from gateway.security.rate_limit import Buckets, FailureLimit, source_of
from gateway.transports.sip.digest import DigestGate
from gateway.transports.sip.message import Request
from gateway.transports.sip.transaction import Peer
from gateway.transports.sip.user_agent import Verdict

KNOWN_PER_S = 2_000
"""Messages of a source that has a call or needs no password: only a peer gone mad sends more."""
STRANGERS_PER_S = 500
"""Messages of all the others together."""
STRANGERS_CALLS_PER_S = 50
"""Calls that are begun by all who need no password though nobody knows them: each costs far more than its message."""
MESSAGE_BYTES = 1_024
"""Beyond, a message counts as several."""
LONG_ONES_PER_S = 128
"""Of as many bytes, and no more at once: what strangers write beyond :data:`MESSAGE_BYTES`."""


def _a_second(count: int, now_s: Callable[[], float]) -> Buckets:
    """So many a second, and twice as many at once."""
    return Buckets(now_s, most=2 * count, every_s=1 / count)


class SourceGuard:
    """``has_call`` says whether a host has one; ``local_only``: nobody but this machine reaches the port."""

    def __init__(
        self,
        *,
        allow: Iterable[str],
        digest: DigestGate | None,
        anyone: bool,
        local_only: bool,
        requests_per_s: int,
        has_call: Callable[[str], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._allow = Networks(allow)
        self._digest = digest
        self._anyone = anyone or (local_only and not self._allow and digest is None)
        self._local_only = local_only
        self._has_call = has_call
        self._trunks: dict[str, frozenset[str]] = {}
        self._strangers = _a_second(requests_per_s, now_s)
        self._all_strangers = _a_second(STRANGERS_PER_S, now_s)
        self._known = _a_second(KNOWN_PER_S, now_s)
        self._long_ones = Buckets(now_s, most=LONG_ONES_PER_S, every_s=1 / LONG_ONES_PER_S)
        self._strangers_calls = _a_second(STRANGERS_CALLS_PER_S, now_s)
        self._failures = FailureLimit(now_s)

    def trust(self, trunk: str, hosts: Iterable[str]) -> None:
        """Calls from these addresses are those of a trunk that we are registered with."""
        self._trunks[trunk] = frozenset(hosts)

    def trunk_of(self, host: str) -> str | None:
        """The trunk that calls from there, of those that we are registered with."""
        return next((trunk for trunk, hosts in self._trunks.items() if host in hosts), None)

    def takes(self, host: str, size: int = 0) -> bool:
        """Whether one more message of this source is looked at. To read a long one takes as long as to read several."""
        source, surplus = source_of(host), size // MESSAGE_BYTES
        if self._local_only or self.is_allowed(host) or self._has_call(host):
            return self._known.take(source, 1 + surplus)
        if not (self._strangers.take(source, 1 + surplus) and self._all_strangers.take("")):
            return False
        return not surplus or self._long_ones.take("", surplus)

    def is_allowed(self, host: str) -> bool:
        """Whether it needs no password because of its address."""
        return self.trunk_of(host) is not None or host in self._allow

    def answers(self, host: str) -> bool:
        """Whether it is told anything. Where a password helps, everybody is asked for it."""
        return self._anyone or self._digest is not None or self.is_allowed(host) or self._has_call(host)

    def judge(self, request: Request, source: Peer) -> Verdict:
        """Of a request outside of a call."""
        if self.is_allowed(source.host) or (self._anyone and self._local_only):
            return "allow"
        if self._anyone:
            return "allow" if request.method != "INVITE" or self._strangers_calls.take("") else "drop"
        if self._digest is None:
            return "drop"
        if request.method != "INVITE":
            return "allow"  # answered without a state: OPTIONS, or a refusal
        if self._failures.wait_s(source.host) > 0:
            return "drop"
        known_as = source_of(source.host)
        verdict = self._digest.check(request.headers.all("authorization"), request.method, known_as)
        match verdict:
            case "ok":
                return "allow"
            case "stale":
                return "stale"
            case "wrong":
                self._failures.failed(source.host)
        return "challenge"

    def challenges(self, host: str, *, stale: bool) -> list[tuple[str, str]]:
        return self._digest.challenges(source_of(host), stale=stale) if self._digest is not None else []
