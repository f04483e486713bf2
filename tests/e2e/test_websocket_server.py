"""What only a real server and real sockets show: limits, cut cables, a loop that is shared."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import json
import os
import socket
import struct
import sys
import threading
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from engines.llm.scripted import ScriptedLlm
from engines.tts.scripted import ScriptedTts
from gateway import server
from gateway.settings import Settings
from gateway.transports import outbox
from tests.e2e.wire import Wire, dialled, tone
from tests.gateway.call_rig import Engines
from tests.serving import Served, eventually, served

pytestmark = pytest.mark.e2e

LONG = "One two three four five six seven eight. Nine ten eleven twelve thirteen fourteen fifteen sixteen."


def long_replies() -> Engines:
    return Engines(llm=ScriptedLlm(lambda messages: LONG), tts=ScriptedTts(100))


async def test_strangers_are_turned_away_before_the_upgrade() -> None:
    settings = Settings(preset="null", key=SecretStr("sesame"), max_calls=1)
    key = {"Authorization": "Bearer sesame"}
    async with served(settings=settings) as here:
        for query, headers, origin, status, code in [
            ("", {}, None, 401, "missing_api_key"),
            ("", {"Authorization": "Bearer wrong"}, None, 401, "invalid_api_key"),
            ("", key, "https://evil.example", 403, "origin_not_allowed"),
            ("?agent=nobody", key, None, 404, "unknown_agent"),
        ]:
            with pytest.raises(InvalidStatus) as refused:
                await connect(here.ws + query, additional_headers=headers, origin=origin)  # type: ignore[arg-type]
            assert refused.value.response.status_code == status
            assert f'"code":"{code}"'.encode() in (refused.value.response.body or b"").replace(b" ", b"")
        said = "ASGI callable returned without completing handshake."
        assert here.faults == [said] * 4, "uvicorn logs this of every denial"
        here.faults.clear()
        offered: Any = ["realtime", "openai-insecure-api-key.sesame"]
        async with dialled(here.ws, subprotocols=offered) as wire:
            assert wire.connection.subprotocol == "realtime"
            await wire.expect("session.created")
            async with dialled(here.ws, additional_headers=key) as surplus:
                assert await surplus.closed() == (1013, "busy")


async def test_a_message_above_the_limit_ends_its_call_and_no_other() -> None:
    async with served(long_replies().set) as here, dialled(here.ws) as other:
        async with dialled(here.ws) as wire:
            await wire.expect("session.created")
            with contextlib.suppress(ConnectionClosed):  # it may come before the last byte was sent
                await wire.connection.send("x" * (24 * 1024 * 1024 + 1))
            assert (await wire.closed())[0] == 1009
        await other.send("response.create")
        await other.expect("response.done")
        assert [record.cause for record in here.gateway.recent] == ["connection_lost"]


async def test_the_longest_append_leaves_a_neighbour_its_call() -> None:
    async with served(long_replies().set) as here, dialled(here.ws) as other, dialled(here.ws) as wire:
        await wire.send("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})
        await wire.expect("session.updated")
        await other.send("response.create")
        await other.expect("response.output_audio.delta")
        for _ in range(2):
            await wire.send("input_audio_buffer.append", audio=base64.b64encode(bytes(15 * 1024 * 1024)).decode())
        await wire.send("input_audio_buffer.append", audio=base64.b64encode(bytes(16_000_000)).decode(), event_id="big")
        await wire.send("input_audio_buffer.commit")
        await wire.expect("input_audio_buffer.committed")
        assert wire.errors == [("audio_too_large", "big")]
        await other.expect("response.done")
        await other.rest()
        heard = b"".join(base64.b64decode(event["delta"]) for event in other.of("response.output_audio.delta"))
        assert len(heard) == 16 * 100 * 48


# --- cut cables -----------------------------------------------------------------------------------------------


async def at_rest(wire: Wire) -> None:
    await wire.expect("session.created")


async def in_speech(wire: Wire) -> None:
    await wire.speak(tone(300), times=20)
    await wire.expect("input_audio_buffer.speech_started")


async def in_reply(wire: Wire) -> None:
    await wire.send("response.create")
    await wire.expect("response.output_audio.delta")


async def in_a_long_append(wire: Wire) -> None:
    await wire.send("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})
    await wire.send("input_audio_buffer.append", audio=base64.b64encode(bytes(8_000_000)).decode())


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0


@pytest.mark.parametrize("reach", [at_rest, in_speech, in_reply, in_a_long_append])
async def test_a_cable_that_is_cut_leaves_nothing(reach: Any) -> None:
    engines = long_replies()
    async with served(engines.set) as here:
        await cut(here, reach, 1)
        tasks, threads, files = len(asyncio.all_tasks()), threading.active_count(), open_files()
        await cut(here, reach, 8)
        assert len(asyncio.all_tasks()) == tasks
        assert open_files() == files
        if reach is not in_a_long_append:  # large frames are parsed in the loop's own pool, which may grow
            assert threading.active_count() == threads
        assert {record.cause for record in here.gateway.recent} == {"connection_lost"}
        assert engines.vad.open_streams == engines.stt.open_streams == 0
        assert engines.llm.running == engines.tts.open_segments == 0
        gc.collect()
        assert not [thing for thing in gc.get_objects() if type(thing).__name__ in ("Call", "WebSocketLeg")]


async def cut(here: Served, reach: Any, count: int) -> None:
    async def one() -> None:
        async with dialled(here.ws) as wire:
            await reach(wire)
            wire.abort()

    await asyncio.gather(*(one() for _ in range(count)))
    await here.empty()


async def test_a_peer_that_hangs_up_in_a_reply_is_recorded_as_one_that_did() -> None:
    async with served(long_replies().set) as here:
        for _ in range(10):
            async with dialled(here.ws) as wire:
                await in_reply(wire)
        await here.empty()
        assert {record.cause for record in here.gateway.recent} == {"caller_hung_up"}


async def test_peers_that_stop_reading_are_gone_with_their_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep their end open: what could not be written must not keep ours open, too."""
    monkeypatch.setattr(outbox, "SEND_S", 0.5)
    monkeypatch.setattr(server, "CUT_S", 0.5)
    async with served(long_replies().set, send_buffer_bytes=16_384) as here, dialled(here.ws) as other:
        await other.expect("session.created")
        files, tasks = open_files(), len(asyncio.all_tasks())
        dead = [socket.socket() for _ in range(4)]
        try:
            port = int(here.url.rpartition(":")[2])
            await asyncio.gather(*(asyncio.to_thread(ask_and_never_read, peer, port) for peer in dead))
            await eventually(lambda: len(list(here.gateway.recent)) == 4)
            await eventually(lambda: open_files() == files + len(dead))
            assert {record.cause for record in here.gateway.recent} == {"peer_not_reading"}
            assert len(asyncio.all_tasks()) == tasks
            await other.send("response.create")
            await other.expect("response.done")
        finally:
            for peer in dead:
                peer.close()


