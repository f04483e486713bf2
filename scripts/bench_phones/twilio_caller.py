"""A stand-in for Twilio's end of a media stream: JSON with base64 mu-law both ways, marks that come back when what was
before them has been played. Frames are written by hand, for the callers must not cost what is measured."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import secrets
import time
from collections.abc import Sequence
from typing import cast

from scripts.bench_phones.arrivals import FRAME_MS, Playout

ANSWER_S = 10.0
_TEXT = 0x81
_PING = 0x89
_PONG = 0x8A
"""Opcodes with the bit that the message is whole."""
_MASKED = 0x80
_NO_MASK = bytes(4)
"""A client masks what it sends (RFC 6455, 5.3): with zeros, it stays what it is."""
_PAYLOAD = re.compile(rb'"payload"\s*:\s*"([^"]*)"')


class TwilioPhone(asyncio.Protocol):
    """One call's WebSocket."""

    def __init__(self, payloads: Sequence[bytes], call: int, *, lead: bool) -> None:
        self.playout = Playout(lead)
        self._encoded = payloads
        self._call = call
        self._stream = f"MZ{secrets.token_hex(16)}"
        self._sent = 0
        self._loop = asyncio.get_running_loop()
        self._open: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()

    @staticmethod
    def encoded(payloads: Sequence[bytes]) -> list[bytes]:
        return [base64.b64encode(payload) for payload in payloads]

    async def call(self, port: int) -> None:
        """Raises :class:`TimeoutError`, :class:`OSError`, and :class:`RuntimeError` with a refusal."""
        await self._loop.create_connection(lambda: self, "127.0.0.1", port)
        async with asyncio.timeout(ANSWER_S):
            await self._open
        self._write({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        account, call_sid = f"AC{'0' * 32}", f"CA{secrets.token_hex(16)}"
        start = {
            "accountSid": account,
            "streamSid": self._stream,
            "callSid": call_sid,
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
            "customParameters": {},
        }
        self._write({"event": "start", "sequenceNumber": "1", "start": start, "streamSid": self._stream})

    def send_frame(self) -> None:
        number = self._sent
        self._sent += 1
        payload = self._encoded[(number + self._call * 37) % len(self._encoded)]
        self._write_frame(
            _TEXT,
            b'{"event":"media","sequenceNumber":"%d","media":{"track":"inbound","chunk":"%d","timestamp":"%d",'
            b'"payload":"%b"},"streamSid":"%b"}'
            % (number + 2, number + 1, number * 20, payload, self._stream.encode()),
        )

    # --- asyncio.Protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        host, port = transport.get_extra_info("peername")[:2]
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        self._transport.write(
            f"GET /v1/carriers/twilio/stream HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._open.done():
            head, separator, rest = bytes(self._buffer).partition(b"\r\n\r\n")
            if not separator:
                return
            if b" 101 " not in head[:32]:
                self._open.set_exception(RuntimeError(f"the stream was answered with {head[:80]!r}"))
                return
            self._open.set_result(None)
            self._buffer = bytearray(rest)
        at_ms = time.monotonic() * 1000
        while (message := self._next_message()) is not None:
            self._take(*message, at_ms)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._open.done():
            self._open.set_exception(RuntimeError("the stream was closed"))

    # --------------------------------------------------------------------------------------------------------------

    def _next_message(self) -> tuple[int, bytes] | None:
        """First byte and payload. Servers mask nothing, and this one splits nothing."""
        if len(self._buffer) < 2:
            return None
        length, start = self._buffer[1], 2
        if length == 126:
            length, start = int.from_bytes(self._buffer[2:4], "big"), 4
        elif length == 127:
            length, start = int.from_bytes(self._buffer[2:10], "big"), 10
        if len(self._buffer) < start + length:
            return None
        opcode, message = self._buffer[0], bytes(self._buffer[start : start + length])
        del self._buffer[: start + length]
        return opcode, message

    def _take(self, opcode: int, message: bytes, at_ms: float) -> None:
        if opcode == _PING:
            self._write_frame(_PONG, message)
            return
        found = _PAYLOAD.search(message)
        if found is not None:
            samples = len(found[1]) * 3 // 4 - found[1].endswith(b"=") - found[1].endswith(b"==")
            self.playout.came(at_ms, max(1, round(samples / 8 / FRAME_MS)))
        elif b'"mark"' in message:
            name = json.loads(message)["mark"]["name"]
            wait_s = max(0.0, (self.playout.due_ms or at_ms) - at_ms) / 1000
            mark = {"event": "mark", "sequenceNumber": "1", "streamSid": self._stream, "mark": {"name": name}}
            self._loop.call_later(wait_s, self._write, mark)

    def _write(self, message: object) -> None:
        self._write_frame(_TEXT, json.dumps(message).encode())

    def _write_frame(self, opcode: int, text: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        length = len(text)
        size = bytes((_MASKED | length,)) if length < 126 else bytes((_MASKED | 126,)) + length.to_bytes(2, "big")
        self._transport.write(bytes((opcode,)) + size + _NO_MASK + text)
