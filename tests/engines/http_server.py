"""An HTTP server that does what a test says, to the byte: on loopback, in the test's own loop, over plain sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.listening import listening


@dataclass
class Seen:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """The connection a handler answers on."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.closing = False

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def reply(
        self,
        status: int,
        body: object = "",
        *,
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> None:
        content = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
        lines = [f"HTTP/1.1 {status} Whatever", f"Content-Type: {content_type}", f"Content-Length: {len(content)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + content)

    async def begin(self, content_type: str = "text/event-stream", status: int = 200) -> None:
        """The head of a response in chunks."""
        head = f"HTTP/1.1 {status} Whatever\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
        await self.raw(head.encode())

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    async def event(self, chunk: object) -> None:
        await self.chunk(b"data: " + (chunk if isinstance(chunk, str) else json.dumps(chunk)).encode() + b"\n\n")

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def reset(self) -> None:
        """RST, as from a process that was killed with data unread."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
        self.closing = True

    async def cut(self) -> None:
        """Close in the middle."""
        self._writer.close()
        self.closing = True

    async def until_closed(self) -> None:
        """By the client."""
        while not self._writer.transport.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


Handler = Callable[[Seen, Wire], Awaitable[None]]


@dataclass
class Server:
    url: str = ""
    models: list[str] = field(default_factory=lambda: ["model-a"])
    models_status: int = 200
    handler: Handler | None = None
    seen: list[Seen] = field(default_factory=list)
    """Without the question for models."""
    connections: int = 0
    open_now: int = 0

    async def closed(self) -> None:
        """Wait until no connection is open."""
        async with asyncio.timeout(5):
            while self.open_now:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_now += 1
        wire = Wire(writer)
        try:
            while not wire.closing and (seen := await _read(reader)) is not None:
                if seen.path == "/v1/models":
                    listed = {"object": "list", "data": [{"id": name} for name in self.models]}
                    await wire.reply(self.models_status, listed)
                    continue
                self.seen.append(seen)
                assert self.handler is not None
                gone = asyncio.ensure_future(_gone(reader))
                answer = asyncio.ensure_future(self.handler(seen, wire))
                await asyncio.wait({gone, answer}, return_when=asyncio.FIRST_COMPLETED)
                for task in (gone, answer):
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                        await task
                if gone.done() and not gone.cancelled() and gone.exception() is None and not answer.done():
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open_now -= 1
            writer.close()


async def _gone(reader: asyncio.StreamReader) -> None:
    # A client that waits for its answer sends nothing: the end is all that can be seen here.
    while not reader.at_eof() and reader.exception() is None:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def _read(reader: asyncio.StreamReader) -> Seen | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.rstrip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = b""
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    elif headers.get("transfer-encoding") == "chunked":
        while size := int((await reader.readline()).strip() or b"0", 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    return Seen(method, path, headers, body)


@contextlib.asynccontextmanager
async def serving(handler: Handler | None = None) -> AsyncIterator[Server]:
    server = Server(handler=handler)
    async with listening(server._serve) as port:
        server.url = f"http://127.0.0.1:{port}/v1"
        yield server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
