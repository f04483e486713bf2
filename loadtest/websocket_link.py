"""A WebSocket to the server, whatever it carries: opened, told apart how it ends, and cheap.

The protocol itself is the ``websockets`` package's, without its tasks: messages are handed over as they come, and
sending only puts bytes into the socket. Compression is never asked for: sound that is base64 does not get smaller by
what it costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable, Mapping
from typing import cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.uri import parse_uri

from loadtest.address import shown_url
from loadtest.call import CallOver, CallPlan, EndCause
from loadtest.refusal import refusal
from loadtest.tcp import reset
from loadtest.ticker import running_clock
from loadtest.tls import tls_context
from loadtest.wire import SEND_S

MAX_QUEUED_BYTES = 4 * 1024 * 1024
"""Sent and not taken by the network; a server that lets more pile up has stalled."""

FLOOD_MESSAGES, FLOOD_MESSAGES_A_S = 50_000, 500
FLOOD_BYTES, FLOOD_BYTES_A_S = 64 * 1024 * 1024, 1024 * 1024
"""A server that has sent more than so much, and so much more a second, floods: the longest reply all at once is half of
that. It would make the callers late, not itself."""

_CONNECT_S = 10.0
_CLOSE_S = 2.0
_MAX_EARLY = 1_000
_MAX_EARLY_BYTES = 4 * 1024 * 1024


def text_frame(message: bytes) -> bytes:
    """A whole text message, masked with zeros. A key that nobody can guess keeps web pages from writing what they like
    into a proxy's stream (RFC 6455 section 10.3); here no page writes, and the kernel's randomness for every frame is a
    fifth of a caller's cost."""
    size = len(message)
    if size < 126:
        return struct.pack("!BBxxxx", 0x81, 0x80 | size) + message
    if size < 65_536:
        return struct.pack("!BBHxxxx", 0x81, 0xFE, size) + message
    return struct.pack("!BBQxxxx", 0x81, 0xFF, size) + message


