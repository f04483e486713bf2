"""A gateway that can't be trusted: a proxy before the real one that spoils what callers hear, on the wire they speak.

Every kind of dishonesty is a :class:`Trick`, which sees each message on its way to the caller. Nothing else is changed,
so a run at the proxy and one at the gateway itself differ by that alone. Realtime and Twilio's dialect.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import socket
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from tests.listening import listening

Message = dict[str, Any]


def sound_of(message: Message) -> bytes | None:
    """The agent's sound in a message, if that is what it carries."""
    if message.get("type") == "response.output_audio.delta":
        return base64.b64decode(message["delta"])
    if message.get("event") == "media":
        return base64.b64decode(message["media"]["payload"])
    return None


def ms_of(message: Message, sound: bytes) -> float:
    return len(sound) / (8 if "media" in message else 48)


def stops_agent(message: Message) -> bool:
    """At this the caller throws away what it has not heard yet."""
    return message.get("type") == "input_audio_buffer.speech_started" or message.get("event") == "clear"


class Call:
    """One call through the proxy, in the order in which they came."""

    def __init__(self, number: int, caller: ServerConnection) -> None:
        self.number = number
        self.caller = caller
        self.due: asyncio.Queue[tuple[float, str | bytes]] = asyncio.Queue()
        self.heard_until_s = 0.0
        """When what the caller was sent will have been heard."""
        self.last_sounds: deque[Message] = deque(maxlen=20)

    @property
    def agent_speaks(self) -> bool:
        return self.heard_until_s > asyncio.get_running_loop().time()

    async def tell(self, message: Message) -> None:
        sound = sound_of(message)
        if sound:
            now_s = asyncio.get_running_loop().time()
            self.heard_until_s = max(self.heard_until_s, now_s) + ms_of(message, sound) / 1000
            self.last_sounds.append(message)
        if stops_agent(message):
            self.heard_until_s = 0.0
        await self.caller.send(json.dumps(message))


class Trick:
    """None: an honest proxy. ``later_s``: every message comes so much later than it could."""

    later_s: float = 0.0
    status: ClassVar[int | None] = None
    """To say to whoever calls, in place of taking the call."""

    async def begin(self, call: Call) -> bool:
        """The call came. False: it goes no further."""
        return True

    async def down(self, call: Call, message: Message) -> None:
        """A message for the caller."""
        await call.tell(message)

    def hears(self, call: Call) -> bool:
        """Whether the next message of the caller is read at all."""
        return True


class Late(Trick):
    def __init__(self, later_s: float) -> None:
        self.later_s = later_s


class Hiccups(Trick):
    """Stops for ``for_s`` in the middle of speech: once in ``every`` messages of sound."""

    def __init__(self, every: int, for_s: float) -> None:
        self._every, self._for_s = every, for_s
        self._sounds = self.times = 0

    async def down(self, call: Call, message: Message) -> None:
        if sound_of(message) and call.agent_speaks:
            self._sounds += 1
            if self._sounds % self._every == 0:
                self.times += 1
                await asyncio.sleep(self._for_s)
        await call.tell(message)


class Lossy(Trick):
    """Leaves out a share of the sound, by seed."""

    def __init__(self, share: float, seed: int) -> None:
        self._share, self._seed = share, seed
        self._dice: dict[int, random.Random] = {}
        self.seen = self.dropped = 0

    async def down(self, call: Call, message: Message) -> None:
        if sound_of(message):
            self.seen += 1
            dice = self._dice.setdefault(call.number, random.Random(f"{self._seed} {call.number}"))
            if dice.random() < self._share:
                self.dropped += 1
                return
        await call.tell(message)


class Swapped(Trick):
    """Two calls at a time hear each other's agent."""

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}
        self._stream: dict[int, str] = {}

    async def begin(self, call: Call) -> bool:
        self._calls[call.number] = call
        return True

    async def down(self, call: Call, message: Message) -> None:
        self._stream.setdefault(call.number, message.get("streamSid", ""))
        other = call
        if sound_of(message) is not None or message.get("type") == "response.output_audio.done":
            other = self._calls.get(call.number ^ 1, call)
            if "streamSid" in message:
                message = {**message, "streamSid": self._stream.get(other.number, "")}
        with contextlib.suppress(ConnectionClosed):
            await other.tell(message)


class GoesOn(Trick):
    """Interrupted, the agent goes on for ``for_s`` as if it had heard that later."""

    def __init__(self, for_s: float) -> None:
        self._for_s = for_s
        self.times = 0

    async def down(self, call: Call, message: Message) -> None:
        if stops_agent(message) and call.agent_speaks:
            self.times += 1
            await _say_again(call, self._for_s + 0.2)
            await asyncio.sleep(self._for_s)
        await call.tell(message)


class ComesBack(Trick):
    """Interrupted, the agent falls silent, and ``after_s`` later says ``for_s`` more of what was cut."""

    def __init__(self, after_s: float, for_s: float) -> None:
        self._after_s, self._for_s = after_s, for_s
        self.times = 0

    async def down(self, call: Call, message: Message) -> None:
        spoke = call.agent_speaks
        await call.tell(message)
        if stops_agent(message) and spoke:
            self.times += 1
            await asyncio.sleep(self._after_s)
            await _say_again(call, self._for_s)
            await asyncio.sleep(self._for_s)  # some gateways stop an agent twice


