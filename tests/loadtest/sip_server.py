"""A scripted SIP server on loopback: enough of a user agent for a caller to be tested against. Its text handling is its
own, so that it shares no mistakes with the caller's."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streaming.audio.g711 import decode_alaw, decode_mulaw, encode_alaw, encode_mulaw
from tests.loadtest.phone_agent import ScriptedAgent

PASSWORD = "open sesame"


@dataclass
class Script:
    """What the server does. ``then``: what it asks of the caller once it has answered the first utterance."""

    replies: Sequence[int | None] = (400,)
    greeting_ms: int | None = None
    tcp: bool = False
    final: str | None = None
    """A final response instead of an answer."""
    ring: bool = True
    mute: bool = False
    """Never responds."""
    ring_forever: bool = False
    challenge: str | None = None
    """The algorithm of a digest challenge."""
    lose: int = 0
    """So many INVITEs are not seen."""
    lose_acks: int = 0
    reliable: bool = False
    """The answer comes in a reliable 183, the 200 has none."""
    payload: str = "0 101"
    sdp: str | None = None
    then: Sequence[str] = ()
    lose_packets: frozenset[int] = frozenset()
    """Numbers of the server's RTP packets that never leave it."""
    deaf_to_bye: bool = False


@dataclass
class Seen:
    """What the caller sent."""

    messages: list[str] = field(default_factory=list)
    rtp: list[tuple[int, bool, int, int, bytes]] = field(default_factory=list)
    """Payload type, marker, sequence number, timestamp, payload."""

    def methods(self) -> list[str]:
        return [text.split(" ", 1)[0] if not text.startswith("SIP/") else text.split(" ")[1] for text in self.messages]

    def request(self, method: str) -> str:
        return next(text for text in self.messages if text.startswith(method + " "))


def header(text: str, name: str) -> str:
    match = re.search(rf"(?im)^{name}: *(.*?)\r?$", text)
    return match.group(1) if match else ""


