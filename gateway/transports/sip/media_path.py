"""The way of a call's packets: where they go, where they may come from, and under which keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pylibsrtp

from gateway.transports.sip.latch import Latch, Source
from gateway.transports.sip.offer_answer import Agreed
from gateway.transports.sip.sdes import SecureMedia
from gateway.transports.sip.sdp import Address


class Wire(Protocol):
    """The two ports of a call."""

    port: int

    @property
    def unsent(self) -> int:
        """Datagrams that the system did not take."""

    def send_rtp(self, data: bytes, to: Source) -> None: ...

    def send_rtcp(self, data: bytes, to: Source) -> None: ...

    def close(self) -> None: ...


class MediaPath:
    """Packets are plain on this side. What is opened was let through: it came from where it may, with the right key;
    :meth:`took` then says that it was good, too."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._agreed: Agreed | None = None
        self._secure: SecureMedia | None = None
        self._latch, self._rtcp_latch = Latch(), Latch()
        self.refused = 0
        """Datagrams of strangers, and forged ones."""

    @property
    def secured(self) -> bool:
        return self._secure is not None

    @property
    def mux(self) -> bool:
        """RTCP comes and goes with RTP."""
        return self._agreed is not None and self._agreed.rtcp_mux

    @property
    def unsent(self) -> int:
        return self._wire.unsent

    def agree(self, agreed: Agreed) -> None:
        self._agreed = agreed
        ours, theirs = agreed.our_crypto, agreed.their_crypto
        if ours is None or theirs is None:
            self._secure = None
        else:
            self._secure = SecureMedia(ours, theirs, before=self._secure)
        self._latch.announce(agreed.remote)
        self._rtcp_latch.announce(agreed.remote_rtcp)

    def send_rtp(self, packet: bytes) -> None:
        to = self._latch.to
        secure = self._secure
        if to is None:
            return
        if secure is None:
            self._wire.send_rtp(packet, to)
        else:
            protected = self._through(secure.protect, packet)
            if protected is not None:
                self._wire.send_rtp(protected, to)

    def send_rtcp(self, packet: bytes) -> None:
        to = self._latch.to if self.mux else self._rtcp_latch.to
        if to is None:
            return
        protected = packet if self._secure is None else self._through(self._secure.protect_rtcp, packet)
        if protected is not None:
            (self._wire.send_rtp if self.mux else self._wire.send_rtcp)(protected, to)

    def open_rtp(self, data: bytes, source: Source) -> bytes | None:
        if not self._latch.admits(source):
            self.refused += 1
            return None
        return data if self._secure is None else self._through(self._secure.unprotect, data)

    def open_rtcp(self, data: bytes, source: Source) -> bytes | None:
        """From the media's own address, whatever the port."""
        media = self._latch.source
        latch = self._latch if self.mux else self._rtcp_latch
        if not latch.admits(source) or (media is not None and source[0] != media[0]):
            self.refused += 1
            return None
        return data if self._secure is None else self._through(self._secure.unprotect_rtcp, data)

    def took_rtp(self, source: Source) -> None:
        """Good media came from there. Reports go one port above, as long as none came from elsewhere."""
        assert self._agreed is not None
        remote = self._agreed.remote
        if self._latch.take(source) and source != (remote.ip, remote.port) and self._rtcp_latch.source is None:
            self._rtcp_latch.announce(Address(source[0], source[1] + 1))

    def took_rtcp(self, source: Source) -> None:
        if not self.mux:
            self._rtcp_latch.take(source)

    def close(self) -> None:
        self._wire.close()

    def _through(self, transform: Callable[[bytes], bytes], data: bytes) -> bytes | None:
        try:
            return transform(data)
        except (pylibsrtp.Error, ValueError):  # forged, sent twice, of another key; too long for libsrtp
            self.refused += 1
            return None