class WebSocketLink(asyncio.Protocol):
    """Every method that sends or receives raises :class:`CallOver` when the server is gone."""

    def __init__(self, url: str, *, max_message_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        self._clock = running_clock()
        self._protocol = ClientProtocol(parse_uri(url), max_size=max_message_bytes)
        self._transport: asyncio.Transport | None = None
        self._ended = False
        self._answer: asyncio.Future[None] = loop.create_future()
        self._closed: asyncio.Future[None] = loop.create_future()
        self._over: CallOver | None = None
        self._on_message: Callable[[str | bytes], None] | None = None
        self._on_over: Callable[[CallOver], None] | None = None
        self._early: list[str | bytes] = []
        self._early_bytes = 0
        self._arrived = asyncio.Event()
        self._parts: list[bytes] = []
        self._is_text = True
        self._sent_bytes = 0
        self._came_bytes = self._came_messages = 0
        self._began_s = self._clock()
        self._mark_bytes, self._mark_s = 0, self._clock()

    @classmethod
    async def open(
        cls, url: str, plan: CallPlan, headers: Mapping[str, str] | None, *, max_message_bytes: int
    ) -> WebSocketLink:
        """Raises :class:`CallOver` with how it was refused."""
        link: WebSocketLink | None = None
        try:
            async with asyncio.timeout(_CONNECT_S):
                link = cls(url, max_message_bytes=max_message_bytes)
                await link._connect(plan.via)
                await link._shake_hands(headers or {})
        except InvalidStatus as error:
            raise refusal(error.response.status_code, bytes(error.response.body or b""), url, plan) from error
        except (OSError, TimeoutError, InvalidHandshake, InvalidURI, EOFError) as error:
            why = str(error) or type(error).__name__
            raise CallOver(EndCause.REFUSED, f"no answer at {shown_url(url)}: {why}") from error
        finally:
            if link is not None and link._protocol.state is not State.OPEN:
                await link._abort()
        return link

    # --- the call -----------------------------------------------------------------------------------------------------

    def attend(self, on_message: Callable[[str | bytes], None], on_over: Callable[[CallOver], None]) -> None:
        """Every message from now on, those that wait first; and once, that the server is gone."""
        self._on_message, self._on_over = on_message, on_over
        if self._transport is not None:
            self._transport.resume_reading()
        early, self._early = self._early, []
        self._early_bytes = 0
        for message in early:
            on_message(message)
        if self._over is not None:
            on_over(self._over)

    async def receive(self) -> str | bytes:
        """The next message, before :meth:`attend`."""
        while not self._early:
            if self._over is not None:
                raise self._over
            self._arrived.clear()
            await self._arrived.wait()
        return self._early.pop(0)

    def send(self, message: bytes) -> None:
        """A text message, UTF-8."""
        if self._over is not None:
            raise self._over
        if self._transport is not None and not self._transport.is_closing():
            frame = text_frame(message)
            self._sent_bytes += len(frame)
            self._transport.write(frame)
            self._check_taken(self._transport.get_write_buffer_size())

    async def close(self) -> None:
        """Says goodbye, and waits a little for the other end to have heard it."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
            self._flush()
        self.end(CallOver(EndCause.HANGUP))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.shield(self._closed)
        await self._abort()

    async def vanish(self, linger_s: float) -> None:
        """Read and say nothing any more, and be gone after so long."""
        self.end(CallOver(EndCause.VANISHED))
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            await asyncio.sleep(linger_s)
            reset(self._transport)
        await self._abort()

    def end(self, over: CallOver) -> None:
        """The first cause stands."""
        if self._over is None:
            self._over = over
            self._arrived.set()
            if self._on_over is not None:
                self._on_over(over)

    # --- the socket ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of asyncio's

    def data_received(self, data: bytes) -> None:
        self._came_bytes += len(data)
        if self._came_bytes > FLOOD_BYTES or self._came_messages > FLOOD_MESSAGES:
            self._check_flood()
        self._protocol.receive_data(data)
        self._take_in()

    def eof_received(self) -> bool:
        self._ended = True
        self._protocol.receive_eof()
        self._take_in()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended:
            self._protocol.receive_eof()
            self._take_in()
        if not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the connection was lost"))
            self._answer.exception()  # nobody may be waiting any more
        self.end(_closing(self._protocol.close_rcvd))
        self._closed.set_result(None)

    async def _connect(self, via: tuple[str, int] | None) -> None:
        uri = self._protocol.uri
        tls = await tls_context() if uri.secure else None
        loop = asyncio.get_running_loop()
        name = uri.host if tls is not None else None
        host, port = via or (uri.host, uri.port)
        await loop.create_connection(lambda: self, host, port, ssl=tls, server_hostname=name)

    async def _shake_hands(self, headers: Mapping[str, str]) -> None:
        request: Request = self._protocol.connect()
        for name, value in headers.items():
            request.headers[name] = value
        self._protocol.send_request(request)
        self._flush()
        await self._answer

    async def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            await asyncio.shield(self._closed)

    def _take_in(self) -> None:
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._on_frame(event)
            elif isinstance(event, Response) and not self._answer.done():
                self._on_answer()
        self._flush()
        if self._protocol.close_rcvd is not None:
            self.end(_closing(self._protocol.close_rcvd))

    def _on_answer(self) -> None:
        if self._protocol.handshake_exc is None:
            self._answer.set_result(None)
        else:
            self._answer.set_exception(self._protocol.handshake_exc)

    def _on_frame(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.TEXT | Opcode.BINARY:
                self._is_text = frame.opcode is Opcode.TEXT
                if frame.fin:
                    self._hand_over(bytes(frame.data))
                else:
                    self._parts = [bytes(frame.data)]
            case Opcode.CONT:
                self._parts.append(bytes(frame.data))
                if frame.fin:
                    whole, self._parts = b"".join(self._parts), []
                    self._hand_over(whole)

    def _hand_over(self, data: bytes) -> None:
        message: str | bytes = data
        self._came_messages += 1
        if self._over is not None:
            return
        if self._is_text:
            message = data.decode("utf-8", "replace")
        if self._on_message is not None:
            with contextlib.suppress(CallOver):  # it had something to say to that
                self._on_message(message)
        else:
            full = self._early_is_full
            self._early.append(message)
            self._early_bytes += len(data)
            self._arrived.set()
            if self._early_is_full and not full and self._transport is not None:
                self._transport.pause_reading()

    @property
    def _early_is_full(self) -> bool:
        return len(self._early) >= _MAX_EARLY or self._early_bytes > _MAX_EARLY_BYTES

    def _flush(self) -> None:
        transport = self._transport
        for data in self._protocol.data_to_send():
            if transport is None or transport.is_closing():
                return
            if data:
                self._sent_bytes += len(data)
                transport.write(data)
            elif transport.can_write_eof():
                transport.write_eof()
            else:
                transport.close()

    def _check_flood(self) -> None:
        """Ends the call: nothing is read any more."""
        up_s = self._clock() - self._began_s
        if (
            self._came_bytes > FLOOD_BYTES + FLOOD_BYTES_A_S * up_s
            or self._came_messages > FLOOD_MESSAGES + FLOOD_MESSAGES_A_S * up_s
        ):
            self.end(CallOver(EndCause.FLOODED, "the server sent more than any call needs"))
            if self._transport is not None:
                self._transport.abort()

    def _check_taken(self, queued: int) -> None:
        """Ends the call when what was sent long ago still waits here."""
        now_s = self._clock()
        if queued == 0 or self._sent_bytes - queued >= self._mark_bytes:
            self._mark_bytes, self._mark_s = self._sent_bytes, now_s
        elif now_s - self._mark_s > SEND_S or queued > MAX_QUEUED_BYTES:
            self.end(CallOver(EndCause.STALLED, "the server stopped reading"))


def _closing(closed: Close | None) -> CallOver:
    """What it means that the server closed the connection."""
    reason = f": {closed.reason}" if closed and closed.reason else ""
    match closed.code if closed else None:
        case 1013:
            return CallOver(EndCause.BUSY, f"the gateway is busy{reason}")
        case 1000 | 1001:
            return CallOver(EndCause.AGENT_HANGUP)
        case None:
            return CallOver(EndCause.CONNECTION_LOST, "the connection was lost")
        case code:
            return CallOver(EndCause.CONNECTION_LOST, f"closed by the server with {code}{reason}")
