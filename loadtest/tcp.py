"""How a TCP connection of a caller who has vanished ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct


def reset(transport: asyncio.Transport) -> None:
    """Drop it with RST: a FIN would be a goodbye."""
    connection = transport.get_extra_info("socket")
    if connection is not None and not transport.is_closing():
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
