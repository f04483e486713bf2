"""Ports for processes that must be told theirs."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"


EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(kind: socket.SocketKind = socket.SOCK_DGRAM, *, above: int = 0) -> int:
    """Free just now, and as many ``above`` it. It is none that the system gives to those who ask for any: they would
    take it before the process is up that is told of it."""
    end = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32_768
    while True:
        port = 10_000 + 2 * secrets.randbelow((end - 10_000 - above) // 2)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for number in range(port, port + above + 1):
                stack.enter_context(socket.socket(socket.AF_INET, kind)).bind((LOOPBACK, number))
            return port


async def bound(port: int) -> None:
    """Wait until somebody listens there (UDP)."""
    async with asyncio.timeout(10):
        while not _is_bound(port):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def _is_bound(port: int) -> bool:
    return f":{port:04X} " in Path("/proc/net/udp").read_text()
