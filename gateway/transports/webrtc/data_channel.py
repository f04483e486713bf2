"""The data channel: aiortc's SCTP over the call's DTLS, held to bounds that aiortc does not set."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol, cast

import structlog
from aiortc import RTCDataChannel, RTCDtlsTransport, RTCSctpTransport
from aiortc.rtcsctptransport import RTCSctpCapabilities
from OpenSSL import SSL

_log = structlog.get_logger(__name__)

LABEL = "oai-events"
MAX_BUFFERED_BYTES = 4 * 1024 * 1024
"""Of what waits to be sent: more is refused."""
LOW_BYTES = 256 * 1024
"""Drained below this, the channel is told to be writable again."""
MAX_CHANNELS = 8
MAX_OPEN_BYTES = 2 * 1024 * 1024
"""Of messages whose rest has not come yet. The peer was told of 1 MiB."""
MAX_OUT_OF_ORDER = 4096
"""Chunks that came out of order, which aiortc sorts anew with each one."""


class ChannelEvents(Protocol):
    def opened(self) -> None: ...

    def closed(self) -> None: ...

    def text(self, text: str) -> None: ...

    def binary(self) -> None: ...

    def drained(self) -> None: ...

    def broken(self) -> None:
        """The peer does not keep to the protocol, or to its bounds."""


class _Path:
    """What SCTP sees of DTLS. Nothing that it does with a peer's bytes, or for want of a peer, gets further."""

    def __init__(self, dtls: RTCDtlsTransport, broken: Callable[[], None]) -> None:
        self._dtls = dtls
        self._broken = broken
        self._receiver: RTCSctpTransport | None = None
        self._window = 0

    @property
    def state(self) -> str:
        return str(self._dtls.state)

    @property
    def _role(self) -> str:
        return str(self._dtls._role)

    async def _send_data(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError, SSL.Error):  # whoever looks after the connection knows it too
            await self._dtls._send_data(data)

    def _register_data_receiver(self, receiver: RTCSctpTransport) -> None:
        self._receiver = receiver
        self._window = receiver._advertised_rwnd
        self._dtls._register_data_receiver(self)

    def _unregister_data_receiver(self, receiver: RTCSctpTransport) -> None:
        self._receiver = None
        self._dtls._unregister_data_receiver(self)

    async def _handle_data(self, data: bytes) -> None:
        sctp = self._receiver
        if sctp is None:
            return
        try:
            await sctp._handle_data(data)
        except Exception as error:  # noqa: BLE001 (aiortc asserts what a peer should do, and unpacks what it sends)
            _log.info("a peer's data channel broke the protocol", error=type(error).__name__)
            self._broken()
            return
        open_bytes = self._window - sctp._advertised_rwnd
        if open_bytes > MAX_OPEN_BYTES or len(sctp._sack_misordered) > MAX_OUT_OF_ORDER:
            _log.info("a peer's data channel went over its bounds")
            self._broken()


class DataChannel:
    """The one channel named :data:`LABEL` that the peer makes; others are let be and not listened to."""

    def __init__(self, dtls: RTCDtlsTransport, events: ChannelEvents) -> None:
        self._events = events
        self._path = _Path(dtls, events.broken)
        self._sctp = RTCSctpTransport(cast(Any, self._path))
        self._channel: RTCDataChannel | None = None
        self._channels = 0
        self._max_message_bytes = 0
        self._full = False
        self._sctp.on("datachannel", self._on_channel)

    @property
    def port(self) -> int:
        return int(self._sctp.port)

    @property
    def max_message_bytes(self) -> int:
        """What this side takes."""
        return int(RTCSctpTransport.getCapabilities().maxMessageSize)

    @property
    def buffered_bytes(self) -> int:
        return int(self._channel.bufferedAmount) if self._channel is not None else 0

    async def start(self, port: int, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        await self._sctp.start(RTCSctpCapabilities(maxMessageSize=max_message_bytes), port)

    async def stop(self) -> None:
        self._channel = None
        await self._sctp.stop()

    def send(self, text: str) -> bool:
        """False: it is not open, the peer does not take messages that long, or too much waits already."""
        channel = self._channel
        if channel is None or channel.readyState != "open":
            return False
        if channel.bufferedAmount + len(text) > MAX_BUFFERED_BYTES:
            self._full = True
            return False
        try:
            channel.send(text)
        except ValueError:
            return False
        self._full = self._full or channel.bufferedAmount > LOW_BYTES
        return True

    def _on_channel(self, channel: RTCDataChannel) -> None:
        self._channels += 1
        if self._channels > MAX_CHANNELS:
            self._events.broken()
        if channel.label != LABEL or self._channel is not None:
            return
        self._channel = channel
        channel.bufferedAmountLowThreshold = LOW_BYTES
        channel.on("message", self._on_message)
        channel.on("bufferedamountlow", self._on_low)
        channel.on("close", self._on_close)
        self._events.opened()

    def _on_message(self, message: str | bytes) -> None:
        if isinstance(message, str):
            self._events.text(message)
        else:
            self._events.binary()

    def _on_low(self) -> None:
        if self._full:
            self._full = False
            self._events.drained()

    def _on_close(self) -> None:
        if self._channel is not None:
            self._channel = None
            self._events.closed()
