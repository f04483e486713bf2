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

    @property
    def oversize(self) -> int:
        """Datagrams that came, and were longer than any of a phone."""

    def send_rtp(self, data: bytes, to: Source) -> None: ...

    def send_rtcp(self, data: bytes, to: Source) -> None: ...

    def close(self) -> None: ...


class MediaPath:
    """Packets are plain on this side. First it is asked whether a source is admitted, then its packet is opened, then
    :meth:`took_rtp` says that it was good."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._agreed: Agreed | None = None
        self._secure: SecureMedia | None = None
        self._latch, self._rtcp_latch = Latch(), Latch()
        self.refused = 0
        """Packets that libsrtp did not take."""

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

    @property
    def oversize(self) -> int:
        return self._wire.oversize

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

    def admits_rtp(self, source: Source) -> bool:
        """Whether what comes from there is to be looked at."""
        return self._latch.admits(source)

    def admits_rtcp(self, source: Source) -> bool:
        """From the media's own address, whatever the port."""
        media = self._latch.source
        latch = self._latch if self.mux else self._rtcp_latch
        return latch.admits(source) and (media is None or source[0] == media[0])

    def open_rtp(self, data: bytes) -> bytes | None:
        return data if self._secure is None else self._through(self._secure.unprotect, data)

    def open_rtcp(self, data: bytes) -> bytes | None:
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
