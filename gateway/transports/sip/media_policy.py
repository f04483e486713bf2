"""What the operator allows a call's media, and what the media tells its call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from engines.api import Pcm16
from gateway.transports.sip.offer_answer import Srtp

MediaCause = Literal["media_timeout", "protocol_error", "internal_error"]

DEFAULT_CODECS = ("opus", "g722", "pcmu", "pcma")
"""Each held a call with baresip, both ways."""


@dataclass(frozen=True, slots=True)
class RtpPolicy:
    bind_ip: str = "0.0.0.0"
    advertised_ip: str = ""
    """What descriptions say. Empty: ``bind_ip``, or the address that packets to the peer leave from."""
    ports: tuple[int, int] | None = None
    """First and last; None: any."""
    codecs: tuple[str, ...] = DEFAULT_CODECS
    """Of ``opus``, ``g722``, ``pcmu``, ``pcma``. The order counts in our offers; of an offer, its own order."""
    srtp: Srtp = Srtp.ACCEPTED
    starts_at_once: bool = True
    """Send, and expect media, from the first agreement on; else from :meth:`RtpMedia.start` on (a call that rings)."""
    suspect_after_s: float = 2.0
    lost_after_s: float = 10.0


class MediaEvents(Protocol):
    """On the loop, none blocks, none raises."""

    def audio(self, pcm: Pcm16, rate_hz: int, at_ms: float) -> None:
        """In order and without gaps: what is lost is concealed, what is not sent is silence. ``at_ms`` is the media
        time of the first sample."""

    def dtmf(self, digit: str) -> None:
        """One key (``0-9*#A-D``), once, when it is pressed."""

    def suspect(self, silent: bool) -> None:
        """No media comes though it should; or it does again."""

    def lost(self, cause: MediaCause) -> None:
        """There is no more of it. Told once; :meth:`RtpMedia.close` is still to be called."""