class SipServer(asyncio.DatagramProtocol):
    """One caller at a time."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen = Seen()
        self.agent = ScriptedAgent(script.replies, script.greeting_ms)
        self.port = 0
        self.reply: Callable[[bytes], None] = lambda _: None
        self.rtp = _Rtp(self)
        self.tasks: list[asyncio.Task[None]] = []
        self._transport: Any = None
        self._invite = ""
        self._ok = b""
        self._acknowledged = asyncio.Event()
        self._resent: set[int] = set()
        self._cseq = 100
        self._nonce = "abc123"

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.reply = lambda message: self._transport.sendto(message, addr)
        self.receive(data.decode())

    def receive(self, text: str) -> None:
        self.seen.messages.append(text)
        method = text.split(" ", 1)[0]
        if self.script.mute:
            return
        match method:
            case "INVITE":
                self._on_invite(text)
            case "ACK":
                if self.script.lose_acks:
                    self.script.lose_acks -= 1
                    self.reply(self._ok)
                elif not self._acknowledged.is_set() and self._ok:
                    self._acknowledged.set()
                    self.tasks.append(asyncio.create_task(self.rtp.talk()))
            case "PRACK":
                self.respond(text, "200 OK")
                self.respond(self._invite, "200 OK")
            case "BYE":
                self.rtp.stop()
                if not self.script.deaf_to_bye:
                    self.respond(text, "200 OK")
            case "CANCEL":
                self.respond(text, "200 OK")
                self.respond(self._invite, "487 Request Terminated")
            case "NOTIFY":
                self.respond(text, "200 OK")
            case "SIP/2.0" if header(text, "cseq").endswith("INVITE"):
                self._cseq -= 1
                self.ask("ACK")

    def _on_invite(self, text: str) -> None:
        script = self.script
        if script.lose:
            script.lose -= 1
            return
        self._invite = text
        if script.challenge and not self._authorized(text):
            value = f'Digest realm="pbx", nonce="{self._nonce}", qop="auth", algorithm={script.challenge}'
            self.respond(text, "401 Unauthorized", [f"WWW-Authenticate: {value}"])
            return
        self.respond(text, "100 Trying")
        if script.ring:
            self.respond(text, "180 Ringing")
        if script.ring_forever:
            return
        if script.final is not None:
            self.respond(text, script.final)
            return
        self.rtp.aim(text)
        body = self.describe()
        if script.reliable:
            self.respond(text, "183 Session Progress", ["Require: 100rel", "RSeq: 7"], body)
            return
        self.respond(text, "200 OK", body=body)

    def describe(self, direction: str = "sendrecv") -> str:
        if self.script.sdp is not None:
            return self.script.sdp
        return (
            "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
            f"m=audio {self.rtp.port} RTP/AVP {self.script.payload}\r\n"
            f"a=rtpmap:101 telephone-event/8000\r\na={direction}\r\n"
        )

    def _authorized(self, text: str) -> bool:
        given = dict(re.findall(r'(\w+)="?([^",]+)"?', header(text, "Authorization")))
        if not given:
            return False
        digest = hashlib.sha256 if self.script.challenge == "SHA-256" else hashlib.md5

        def hashed(*parts: str) -> str:
            return digest(":".join(parts).encode()).hexdigest()

        secret, request = hashed(given["username"], "pbx", PASSWORD), hashed("INVITE", given["uri"])
        expected = hashed(secret, self._nonce, given["nc"], given["cnonce"], "auth", request)
        return bool(given["response"] == expected)

    def respond(self, request: str, status: str, extra: Sequence[str] = (), body: str = "") -> None:
        lines = [f"SIP/2.0 {status}", *re.findall(r"(?im)^via:.*?(?=\r\n)", request)]
        lines.append(f"From: {header(request, 'from')}")
        to = header(request, "to")
        lines.append(f"To: {to}" if "tag=" in to or status.startswith("100") else f"To: {to};tag=server")
        lines += [f"Call-ID: {header(request, 'call-id')}", f"CSeq: {header(request, 'cseq')}"]
        lines += [f"Contact: <sip:desk@127.0.0.1:{self.port}>", *extra]
        data = self._with_body(lines, body)
        if status.startswith("200") and header(request, "cseq").endswith("INVITE"):
            self._ok = data
        self.reply(data)

    def ask(self, method: str, extra: Sequence[str] = (), body: str = "", again: bool = False) -> None:
        """A request of the server's in the dialog; ``again`` sends it twice, as after a lost response."""
        self._cseq += 1
        contact = re.search(r"<([^>]*)>", header(self._invite, "contact"))
        assert contact
        lines = [
            f"{method} {contact[1]} SIP/2.0",
            f"Via: SIP/2.0/UDP 127.0.0.1:{self.port};branch=z9hG4bKs{self._cseq}",
            "Max-Forwards: 70",
            f"From: {header(self._invite, 'to')};tag=server",
            f"To: {header(self._invite, 'from')}",
            f"Call-ID: {header(self._invite, 'call-id')}",
            f"CSeq: {self._cseq} {method}",
            f"Contact: <sip:desk@127.0.0.1:{self.port}>",
            *extra,
        ]
        for _ in range(2 if again else 1):
            self.reply(self._with_body(lines, body))

    def _with_body(self, lines: Sequence[str], body: str) -> bytes:
        kind = ["Content-Type: application/sdp"] if body else []
        return "\r\n".join([*lines, *kind, f"Content-Length: {len(body)}", "", body]).encode()

    async def follow(self) -> None:
        """What the script wants after the first reply."""
        for step in self.script.then:
            verb, _, argument = step.partition(" ")
            match verb:
                case "wait":
                    await asyncio.sleep(int(argument) / 1000)
                case "say":
                    self.agent.say(int(argument))
                case "hold":
                    self.ask("INVITE", body=self.describe(argument))
                case "offer":
                    self.ask("INVITE", body=f"v=0\r\nc=IN IP4 127.0.0.1\r\nm=audio 9 RTP/AVP {argument}\r\n")
                case "bye":
                    self.rtp.stop()
                    self.ask("BYE", again=True)
                case "key":
                    self.rtp.press(argument)
                case "vanish":
                    self.rtp.stop()
                case _:
                    self.ask(verb, [argument] if argument else [])