def ask_and_never_read(peer: socket.socket, port: int) -> None:
    """Blocks. Asks for a large item until nothing more is taken, or the other end is gone."""
    key = base64.b64encode(bytes(16)).decode()
    peer.settimeout(20)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    peer.connect(("127.0.0.1", port))
    head = "GET /v1/realtime HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    peer.sendall(f"{head}Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
    assert peer.recv(1_024).startswith(b"HTTP/1.1 101")
    item = {"id": "big", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "x" * 60_000}]}
    frames = masked({"type": "conversation.item.create", "item": item})
    frames += masked({"type": "conversation.item.retrieve", "item_id": "big"}) * 400
    with contextlib.suppress(OSError):
        peer.sendall(frames)


def masked(event: dict[str, Any]) -> bytes:
    """A client's frame (RFC 6455, section 5.2), its mask all zeros."""
    payload = json.dumps(event).encode()
    length = struct.pack("!BH", 0x80 | 126, len(payload)) if len(payload) < 1 << 16 else b""
    assert length
    return b"\x81" + length + bytes(4) + payload


async def test_a_call_can_be_read_while_it_lives_and_after() -> None:
    async with served() as here, httpx.AsyncClient(base_url=here.url) as client:
        async with dialled(here.ws) as wire:
            call_id = (await wire.expect("session.created"))["session"]["id"]
            await wire.speak(tone(600))
            await wire.speak(tone(700, 0))
            await wire.expect("response.done")
            view = (await client.get(f"/v1/calls/{call_id}")).json()
            assert view["state"] == "answered"
            assert [entry["role"] for entry in view["transcript"]] == ["user", "assistant"]
            assert view["turns"][0]["first_sent_ms"] > 0
        await here.empty()
        view = (await client.get(f"/v1/calls/{call_id}")).json()
        assert (view["state"], view["cause"]) == ("ended", "caller_hung_up")
