"""Ports for processes that must be told theirs."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"


def free_port(kind: socket.SocketKind = socket.SOCK_DGRAM) -> int:
    """Free just now."""
    with socket.socket(socket.AF_INET, kind) as found:
        found.bind((LOOPBACK, 0))
        port: int = found.getsockname()[1]
        return port


async def bound(port: int) -> None:
    """Wait until somebody listens there (UDP)."""
    async with asyncio.timeout(10):
        while not _is_bound(port):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def _is_bound(port: int) -> bool:
    return f":{port:04X} " in Path("/proc/net/udp").read_text()
