"""How a fake carrier reaches the gateway: by ASGI in virtual time, or over a real WebSocket. Both look alike to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx
from starlette.applications import Starlette
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from gateway.transports.carriers.rest import RestClient

Message = str | bytes
HOST = "voice.example.com"


class Closed(Exception):  # noqa: N818 (it is no error)
    """The gateway closed the WebSocket."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code, self.reason = code, reason


class Link(Protocol):
    """Raises :class:`Closed`."""

    async def send(self, message: Message) -> None: ...

    async def recv(self) -> Message: ...

    async def close(self) -> None:
        """With a close frame."""


class AsgiLink:
    """A WebSocket as an ASGI server shows it."""

    def __init__(
        self, app: Starlette, path: str, headers: Mapping[str, str] | None = None, *, scheme: str = "wss"
    ) -> None:
        self.subprotocol: str | None = None
        self.denied: int | None = None
        self.denial = b""
        self.reading = asyncio.Event()
        self.reading.set()
        self._in: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._in.put_nowait({"type": "websocket.connect"})
        self._out: asyncio.Queue[Message | Closed] = asyncio.Queue()
        self._answered = asyncio.Event()
        sent = {"host": HOST, **(headers or {})}
        path, _, query = path.partition("?")
        scope = {
            "type": "websocket",
            "scheme": scheme,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
            "subprotocols": [p.strip() for p in sent.get("sec-websocket-protocol", "").split(",") if p],
            "extensions": {"websocket.http.response": {}},
        }
        self.task = asyncio.create_task(app(scope, self._in.get, self._take))

    async def answered(self) -> bool:
        """Whether the upgrade was accepted."""
        await self._answered.wait()
        if self.denied is not None:
            await self.task
        return self.denied is None

    async def _take(self, message: Any) -> None:
        await self.reading.wait()
        match message["type"]:
            case "websocket.accept":
                self.subprotocol = message.get("subprotocol")
            case "websocket.send":
                text = message.get("text")
                self._out.put_nowait(text if text is not None else message["bytes"])
            case "websocket.close":
                self._out.put_nowait(Closed(message.get("code", 1000), message.get("reason") or ""))
            case "websocket.http.response.start":
                self.denied = message["status"]
            case _:
                self.denial += message["body"]
        self._answered.set()

    async def send(self, message: Message) -> None:
        kind = "text" if isinstance(message, str) else "bytes"
        self._in.put_nowait({"type": "websocket.receive", kind: message})

    async def recv(self) -> Message:
        message = await self._out.get()
        if isinstance(message, Closed):
            raise message
        return message

    async def close(self) -> None:
        self._in.put_nowait({"type": "websocket.disconnect", "code": 1000, "reason": ""})

    async def vanish(self) -> None:
        """Without a close frame."""
        self._in.put_nowait({"type": "websocket.disconnect", "code": 1006})


class SocketLink:
    """A real WebSocket."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def send(self, message: Message) -> None:
        try:
            await self._socket.send(message)
        except ConnectionClosed as closed:
            raise _closed(closed) from None

    async def recv(self) -> Message:
        try:
            return await self._socket.recv()
        except ConnectionClosed as closed:
            raise _closed(closed) from None

    async def close(self) -> None:
        await self._socket.close()


def _closed(closed: ConnectionClosed) -> Closed:
    said = closed.rcvd or closed.sent
    return Closed(said.code, said.reason) if said is not None else Closed(1006, "")


async def asked(
    app: Starlette, method: str, path: str, *, form: Mapping[str, str] | None = None, **sent: Any
) -> httpx.Response:
    """A webhook."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url=f"https://{HOST}") as client:
        return await client.request(method, urlsplit(path)._replace(scheme="", netloc="").geturl(), data=form, **sent)


class FakeRest:
    """A vendor's REST API: writes down what it is asked, and answers as it is told."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self.statuses: list[int] = []
        """Of the next answers; 200 after them."""
        self.then: Callable[[httpx.Request], Awaitable[None]] | None = None

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        status = self.statuses.pop(0) if self.statuses else 200
        if self.then is not None and status == 200:
            await self.then(request)
        return httpx.Response(status, json={})

    def serve(self, app: Starlette) -> httpx.AsyncClient:
        """Take what this gateway sends; the client that comes back is to be closed."""
        client = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        app.state.carriers._rest = RestClient(client)
        return client
