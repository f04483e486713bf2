"""A leg over a WebSocket."""

from __future__ import annotations

from starlette.websockets import WebSocket


async def realtime(websocket: WebSocket) -> None:
    """A placeholder until the call is there."""
    await websocket.close(1013)
