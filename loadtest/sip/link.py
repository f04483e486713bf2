"""How a call's signalling travels: a UDP socket or a TCP connection to the address dialled, messages whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from loadtest.sip.message import BadMessage, StreamFraming
from loadtest.tcp import reset


class Link(asyncio.DatagramProtocol, asyncio.Protocol):
    """``on_message`` gets every message, ``on_lost`` what broke (None: the other end closed a TCP connection)."""

    def __init__(self, on_message: Callable[[bytes], None], on_lost: Callable[[Exception | None], None]) -> None:
        self.local: tuple[str, int] = ("", 0)
        self._on_message = on_message
        self._on_lost = on_lost
        self._tcp = False
        self._transport: Any = None  # uvloop's are no subclasses of asyncio's
        self._framing = StreamFraming()
        self._closed = asyncio.Event()

    async def open(self, host: str, port: int, *, tcp: bool) -> None:
        """Raises :class:`OSError`."""
        loop = asyncio.get_running_loop()
        self._tcp = tcp
        if tcp:
            await loop.create_connection(lambda: self, host, port)
        else:
            await loop.create_datagram_endpoint(lambda: self, remote_addr=(host, port))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.local = transport.get_extra_info("sockname")[:2]

    def send(self, message: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._tcp:
            transport.write(message)
        else:
            transport.sendto(message)

    def abort(self) -> None:
        """Close without a word: a TCP connection is reset."""
        if self._transport is None:
            return
        if self._tcp:
            reset(self._transport)
        else:
            self._transport.abort()

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            await self._closed.wait()

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._on_message(data)

    def error_received(self, exc: Exception) -> None:
        self._on_lost(exc)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._framing.feed(data):
                self._on_message(message)
        except BadMessage as error:
            self._on_lost(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()
        self._on_lost(exc)
