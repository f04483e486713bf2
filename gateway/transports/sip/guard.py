"""Who may ask for something, and how often: networks, passwords, and a limit for each source."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Iterable

from gateway.security.rate_limit import FailureLimit, source_of
from gateway.transports.sip.digest import DigestGate
from gateway.transports.sip.message import Request
from gateway.transports.sip.transaction import Peer
from gateway.transports.sip.user_agent import Verdict

KNOWN_PER_S = 2_000
"""Messages of a source that has a call or needs no password: only a peer gone mad sends more."""
STRANGERS_PER_S = 500
"""Messages of all the others together."""
MAX_SOURCES = 4_096

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Buckets:
    """For each key so many a second, and as many again at once. Those that were quiet longest are forgotten first."""

    def __init__(self, per_s: float, now_s: Callable[[], float]) -> None:
        self._per_s = per_s
        self._now_s = now_s
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """When the bucket of a key would be full again."""

    def take(self, key: str) -> bool:
        now = self._now_s()
        full_at = max(self._full_at.get(key, now), now) + 1 / self._per_s
        if full_at > now + 2:
            return False
        self._full_at[key] = full_at
        self._full_at.move_to_end(key)
        if len(self._full_at) > MAX_SOURCES:
            self._full_at.popitem(last=False)
        return True


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
        self._allow: list[_Network] = [ipaddress.ip_network(network) for network in allow]
        self._digest = digest
        self._anyone = anyone or (local_only and not self._allow and digest is None)
        self._local_only = local_only
        self._has_call = has_call
        self._trunks: dict[str, frozenset[str]] = {}
        self._strangers = Buckets(requests_per_s, now_s)
        self._all_strangers = Buckets(STRANGERS_PER_S, now_s)
        self._known = Buckets(KNOWN_PER_S, now_s)
        self._failures = FailureLimit(now_s)

    def trust(self, trunk: str, hosts: Iterable[str]) -> None:
        """Calls from these addresses are those of a trunk that we are registered with."""
        self._trunks[trunk] = frozenset(hosts)

    def takes(self, host: str) -> bool:
        """Whether one more message of this source is looked at."""
        source = source_of(host)
        if self._local_only or self.is_allowed(host) or self._has_call(host):
            return self._known.take(source)
        return self._strangers.take(source) and self._all_strangers.take("")

    def is_allowed(self, host: str) -> bool:
        """Whether it needs no password because of its address."""
        if any(host in hosts for hosts in self._trunks.values()):
            return True
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._allow)

    def judge(self, request: Request, source: Peer) -> Verdict:
        """Of a request outside of a call."""
        if self._anyone or self.is_allowed(source.host):
            return "allow"
        if self._digest is None:
            return "drop"
        if request.method != "INVITE":
            return "allow"  # answered without a state: OPTIONS, or a refusal
        if self._failures.wait_s(source.host) > 0:
            return "drop"
        verdict = self._digest.check(request.headers.all("authorization"), request.method)
        match verdict:
            case "ok":
                return "allow"
            case "stale":
                return "stale"
            case "wrong":
                self._failures.failed(source.host)
        return "challenge"

    def challenges(self, stale: bool) -> list[tuple[str, str]]:
        return self._digest.challenges(stale=stale) if self._digest is not None else []
