"""Where a caller's media really comes from, and so where ours goes (symmetric RTP, RFC 4961)."""

from __future__ import annotations

from gateway.transports.sip.sdp import Address

Source = tuple[str, int]


class Latch:
    """The first source that sends good media is the caller: behind a NAT the description cannot know its address.

    Once: no later source is taken, whoever it says it is; only the very address of the description may still take its
    place back from a stranger who was faster. A new description that names another address begins anew.
    """

    def __init__(self) -> None:
        self._announced: Source | None = None
        self._latched: Source | None = None
        self.rejected = 0
        """Packets of others."""

    @property
    def to(self) -> Source | None:
        """Where to send; None: nobody knows yet."""
        return self._latched or self._announced

    @property
    def source(self) -> Source | None:
        """Where media comes from; None: nothing came yet."""
        return self._latched

    def announce(self, address: Address) -> None:
        """The description's. The same as before changes nothing: a hold and a resume leave the way as it was."""
        announced = (address.ip, address.port) if address.ip and address.port else None
        if announced != self._announced:
            self._announced, self._latched = announced, None

    def admits(self, source: Source) -> bool:
        """Whether a packet from there may be looked at; :meth:`take` then says that it was good."""
        if self._latched is None or source == self._latched or source == self._announced:
            return True
        self.rejected += 1
        return False

    def take(self, source: Source) -> bool:
        """Good media came from an admitted source. Returns whether that is another than before."""
        if source == self._latched:
            return False
        self._latched = source
        return True
