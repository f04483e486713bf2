"""As much signalling as the media of a real phone needs: what is proven with it is the media."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import cast

from gateway.transports.sip.media import RtpMedia
from tests.e2e.ports import LOOPBACK


class Signalling(asyncio.DatagramProtocol):
    """One dialog over UDP, either way: every offer is answered by ``media``, nothing is repeated."""

    def __init__(self, media: RtpMedia) -> None:
        self._media = media
        self._transport: asyncio.DatagramTransport
        self.port = 0
        self.established, self.ended = asyncio.Event(), asyncio.Event()
        self.offers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)  # uvloop's is none by its class
        self.port = transport.get_extra_info("sockname")[1]

    def invite(self, port: int) -> None:
        """Call the phone at ``port``."""
        sdp = self._media.offer()
        self._request("INVITE", port, sdp, to="")

    def _request(self, method: str, port: int, sdp: str, to: str) -> None:
        kind = ["Content-Type: application/sdp"] if sdp else []
        self._send(
            (LOOPBACK, port),
            f"{method} sip:bob@{LOOPBACK}:{port} SIP/2.0",
            f"Via: SIP/2.0/UDP {LOOPBACK}:{self.port};branch=z9hG4bK{method};rport",
            f"From: <sip:us@{LOOPBACK}:{self.port}>;tag=us",
            to or f"To: <sip:bob@{LOOPBACK}:{port}>",
            "Call-ID: media@us",
            f"CSeq: 1 {method}",
            "Max-Forwards: 70",
            *self._rest([*kind], sdp),
        )

    def _rest(self, headers: list[str], sdp: str) -> list[str]:
        return [f"Contact: <sip:us@{LOOPBACK}:{self.port}>", *headers, f"Content-Length: {len(sdp)}", "", sdp]

    def _send(self, where: tuple[str, int], *lines: str) -> None:
        self._transport.sendto("\r\n".join(lines).encode(), where)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        head, _, body = data.decode().partition("\r\n\r\n")
        first, *headers = head.split("\r\n")
        method = first.split()[0]
        to = next(line for line in headers if re.match(r"(?i)(to|t)\s*:", line))
        if first.startswith("SIP/2.0 200") and "INVITE" in head:
            self._media.accept(body)
            self._request("ACK", addr[1], "", to)
            self.established.set()
        elif method == "ACK":
            self.established.set()
        elif not first.startswith("SIP/2.0"):
            sdp = self._media.answer(body) if method == "INVITE" else ""
            self.offers += bool(sdp)
            kept = [line for line in headers if re.match(r"(?i)(via|v|from|f|call-id|i|cseq)\s*:", line)]
            tagged = to if "tag=" in to else f"{to};tag=us"
            kind = ["Content-Type: application/sdp"] if sdp else []
            self._send(addr, "SIP/2.0 200 OK", *kept, tagged, *self._rest(kind, sdp))
            if method == "BYE":
                self.ended.set()


@contextlib.asynccontextmanager
async def signalling(media: RtpMedia) -> AsyncIterator[Signalling]:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(lambda: Signalling(media), local_addr=(LOOPBACK, 0))
    try:
        yield protocol
    finally:
        transport.close()
        await asyncio.sleep(0)
