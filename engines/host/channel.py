"""One end of the socket between a gateway and a host, on an event loop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Hashable
from typing import Any, cast

import msgspec

from engines.host.outbox import Outbox
from engines.host.protocol import (
    FRAME_ROOM_BYTES,
    MAX_FRAME_BYTES,
    FrameReader,
    ProtocolError,
    frame,
    hello_frame,
    packed,
    read_hello,
    read_messages,
)

FRAME_BYTES = 256 * 1024
"""A frame is filled up to this: a reader looks at other things between two frames."""
KERNEL_AHEAD_BYTES = 256 * 1024
"""Written to the transport before the peer is waited for; the rest stays where it can still be dropped."""


class Channel(asyncio.Protocol):
    """Messages sent within one tick of the loop leave as one frame.

    ``on_messages`` gets what one frame held, ``on_lost`` is called once, with None for an orderly end. ``greeted``
    is set when the other side's hello was right, ``closed`` when the connection is gone.
    """

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[list[Any]],
        *,
        on_messages: Callable[[list[Any]], None],
        on_lost: Callable[[Exception | None], None],
        limit_bytes: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._decoder = decoder
        self._on_messages = on_messages
        self._on_lost = on_lost
        self._reader = FrameReader()
        self._outbox = Outbox(limit_bytes)
        self._transport: asyncio.Transport | None = None
        self._error: Exception | None = None
        self._paused = False
        self._flushing: asyncio.Handle | None = None
        self.greeted = asyncio.Event()
        self.closed = asyncio.Event()

    async def connect(self, sock: socket.socket) -> None:
        """Take the connected socket over and greet."""
        await self._loop.create_unix_connection(lambda: self, sock=sock)

    @property
    def waiting_bytes(self) -> int:
        """Not taken by the kernel yet."""
        ahead = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._outbox.waiting_bytes + ahead

    def send(self, message: Any, owner: Hashable = None, *, must: bool = False) -> bool:
        """Queue a message. False when the peer is too far behind: then it was not taken. Raises
        :class:`engines.host.protocol.TooLargeError`."""
        if self._transport is None:
            return True  # lost already, as its owner knows
        taken = self._outbox.add(packed(message), owner, must=must)
        if self._flushing is None and not self._paused:
            self._flushing = self._loop.call_soon(self._flush)
        return taken

    def drop(self, dead: Callable[[Hashable], bool]) -> None:
        """Do not send what waits of these owners."""
        self._outbox.drop(dead)

    def close(self) -> None:
        """Send what waits, then close."""
        if self._transport is not None:
            while len(self._outbox):
                self._write()
            self._transport.close()

    def abort(self, error: Exception | None = None) -> None:
        """Close at once; ``on_lost`` gets the error."""
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from it
        transport.set_write_buffer_limits(high=KERNEL_AHEAD_BYTES)
        transport.write(hello_frame(os.getpid()))

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._reader.feed(data):
                if not self.greeted.is_set():
                    read_hello(body)
                    self.greeted.set()
                elif self._error is None:
                    self._on_messages(read_messages(body, self._decoder))
        except ProtocolError as error:
            self.abort(error)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.closed.set()
        if self._flushing is not None:
            self._flushing.cancel()
        if self._error is None and error is None:
            try:
                self._reader.finish()
            except ProtocolError as truncated:
                error = truncated
        self._on_lost(self._error or error)

    # --- inside -----------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._flushing = None
        while len(self._outbox) and not self._paused:
            self._write()

    def _write(self) -> None:
        if self._transport is not None:
            most = min(FRAME_BYTES, MAX_FRAME_BYTES - FRAME_ROOM_BYTES)
            self._transport.write(frame(self._outbox.take(most)))
