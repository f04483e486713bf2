"""A WebSocket to the server, whatever it carries: opened, and told apart how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from loadtest.call import CallOver, CallPlan, EndCause
from loadtest.refusal import refusal
from loadtest.wire import SEND_S

_CONNECT_S = 10.0


class WebSocketLink:
    """Every method raises :class:`CallOver` when the server is gone."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    @classmethod
    async def open(
        cls, url: str, plan: CallPlan, headers: Mapping[str, str] | None, *, max_message_bytes: int
    ) -> WebSocketLink:
        """Raises :class:`CallOver` with how it was refused."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                return cls(
                    await connect(
                        url, additional_headers=headers, compression=None, max_size=max_message_bytes, close_timeout=2
                    )
                )
        except InvalidStatus as error:
            raise refusal(error.response.status_code, bytes(error.response.body or b""), url, plan) from error
        except (OSError, TimeoutError, InvalidHandshake, InvalidURI, ConnectionClosed) as error:
            raise CallOver(EndCause.REFUSED, f"no answer at {url}: {str(error) or type(error).__name__}") from error

    async def receive(self) -> str | bytes:
        try:
            return await self._connection.recv()
        except ConnectionClosed as closed:
            raise _closing(closed) from closed

    async def send(self, message: str) -> None:
        try:
            async with asyncio.timeout(SEND_S):
                await self._connection.send(message)
        except ConnectionClosed as closed:
            raise _closing(closed) from closed
        except TimeoutError as error:
            raise CallOver(EndCause.STALLED, "the server stopped reading") from error

    async def close(self) -> None:
        await self._connection.close()


def _closing(closed: ConnectionClosed) -> CallOver:
    """What it means that the server closed the connection."""
    code = closed.rcvd.code if closed.rcvd else None
    reason = f": {closed.rcvd.reason}" if closed.rcvd and closed.rcvd.reason else ""
    match code:
        case 1013:
            return CallOver(EndCause.BUSY, f"the gateway is busy{reason}")
        case 1000 | 1001:
            return CallOver(EndCause.AGENT_HANGUP)
        case None:
            return CallOver(EndCause.CONNECTION_LOST, "the connection was lost")
        case _:
            return CallOver(EndCause.CONNECTION_LOST, f"closed by the server with {code}{reason}")