class _Rtp(asyncio.DatagramProtocol):
    """The server's audio: a frame every 20 ms, silence included."""

    def __init__(self, server: SipServer) -> None:
        self.port = 0
        self._server = server
        self._transport: Any = None
        self._to = ("127.0.0.1", 0)
        self._sequence = 65_530
        self._packets = 0
        self._timestamp = 4_294_967_000
        self._running = True
        self._following = False
        self._law = (decode_mulaw, encode_mulaw)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def aim(self, invite: str) -> None:
        match = re.search(r"m=audio (\d+)", invite)
        assert match
        self._to = ("127.0.0.1", int(match[1]))
        if self._server.script.payload.startswith("8"):
            self._law = (decode_alaw, encode_alaw)

    def stop(self) -> None:
        self._running = False

    async def talk(self) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        silence = np.zeros(160, dtype=np.int16)
        slot = 0
        while self._running:
            slot += 1
            await asyncio.sleep(max(0.0, start + slot * 0.02 - loop.time()))
            frames = self._server.agent.frames
            spoke = bool(frames)
            pcm = frames.popleft() if frames else silence
            self._put(int(self._server.script.payload.split()[0]), self._law[1](pcm), self._timestamp)
            self._timestamp += 160
            if spoke and not frames and not self._following and self._server.agent.utterances:
                self._following = True
                self._server.tasks.append(asyncio.create_task(self._server.follow()))

    def press(self, digit: str) -> None:
        for duration, end in ((160, 0), (320, 0), (480, 0x80), (480, 0x80), (480, 0x80)):
            self._put(101, struct.pack(">BBH", int(digit), 10 | end, duration), self._timestamp)

    def _put(self, kind: int, payload: bytes, timestamp: int) -> None:
        packet = struct.pack(">BBHII", 0x80, kind, self._sequence & 0xFFFF, timestamp & 0xFFFFFFFF, 77) + payload
        if self._packets not in self._server.script.lose_packets:
            self._transport.sendto(packet, self._to)
        self._packets += 1
        self._sequence += 1

    def datagram_received(self, data: bytes, addr: Any) -> None:
        _, kind, sequence, timestamp, _ = struct.unpack_from(">BBHII", data)
        self._server.seen.rtp.append((kind & 0x7F, bool(kind & 0x80), sequence, timestamp, data[12:]))
        if kind & 0x7F in (0, 8):
            self._server.agent.hear(self._law[0](data[12:]))


@asynccontextmanager
async def sip_server(script: Script) -> AsyncIterator[tuple[str, Seen]]:
    """Yields the address (``sip:desk@127.0.0.1:port``) and what the caller sent."""
    loop = asyncio.get_running_loop()
    server = SipServer(script)
    media, _ = await loop.create_datagram_endpoint(lambda: server.rtp, local_addr=("127.0.0.1", 0))
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(media.close)
        if script.tcp:
            listener = await asyncio.start_server(lambda r, w: _serve(server, r, w), "127.0.0.1", 0)
            stack.callback(listener.close)
            server.port = listener.sockets[0].getsockname()[1]
        else:
            transport, _ = await loop.create_datagram_endpoint(lambda: server, local_addr=("127.0.0.1", 0))
            stack.callback(transport.close)
            server.port = transport.get_extra_info("sockname")[1]
        tail = ";transport=tcp" if script.tcp else ""
        try:
            yield f"sip:desk@127.0.0.1:{server.port}{tail}", server.seen
        finally:
            server.rtp.stop()
            await asyncio.gather(*server.tasks)
    await asyncio.sleep(0)


async def _serve(server: SipServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    server.reply = writer.write
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            body = await reader.readexactly(int(header(head, "content-length")))
            server.receive(head + body.decode())
    writer.close()
