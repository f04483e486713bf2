"""A phone of as few steps as SIP allows: INVITE, ACK, and G.711 in RTP both ways. Nothing is decoded, nothing sent
twice: it calls over loopback."""

from __future__ import annotations

import asyncio
import re
import secrets
import struct
import time
from collections.abc import Sequence

from scripts.bench_phones.arrivals import Playout

ANSWER_S = 10.0
_MEDIA = re.compile(rb"m=audio (\d+) ")


class SipPhone(asyncio.DatagramProtocol):
    """One call; its RTP's socket. ``signalling`` sends its requests."""

    def __init__(self, payloads: Sequence[bytes], call: int) -> None:
        self.playout = Playout(lead=False)
        self._payloads = payloads
        self._call = call
        self._ssrc = secrets.randbits(32)
        self._sent = 0
        self._transport: asyncio.DatagramTransport | None = None
        self._to: tuple[str, int] | None = None

    async def open(self) -> int:
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: self, local_addr=("127.0.0.1", 0)
        )
        self._transport = transport
        port: int = transport.get_extra_info("sockname")[1]
        return port

    def connect(self, port: int) -> None:
        self._to = ("127.0.0.1", port)

    def send_frame(self) -> None:
        number = self._sent
        self._sent += 1
        head = struct.pack(">BBHII", 0x80, 0, number & 0xFFFF, number * 160 & 0xFFFFFFFF, self._ssrc)
        assert self._transport is not None
        self._transport.sendto(head + self._payloads[(number + self._call * 37) % len(self._payloads)], self._to)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if len(data) == 172 and not data[1] & 0x7F:
            self.playout.came(time.monotonic() * 1000)


class Signalling(asyncio.DatagramProtocol):
    """The socket that all phones share for SIP."""

    def __init__(self, server_port: int) -> None:
        self._server = ("127.0.0.1", server_port)
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._transport: asyncio.DatagramTransport | None = None
        self._port = 0

    @classmethod
    async def open(cls, server_port: int) -> Signalling:
        self = cls(server_port)
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: self, local_addr=("127.0.0.1", 0)
        )
        self._transport = transport
        self._port = transport.get_extra_info("sockname")[1]
        return self

    async def call(self, phone: SipPhone) -> None:
        """Raises :class:`TimeoutError`, and :class:`RuntimeError` with the status of a refusal."""
        call_id = secrets.token_hex(8)
        media_port = await phone.open()
        sdp = (
            f"v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
            f"m=audio {media_port} RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\na=ptime:20\r\na=sendrecv\r\n"
        )
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[call_id.encode()] = answer
        try:
            self._send("INVITE", call_id, "<sip:default@127.0.0.1>", sdp)
            async with asyncio.timeout(ANSWER_S):
                response = await answer
        finally:
            del self._waiting[call_id.encode()]
        to = re.search(rb"^(?:To|t)\s*:\s*(.*?)\r$", response, re.MULTILINE | re.IGNORECASE)
        media = _MEDIA.search(response)
        if not response.startswith(b"SIP/2.0 200") or to is None or media is None:
            raise RuntimeError(f"the call was answered with {response[8:40].decode(errors='replace')!r}")
        self._send("ACK", call_id, to[1].decode(), "")
        phone.connect(int(media[1]))

    def _send(self, method: str, call_id: str, to: str, body: str) -> None:
        kind = "Content-Type: application/sdp\r\n" if body else ""
        message = (
            f"{method} sip:default@127.0.0.1:{self._server[1]} SIP/2.0\r\n"
            f"Via: SIP/2.0/UDP 127.0.0.1:{self._port};branch=z9hG4bK{method}{call_id};rport\r\n"
            f"Max-Forwards: 70\r\nFrom: <sip:bench@127.0.0.1>;tag={call_id}\r\nTo: {to}\r\nCall-ID: {call_id}\r\n"
            f"CSeq: 1 {method}\r\nContact: <sip:bench@127.0.0.1:{self._port}>\r\n{kind}"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        )
        assert self._transport is not None
        self._transport.sendto(message.encode(), self._server)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        found = re.search(rb"^(?:Call-ID|i)\s*:\s*(\S+)", data, re.MULTILINE | re.IGNORECASE)
        waiting = self._waiting.get(found[1]) if found is not None else None
        if waiting is not None and not waiting.done() and not data.startswith(b"SIP/2.0 1"):
            waiting.set_result(data)
