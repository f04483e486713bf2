"""The TCP server that Asterisk's AudioSocket calls come to.

Nothing secret crosses it but the call's UUID, in clear: it listens on loopback unless told otherwise, lets in the
addresses that it was told, and each announced UUID once.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import cast

import structlog

from gateway.agents.agent import UnknownAgent
from gateway.bridge_settings import AudioSocketSettings
from gateway.call_setup import CallNotSetUp
from gateway.security.networks import Networks
from gateway.settings import ConfigurationError
from gateway.state import Gateway
from gateway.switchboard import Refused
from gateway.transports.asterisk import audiosocket_wire as wire
from gateway.transports.asterisk.audiosocket_line import CLOSE_S, WRITE_BUFFER_BYTES, AudioSocketLine
from gateway.transports.asterisk.expected import ExpectedCalls, NextSteps, NotExpected
from gateway.transports.phone.line import Incoming, LineError
from gateway.transports.phone.phone_call import PhoneCall

_log = structlog.get_logger(__name__)

UUID_S = 2.0
"""From the connection to its UUID, which Asterisk sends at once."""
RATE_S = 0.5
"""For the first audio, which says the rate; a caller whose phone sends nothing yet is answered at 8 kHz."""
MAX_STRANGERS = 64
"""Connections that have not said their UUID."""
READ_BYTES = 8_192
"""Taken at a time: shorter messages than audio must not keep the loop busy."""


@contextlib.asynccontextmanager
async def audiosocket_calls(gateway: Gateway) -> AsyncIterator[None]:
    """Take them until the block is left, if the settings say so. Raises :class:`ConfigurationError`
    (``cannot_listen``)."""
    settings = gateway.settings.audiosocket
    if not settings.enabled:
        yield
        return
    desk = gateway.asterisk
    async with AudioSocketServer(gateway, settings, desk.expected, desk.next_steps).listening():
        yield


class AudioSocketServer:
    """``expected`` knows the calls, ``next_steps`` where those go that an agent transfers."""

    def __init__(
        self, gateway: Gateway, settings: AudioSocketSettings, expected: ExpectedCalls, next_steps: NextSteps
    ) -> None:
        self.gateway = gateway
        self._settings = settings
        self._expected = expected
        self._next_steps = next_steps
        self._allowed = Networks(settings.allowed)
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._up: Counter[str] = Counter()
        """Calls by the UUID that they came with, which several may share."""
        self.port = 0

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[AudioSocketServer]:
        """Take calls until the block is left; then those still up are cut. Raises :class:`ConfigurationError`
        (``cannot_listen``)."""
        host, port = self._settings.host, self._settings.port
        try:
            server = await asyncio.get_running_loop().create_server(partial(_Connection, self), host, port)
        except OSError as error:
            problem = f"audiosocket.port: cannot listen on {host}:{port}: {error.strerror or error}"
            raise ConfigurationError("cannot_listen", problem) from None
        self.port = server.sockets[0].getsockname()[1]
        _log.info("taking AudioSocket calls", host=host, port=self.port)
        try:
            yield self
        finally:
            server.close()
            for connection in list(self._connections):
                connection.cut()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await server.wait_closed()

    # --- the connections' side ------------------------------------------------------------------------------------

    def admits(self, connection: _Connection, address: str) -> bool:
        """Whether it may say its UUID."""
        strangers = sum(not known.identified for known in self._connections)
        if address not in self._allowed:
            return self.refuse("audiosocket_address_refused")
        if strangers >= MAX_STRANGERS:
            return self.refuse("audiosocket_too_many_strangers")
        self._connections.add(connection)
        return True

    def refuse(self, why: str) -> bool:
        self.gateway.metrics.count(why)
        return False

    def left(self, connection: _Connection) -> None:
        self._connections.discard(connection)

    def identified(self, connection: _Connection, call: uuid.UUID) -> None:
        """It said its UUID: take the call, or send it back to its dialplan."""
        try:
            incoming = self._expected.take(call)
        except NotExpected as error:
            self.gateway.metrics.count(f"audiosocket_{error.code}")
            _log.warning("an AudioSocket call was refused", reason=error.code)
            connection.send_back()
            return
        hand_over = partial(self._hand_over, incoming.wire_id) if self._settings.transfers else None
        self._next_steps.take(incoming.wire_id)  # of an earlier call of this UUID, whose dialplan did not ask
        task = asyncio.create_task(self._take(connection.make_line(hand_over), incoming), name="audiosocket")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "a call's task failed", "exception": error, "task": task}
            asyncio.get_running_loop().call_exception_handler(context)

    def _hand_over(self, wire_id: str, target: str) -> None:
        """Raises :class:`LineError` where the dialplan of another call might be told, too."""
        if self._up[wire_id] > 1:
            raise LineError("transfer_failed", "Other calls came with the same UUID: announce each, with its own.")
        self._next_steps.hand_over(wire_id, target)

    async def _take(self, line: AudioSocketLine, incoming: Incoming) -> None:
        self._up[incoming.wire_id] += 1
        try:
            await self._run(line, incoming)
        finally:
            self._up[incoming.wire_id] -= 1
            if not self._up[incoming.wire_id]:
                del self._up[incoming.wire_id]

    async def _run(self, line: AudioSocketLine, incoming: Incoming) -> None:
        gateway = self.gateway
        try:
            admission = await gateway.switchboard.admit("audiosocket")
        except Refused as refused:
            _log.warning("an AudioSocket call was refused", reason=refused.code)
            await line.hang_up(refused.code)
            return
        with admission:
            await line.rate_heard(RATE_S)
            try:
                call = PhoneCall(gateway, admission, incoming, line)
            except (UnknownAgent, CallNotSetUp) as error:
                _log.warning("an AudioSocket call was refused", reason=getattr(error, "code", "engine_failed"))
                await line.hang_up("not_set_up")
                return
            try:
                line.attach(call)
                await call.run()
            finally:
                await line.hang_up("internal_error")


class _Connection(asyncio.Protocol):
    """One connection, from its first byte to its last."""

    def __init__(self, server: AudioSocketServer) -> None:
        self._server = server
        self._decoder = wire.Decoder()
        self._line: AudioSocketLine | None = None
        self._late: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._over = False
        self.identified = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # which uvloop's is not by its class
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        address = transport.get_extra_info("peername")  # None: it is gone already
        if address is None or not self._server.admits(self, str(address[0])):
            self._over = True
            transport.abort()
            return
        self._late = asyncio.get_running_loop().call_later(UUID_S, self._too_late)

    def make_line(self, hand_over: partial[None] | None) -> AudioSocketLine:
        assert self._transport is not None
        metrics = self._server.gateway.metrics
        left = metrics.sender("audiosocket").sent
        self._line = AudioSocketLine(self._transport, metrics.count, hand_over=hand_over, left=left)
        return self._line

    def data_received(self, data: bytes) -> None:
        for at in range(0, len(data), READ_BYTES):
            if self._over or (self._line is not None and self._line.is_down):
                return  # who floods is not even read
            for message in self._decoder.feed(data[at : at + READ_BYTES]):
                self._take(message)

    def _take(self, message: wire.Message) -> None:
        if self._over:
            return
        if self._line is not None:
            self._line.received(message)
        elif isinstance(message, wire.CallId) and not self.identified:
            self.identified = True
            self._stop_waiting()
            self._server.identified(self, message.uuid)
        elif not self.identified:
            self._server.refuse("audiosocket_no_uuid")
            self.cut()

    def send_back(self) -> None:
        """The dialplan goes on with its next step: see :meth:`AudioSocketLine.hang_up`."""
        self._over = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(wire.HANG_UP)
            self._transport.write_eof()
            self._late = asyncio.get_running_loop().call_later(CLOSE_S, self.cut)

    def cut(self) -> None:
        self._over = True
        self._stop_waiting()
        if self._line is not None:
            self._line.down("server_stop")
        if self._transport is not None:
            self._transport.abort()

    def _too_late(self) -> None:
        self._server.refuse("audiosocket_no_uuid")
        self.cut()

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def pause_writing(self) -> None:
        if self._line is not None:
            self._line.pause()

    def resume_writing(self) -> None:
        if self._line is not None:
            self._line.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._stop_waiting()
        self._server.left(self)
        if self._line is not None:
            self._line.lost(exc)
