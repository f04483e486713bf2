"""A scripted AudioSocket server on loopback: what a dialplan's ``AudioSocket()`` connects to."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from tests.listening import listening
from tests.loadtest.phone_agent import ScriptedAgent


@dataclass
class Script:
    """A reply goes out as one frame for each that came. ``after``: messages once the first reply was sent."""

    replies: Sequence[int | None] = (400,)
    greeting_ms: int | None = None
    kind: int = 0x10
    rate_hz: int = 8_000
    after: Sequence[bytes] = ()
    close_after: bool = False
    burst: bool = False
    """Send a reply at once, which Asterisk has no room for."""
    refuse: bool = False
    """Close once the UUID is there."""


@dataclass
class Seen:
    messages: list[tuple[int, bytes]] = field(default_factory=list)

    def of(self, kind: int) -> list[bytes]:
        return [payload for each, payload in self.messages if each == kind]


def message(kind: int, payload: bytes = b"") -> bytes:
    return struct.pack(">BH", kind, len(payload)) + payload


@asynccontextmanager
async def audiosocket_server(script: Script) -> AsyncIterator[tuple[str, Seen]]:
    """Yields the address (``audiosocket://127.0.0.1:port``) and what the caller sent."""
    seen = Seen()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await _serve(reader, writer, script, seen)

    async with listening(connected) as port:
        yield f"audiosocket://127.0.0.1:{port}", seen


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, script: Script, seen: Seen) -> None:
    agent = ScriptedAgent(script.replies, script.greeting_ms, script.rate_hz)
    silence = np.zeros(script.rate_hz // 50, dtype=np.int16)
    told = False
    while True:
        kind, length = struct.unpack(">BH", await reader.readexactly(3))
        payload = await reader.readexactly(length)
        seen.messages.append((kind, payload))
        if kind == 0x00 or script.refuse:
            return
        if kind < 0x10:
            continue
        agent.hear(np.frombuffer(payload, dtype="<i2"))
        spoke = bool(agent.frames)
        for _ in range(len(agent.frames) if script.burst and spoke else 1):
            writer.write(message(script.kind, (agent.frames.popleft() if agent.frames else silence).tobytes()))
        if spoke and not agent.frames and agent.utterances and not told:
            told = True
            for raw in script.after:
                writer.write(raw)
            if script.close_after:
                return