async def _say_again(call: Call, length_s: float) -> None:
    """Some of the sound that the caller was sent last, until it is so much."""
    sounds = [message for message in call.last_sounds if any(sound_of(message) or b"")]
    said_s = 0.0
    while sounds and said_s < length_s:
        for message in sounds:
            said_s += ms_of(message, sound_of(message) or b"") / 1000
            await call.caller.send(json.dumps(message))


class Mute(Trick):
    """Takes calls, and is never heard."""

    async def down(self, call: Call, message: Message) -> None:
        if sound_of(message) is None:
            await call.tell(message)


class Refusing(Trick):
    status: ClassVar[int | None] = 503


class Failing(Trick):
    status: ClassVar[int | None] = 500


class Dropping(Trick):
    """Takes calls, and is gone after ``after_s``."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s

    async def begin(self, call: Call) -> bool:
        asyncio.get_running_loop().call_later(self._after_s, call.caller.transport.abort)
        return True


class Garbage(Trick):
    """Says what nobody understands: before everything (``instead``: in place of everything)."""

    SAID: ClassVar[tuple[str | bytes, ...]] = (
        "{",
        b"\0\xff\xfe",
        "[]",
        "null",
        "[" * 5_000,
        '{"type":"response.output_audio.delta","delta":"???","item_id":"none","response_id":"none"}',
        '{"event":"media","streamSid":"MZ","media":{"payload":"???"}}',
        json.dumps({"type": 7, "event": {}, "delta": 3}),
        json.dumps({"type": "nobody.knows.this", "event": "nobody knows this", "streamSid": "MZ"}),
        "\0" * 100_000,
    )

    def __init__(self, *, instead: bool) -> None:
        self._instead = instead

    async def begin(self, call: Call) -> bool:
        if self._instead:
            await self._say(call)
            await call.caller.wait_closed()
        return not self._instead

    async def down(self, call: Call, message: Message) -> None:
        await call.tell(message)
        await self._say(call)

    async def _say(self, call: Call) -> None:
        for said in self.SAID:
            await call.caller.send(said)


class Deaf(Trick):
    """Reads nothing more of a call after ``after`` messages."""

    def __init__(self, after: int) -> None:
        self._after = after
        self._read: dict[int, int] = {}

    def hears(self, call: Call) -> bool:
        self._read[call.number] = self._read.get(call.number, 0) + 1
        return self._read[call.number] <= self._after


class TenTimes(Trick):
    """Sends ten times what it should, at once."""

    async def down(self, call: Call, message: Message) -> None:
        for _ in range(10 if sound_of(message) else 1):
            await call.tell(message)


class _Proxy:
    def __init__(self, gateway: str, trick: Trick) -> None:
        self._gateway = gateway
        self._trick = trick
        self._calls = 0

    def admit(self, caller: ServerConnection, request: Request) -> Response | None:
        status = self._trick.status
        return None if status is None else caller.respond(status, "because of the trick\n")

    async def handle(self, caller: ServerConnection) -> None:
        call = Call(self._calls, caller)
        self._calls += 1
        with contextlib.suppress(ConnectionClosed):
            if not await self._trick.begin(call):
                return
            path = caller.request.path if caller.request is not None else ""
            base = self._gateway.split("/", 3)
            async with connect("/".join(base[:3]) + path, compression=None, max_size=None, proxy=None) as gateway:
                await self._between(call, gateway)

    async def _between(self, call: Call, gateway: ClientConnection) -> None:
        pumps = [asyncio.create_task(pump) for pump in (self._up(call, gateway), self._take(call, gateway))]
        pumps.append(asyncio.create_task(self._down(call)))
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _up(self, call: Call, gateway: ClientConnection) -> None:
        while True:
            if not self._trick.hears(call):
                await call.caller.wait_closed()
                return
            await gateway.send(await call.caller.recv())

    async def _take(self, call: Call, gateway: ClientConnection) -> None:
        now_s = asyncio.get_running_loop().time
        async for raw in gateway:
            call.due.put_nowait((now_s() + self._trick.later_s, raw))
        await call.caller.close(gateway.close_code or 1000, gateway.close_reason or "")

    async def _down(self, call: Call) -> None:
        now_s = asyncio.get_running_loop().time
        while True:
            due_s, raw = await call.due.get()
            if (wait_s := due_s - now_s()) > 0:
                await asyncio.sleep(wait_s)
            await self._trick.down(call, json.loads(raw))


@contextlib.asynccontextmanager
async def dishonest(gateway: str, trick: Trick) -> AsyncIterator[str]:
    """``gateway`` behind a proxy; yields the address to call in its place, with the same path and scheme."""
    scheme, separator, plain = gateway.rpartition("ws://")
    proxy = _Proxy("ws://" + plain, trick)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)  # a caller notices one that does not read
        async with serve(
            proxy.handle, sock=listener, process_request=proxy.admit, compression=None, max_size=None, max_queue=4
        ):
            host, port = listener.getsockname()
            yield f"{scheme}{separator}{host}:{port}/{plain.partition('/')[2]}"


@contextlib.asynccontextmanager
async def wordless() -> AsyncIterator[str]:
    """A server that takes connections and never says a word."""

    async def answer(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(65_536):
                pass

    async with listening(answer) as port:
        yield f"ws://127.0.0.1:{port}/v1/realtime"


def nobody() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"ws://127.0.0.1:{taken.getsockname()[1]}/v1/realtime"
