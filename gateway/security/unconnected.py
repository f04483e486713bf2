"""How many places calls may hold whose media has yet to come: an offer costs its sender nothing, and may be a lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from gateway.security.networks import is_loopback
from gateway.security.rate_limit import source_of

PER_SOURCE = 4
"""At most: several people may sit behind one address, and the call of each connects within a second."""


class Unconnected:
    """Counts such calls, in all and by source. ``places``: how many calls there can be at all, of which at most half
    are kept waiting for media, and a quarter by one source, so that none alone keeps out the others."""

    def __init__(self, places: int) -> None:
        self._most = max(1, places // 2)
        self._per_source = min(PER_SOURCE, max(1, places // 4))
        self._sources: dict[Hashable, str] = {}
        self._by_source: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._sources)

    def begin(self, call: Hashable, address: str) -> bool:
        """False: there are too many, and this one is not counted. The loopback address is no one's own: it is that of
        a load test, or of a proxy that was not named, so only the count of all holds for it."""
        source = source_of(address)
        if len(self._sources) >= self._most:
            return False
        if self._by_source[source] >= self._per_source and not is_loopback(address):
            return False
        self._sources[call] = source
        self._by_source[source] += 1
        return True

    def end(self, call: Hashable) -> None:
        """It is connected, or over. Twice is fine."""
        source = self._sources.pop(call, None)
        if source is None:
            return
        self._by_source[source] -= 1
        if not self._by_source[source]:
            del self._by_source[source]
