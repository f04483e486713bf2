"""How often one source may be wrong: keys that people type are short enough to be guessed."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable

FAILURES = 10
"""Wrong keys one source may try at once; after that one more every :data:`EVERY_S`."""
EVERY_S = 6.0
MAX_SOURCES = 4_096
"""Sources remembered; those that failed longest ago are forgotten first."""

_V6_PREFIX = 64
"""One subscriber has a whole IPv6 network of this size."""


class FailureLimit:
    """Counts failures by source, each with a bucket that refills. ``now_s`` is monotonic."""

    def __init__(self, now_s: Callable[[], float], *, failures: int = FAILURES, every_s: float = EVERY_S) -> None:
        self._now_s = now_s
        self._failures = failures
        self._every_s = every_s
        self._forgiven_at: OrderedDict[str, float] = OrderedDict()
        """When the last failure of a source will be forgiven: each adds ``every_s``."""

    def wait_s(self, source: str) -> float:
        """How long this source has to wait before it may try again; 0: it may."""
        forgiven_at = self._forgiven_at.get(source_of(source), 0.0)
        return max(0.0, forgiven_at - (self._failures - 1) * self._every_s - self._now_s())

    def failed(self, source: str) -> None:
        now = self._now_s()
        name = source_of(source)
        self._forgiven_at[name] = max(self._forgiven_at.get(name, 0.0), now) + self._every_s
        self._forgiven_at.move_to_end(name)
        while len(self._forgiven_at) > MAX_SOURCES:
            self._forgiven_at.popitem(last=False)


def source_of(address: str) -> str:
    """What counts as one source: an IPv4 address, or an IPv6 network. Whatever is no address counts as itself."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, _V6_PREFIX), strict=False))
    return str(parsed)
