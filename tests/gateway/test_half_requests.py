"""Connections that do not come to their request."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gateway import server
from tests.serving import served

WHOLE = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET /livez HT", WHOLE[:-2] + b"x: y\r\n"])
async def test_half_a_request_does_not_keep_a_connection(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.2)
    async with served() as here:
        host, _, port = here.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        async with asyncio.timeout(4):  # before the server's own patience with kept connections is over
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()


async def test_a_kept_connection_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.2)
    async with served() as here:
        host, _, port = here.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in range(3):
            writer.write(WHOLE)
            assert await reader.readuntil(b'{"status":"live"}')
            await asyncio.sleep(0.3)
        writer.close()
