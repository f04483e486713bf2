"""One TCP or TLS connection of SIP: bounded in what it reads at once, in time, and in what waits to leave."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.transports.sip.framing import Framer
from gateway.transports.sip.message import Malformed
from gateway.transports.sip.transaction import Peer, TransportName

if TYPE_CHECKING:
    from gateway.transports.sip.sockets import Sockets

PARTIAL_S = 10.0
"""For the rest of a message that has begun, and for the first one of a connection."""
IDLE_S = 180.0
"""A stranger's connection without a word, not even a ping. One that a call may need stays."""
MAX_UNSENT_BYTES = 256 * 1024
READ_BYTES = 8 * 1024
"""At once: then the calls have their turn. The loop's own reads hold enough messages to hold them up."""

Opened = tuple[TransportName, str, int]
"""Where we connected to."""


class Connection(asyncio.BufferedProtocol):
    """``opened_as``: where we connected to; None: the peer connected to us."""

    def __init__(self, sockets: Sockets, name: TransportName, opened_as: Opened | None = None) -> None:
        self.flow = sockets.next_flow()
        self.opened_as = opened_as
        self.peer: Peer
        self._sockets = sockets
        self._name = name
        self._room = bytearray(READ_BYTES)
        self._framer = Framer()
        self._pings = 0
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport
        self._made = False
        self._admitted = False
        self._expects_rest = False

    def come_from(self, host: str, port: int) -> bool:
        """Whether there is room for it."""
        self.peer = Peer(self._name, host, port, flow=self.flow)
        self._admitted = self._sockets.admit(self)
        return self._admitted

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport, self._made = transport, True
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        if not self._admitted and not self.come_from(host, port):
            transport.abort()
            return
        transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        self._expect(PARTIAL_S if self.opened_as is None else IDLE_S)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._room)

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._room[:nbytes])
        if self._transport.is_closing():
            return
        self._received(data)
        if nbytes == READ_BYTES:
            self._pause()

    def _pause(self) -> None:
        """There is more: uvloop would go on reading it at once."""
        if not self._transport.is_closing():
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _received(self, data: bytes) -> None:
        above = self._sockets.above
        try:
            messages = self._framer.feed(data)
        except Malformed:
            above.count("sip_malformed")
            self.abort()
            return
        if self._framer.pings > self._pings:
            self._pings = self._framer.pings
            if not self._may_go_on():
                return
            self.send(b"\r\n")
        for message in messages:
            if self._transport.is_closing() or not self._may_go_on(len(message)):
                return
            above.receive(message, self.peer)
        self._expect(PARTIAL_S if self._framer.partial else IDLE_S, again=not self._framer.partial or bool(messages))

    def _may_go_on(self, size: int = 0) -> bool:
        """Who sends more than it may is cut off: what it would go on to send costs nothing then."""
        above = self._sockets.above
        if above.takes(self.peer.host, size):
            return True
        above.count("sip_over_rate")
        self.abort()
        return False

    def send(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._sockets.above.count("sip_peer_not_reading")
            self.abort()
            return
        self._transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._sockets.gone(self)

    def close(self) -> None:
        if self._made:
            self._transport.close()

    def abort(self) -> None:
        if self._made:  # else whoever waits for its handshake has it still
            self._transport.abort()

    def _expect(self, within_s: float, *, again: bool = True) -> None:
        """Cut the connection if nothing comes ``within_s``; not ``again``: the time that runs already holds."""
        if self._timer is not None:
            if not again and self._expects_rest:
                return
            self._timer.cancel()
        self._expects_rest = within_s == PARTIAL_S
        self._timer = asyncio.get_running_loop().call_later(within_s, self._nothing_came)

    def _nothing_came(self) -> None:
        if not self._expects_rest and self._sockets.above.keeps(self.peer.host):
            self._expect(IDLE_S)
        else:
            self.abort()
