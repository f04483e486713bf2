"""How often one source may ask, and how often it may be wrong: keys that people type can be guessed."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable

from gateway.security.networks import parse_address

FAILURES = 10
"""Wrong keys one source may try at once; after that one more every :data:`EVERY_S`."""
EVERY_S = 6.0
MAX_SOURCES = 4_096
"""Sources remembered; those that failed longest ago are forgotten first."""

_V6_PREFIX = 64
"""One subscriber has a whole IPv6 network of this size."""


class Buckets:
    """One for each key: ``most`` at once, and one more every ``every_s``. Those that were quiet longest are forgotten
    first. ``now_s`` is monotonic."""

    def __init__(self, now_s: Callable[[], float], *, most: int, every_s: float) -> None:
        self._now_s = now_s
        self._most = most
        self._every_s = every_s
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """When the bucket of a key will be full again: each that is spent adds ``every_s``."""

    def wait_s(self, key: str) -> float:
        """How long until there is one more; 0: there is."""
        return max(0.0, self._full_at.get(key, 0.0) - (self._most - 1) * self._every_s - self._now_s())

    def spend(self, key: str, cost: int = 1) -> None:
        """One, or as many as it costs, even if there is none."""
        self._full_at[key] = max(self._full_at.get(key, 0.0), self._now_s()) + cost * self._every_s
        self._full_at.move_to_end(key)
        while len(self._full_at) > MAX_SOURCES:
            self._full_at.popitem(last=False)

    def take(self, key: str, cost: int = 1) -> bool:
        """Spend one, if there is one; or as many as it costs."""
        if self.wait_s(key) > 0:
            return False
        self.spend(key, cost)
        return True


class FailureLimit:
    """Failures by source. ``now_s`` is monotonic."""

    def __init__(self, now_s: Callable[[], float], *, failures: int = FAILURES, every_s: float = EVERY_S) -> None:
        self._failures = Buckets(now_s, most=failures, every_s=every_s)

    def wait_s(self, source: str) -> float:
        """How long this source has to wait before it may try again; 0: it may."""
        return self._failures.wait_s(source_of(source))

    def failed(self, source: str) -> None:
        self._failures.spend(source_of(source))


def source_of(address: str) -> str:
    """What counts as one source: an IPv4 address, or an IPv6 network. Whatever is no address counts as itself."""
    parsed = parse_address(address)
    if parsed is None:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, _V6_PREFIX), strict=False))
    return str(parsed)
