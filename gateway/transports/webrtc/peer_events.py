"""What a peer tells its owner, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from engines.api import Pcm16

LostCause = Literal["media_timeout", "connection_lost", "peer_closed", "never_connected", "protocol_error"]


class PeerEvents(Protocol):
    """All are called on the loop, and neither block nor raise. After :meth:`lost` or ``close()`` none is."""

    def connected(self) -> None: ...

    def channel_open(self) -> None:
        """The channel ``oai-events``, which the client makes."""

    def audio(self, pcm: Pcm16) -> None:
        """16 kHz mono, any length, in order; what was lost is concealed, what was not sent is silence."""

    def message(self, text: str) -> None: ...

    def binary(self) -> None: ...

    def writable(self) -> None:
        """The data channel drained below its mark."""

    def suspect(self, silent: bool) -> None:
        """Nothing came for a while (True), or something again (False)."""

    def lost(self, cause: LostCause) -> None: ...


@dataclass(frozen=True, slots=True)
class MediaStats:
    packets_in: int
    packets_out: int
    lost: int
    """Of the caller's packets: not there in time."""
    late: int
    reordered: int
    duplicates: int
    malformed: int
    resyncs: int
    """Timestamps that jumped."""
    concealed_ms: int
    jitter_ms: float
    rtt_ms: float | None
    far_lost: int
    """Of ours, by the far end's reports."""
