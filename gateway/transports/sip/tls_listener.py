"""Accepts TLS connections one by one, so that each has its place among all before its handshake begins: one that never
ends costs a file and a lot of memory as well."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING

from gateway.transports.sip.connection import Connection

if TYPE_CHECKING:
    from gateway.transports.sip.sockets import Sockets

HANDSHAKE_S = 5.0
BACKLOG = 128
ACCEPTS = 16
"""At once: then the calls have their turn."""
FULL_S = 1.0
"""Before the next try where the system gives no more files."""


class TlsListener:
    """Raises :class:`OSError`: it cannot listen there."""

    def __init__(self, sockets: Sockets, host: str, port: int, tls: ssl.SSLContext) -> None:
        self._sockets = sockets
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._listen()

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _listen(self) -> None:
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._sockets.above.count("sip_socket_errors")
                self._loop.remove_reader(self._socket)
                self._again = self._loop.call_later(FULL_S, self._listen)
                return
            accepted.setblocking(False)
            connection = Connection(self._sockets, "tls")
            if connection.come_from(address[0], address[1]):
                self._sockets.start(self._shake_hands(accepted, connection))
            else:
                accepted.close()

    async def _shake_hands(self, accepted: socket.socket, connection: Connection) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_S
            )
        except (OSError, asyncio.CancelledError) as error:
            self._sockets.gone(connection)
            accepted.close()
            if not isinstance(error, OSError):
                raise
