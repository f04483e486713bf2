"""The caller's end of a WebRTC connection: ready-made Opus out, RTP straight to the ear, events on a data channel.

aiortc carries it, but for two things. Received packets go to :class:`~loadtest.rtp_playout.RtpPlayout` as they come
from the network, as aiortc's own jitter buffer would falsify every latency. And a caller of a gateway on this machine
offers loopback candidates too, which aioice never gathers: it may be all the network there is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

import av
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCPeerConnection,
    RTCRtpReceiver,
    RTCSessionDescription,
)
from aiortc.rtcconfiguration import RTCBundlePolicy
from aiortc.rtp import RtpPacket

from loadtest.address import shown_url
from loadtest.call import SLOT_MS, CallOver, EndCause
from loadtest.report import SetupReport
from loadtest.rtp_playout import OPUS_CLOCK_HZ, RtpPlayout
from loadtest.ticker import running_clock

CHANNEL = "oai-events"

_CLOSE_S = 5.0
_LAST_CHECK_S = 0.03  # aioice paces its checks by 20 ms, and notices only then that it was closed
_MAX_EVENTS = 10_000
_MAX_VOICE = 250
_MAX_EARLY = 100
_SLOT_TICKS = OPUS_CLOCK_HZ * SLOT_MS // 1000

_JITTER_BUFFER = "_RTCRtpReceiver__jitter_buffer"


class _Microphone(MediaStreamTrack):
    """Hands ready-made packets to aiortc, which sends each as it comes: the caller keeps the time."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._packets: asyncio.Queue[Any] = asyncio.Queue(_MAX_VOICE)
        self._ticks = 0

    def say(self, payload: bytes) -> None:
        packet = av.Packet(payload)
        packet.pts, packet.time_base = self._ticks, Fraction(1, OPUS_CLOCK_HZ)
        self._ticks += _SLOT_TICKS
        if not self._packets.full():
            self._packets.put_nowait(packet)

    def skip(self, slots: int) -> None:
        """So many slots go by without a packet."""
        self._ticks += slots * _SLOT_TICKS

    async def recv(self) -> Any:
        return await self._packets.get()


class _Tap:
    """Stands in for aiortc's jitter buffer: keeps nothing, so nothing is decoded there."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def add(self, packet: RtpPacket) -> tuple[bool, None]:
        self._peer.on_packet(packet.sequence_number, packet.timestamp, packet.payload)
        return False, None


@dataclass(slots=True)
class _Times:
    """Moments on the loop's clock."""

    began_s: float = 0.0
    answered_s: float | None = None
    connected_s: float | None = None
    channel_s: float | None = None
    audio_s: float | None = None

    def report(self) -> SetupReport:
        return SetupReport(*(self._ms(at) for at in (self.answered_s, self.connected_s, self.channel_s, self.audio_s)))

    def _ms(self, at_s: float | None) -> float | None:
        return None if at_s is None else round((at_s - self.began_s) * 1000, 1)


class Peer:
    """The aiortc end of a call."""

    def __init__(self, loopback: bool) -> None:
        self.times = _Times()
        self.microphone = _Microphone()
        self.over: CallOver | None = None
        self.ear: RtpPlayout | None = None
        self.overflowed = 0
        self.connected = asyncio.Event()
        self.channel_open = asyncio.Event()
        self._clock = running_clock()
        self._early: list[tuple[int, int, bytes, float]] = []
        self._early_messages: list[str | bytes] = []
        self._arrived = asyncio.Event()
        self._hear_message: Callable[[str | bytes], None] | None = None
        self._on_over: Callable[[CallOver], None] | None = None
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[], bundlePolicy=RTCBundlePolicy.MAX_BUNDLE))
        transceiver = self._connection.addTransceiver(self.microphone, direction="sendrecv")
        _listen(transceiver.receiver, _Tap(self))
        if loopback:
            _offer_loopback(transceiver.receiver)
        self._channel = self._connection.createDataChannel(CHANNEL)
        self._channel.on("open", self._on_open)
        self._channel.on("message", self._on_message)
        self._channel.on("close", lambda: self.end(CallOver(EndCause.AGENT_HANGUP)))
        self._connection.on("connectionstatechange", self._on_state)

    @property
    def left(self) -> bool:
        """The server ended the connection: it need not be told."""
        return self.over is not None and self.over.cause is EndCause.AGENT_HANGUP

    async def offer(self) -> str:
        await self._connection.setLocalDescription(await self._connection.createOffer())
        return self._connection.localDescription.sdp

    async def accept(self, answer: str, url: str, *, within_s: float) -> None:
        """Connect media and the channel. Raises :class:`CallOver`."""
        try:
            await self._connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        except Exception as error:  # aiortc's parser raises whatever a server's bad SDP makes of it
            raise CallOver(EndCause.NO_SESSION, f"{shown_url(url)} answered with an unusable SDP: {error}") from error
        await self._wait(self.connected, within_s, lambda: self._no_media(answer))
        await self._wait(
            self.channel_open,
            within_s,
            lambda: CallOver(EndCause.NO_SESSION, f"media is connected, but the channel {CHANNEL} never opened"),
        )

    async def receive(self) -> str | bytes:
        """The next message, before :meth:`attend`. Raises :class:`CallOver`."""
        while not self._early_messages:
            if self.over is not None:
                raise self.over
            self._arrived.clear()
            await self._arrived.wait()
        return self._early_messages.pop(0)

    def attend(self, on_message: Callable[[str | bytes], None], on_over: Callable[[CallOver], None]) -> None:
        """Every message from now on, those that wait first; and once, that the connection is gone."""
        self._hear_message, self._on_over = on_message, on_over
        early, self._early_messages = self._early_messages, []
        for message in early:
            on_message(message)
        if self.over is not None:
            on_over(self.over)

    def send(self, text: str) -> None:
        if self.over is not None or self._channel.readyState != "open":
            raise self.over or CallOver(EndCause.CONNECTION_LOST, "the data channel was closed")
        self._channel.send(text)

    def listen(self, ear: RtpPlayout) -> None:
        """The session has begun: play from here on, what came already included."""
        self.ear = ear
        for packet in self._early:
            ear.push(*packet)
        self._early.clear()

    def on_packet(self, sequence: int, timestamp: int, payload: bytes) -> None:
        now_s = self._clock()
        if self.times.audio_s is None:
            self.times.audio_s = now_s
        if self.ear is not None:
            self.ear.push(sequence, timestamp, payload, now_s)
        elif len(self._early) < _MAX_EARLY:
            self._early.append((sequence, timestamp, payload, now_s))

    def end(self, over: CallOver) -> None:
        """The first cause stands."""
        if self.over is None:
            self.over = over
            self._arrived.set()
            if self._on_over is not None:
                self._on_over(over)
            self.connected.set()
            self.channel_open.set()

    async def vanish(self, linger_s: float) -> None:
        """Nothing leaves any more, not even a goodbye; the sockets stay for so long."""
        self.end(CallOver(EndCause.VANISHED))
        _silence(self._connection)
        await asyncio.sleep(linger_s)
        await self.close()

    async def close(self) -> None:
        self.end(CallOver(EndCause.HANGUP))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._connection.close()
        if self.times.connected_s is None:
            await asyncio.sleep(_LAST_CHECK_S)

    async def _wait(self, event: asyncio.Event, within_s: float, failure: Callable[[], CallOver]) -> None:
        try:
            async with asyncio.timeout(within_s):
                await event.wait()
        except TimeoutError as error:
            raise failure() from error
        if self.over is not None:
            raise self.over if event is self.channel_open else failure()

    def _no_media(self, answer: str) -> CallOver:
        offered = [line.split() for line in answer.splitlines() if line.startswith("a=candidate:")]
        where = ", ".join(sorted({f"{words[4]}:{words[5]}" for words in offered if len(words) > 5})) or "no address"
        return CallOver(
            EndCause.NO_MEDIA, f"the call was taken, but no media connection came about; the server offered {where}"
        )

    def _on_open(self) -> None:
        self.times.channel_s = self._clock()
        self.channel_open.set()

    def _on_message(self, message: str | bytes) -> None:
        if self.over is not None:
            return
        if self._hear_message is not None:
            self._hear_message(message)
        elif len(self._early_messages) < _MAX_EVENTS:
            self._early_messages.append(message)
            self._arrived.set()
        else:
            self.overflowed += 1

    def _on_state(self) -> None:
        match self._connection.connectionState:
            case "connected":
                self.times.connected_s = self._clock()
                self.connected.set()
            case "failed":
                self.end(CallOver(EndCause.CONNECTION_LOST, "the media connection was lost"))
            case "closed":
                self.end(CallOver(EndCause.AGENT_HANGUP))


def _listen(receiver: RTCRtpReceiver, tap: _Tap) -> None:
    if not hasattr(receiver, _JITTER_BUFFER):
        raise RuntimeError("this aiortc keeps its jitter buffer elsewhere: the caller can't listen past it")
    setattr(receiver, _JITTER_BUFFER, tap)


class _Mute:
    """Stands in for a UDP socket whose network is gone."""

    def __init__(self, transport: asyncio.DatagramTransport) -> None:
        self._transport = transport

    def sendto(self, data: bytes, addr: Any = None) -> None:
        """Lost."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _silence(connection: RTCPeerConnection) -> None:
    for transceiver in connection.getTransceivers():
        for protocol in transceiver.receiver.transport.transport.iceGatherer._connection._protocols:
            protocol.transport = cast(asyncio.DatagramTransport, _Mute(protocol.transport))


def _offer_loopback(receiver: RTCRtpReceiver) -> None:
    """Gather 127.0.0.1 besides what aioice gathers by itself, for this connection alone."""
    connection = receiver.transport.transport.iceGatherer._connection
    gather = connection.get_component_candidates

    def gather_here_too(component: int, addresses: list[str], timeout: int = 5) -> Any:
        return gather(component=component, addresses=list(dict.fromkeys(["127.0.0.1", *addresses])), timeout=timeout)

    connection.get_component_candidates = gather_here_too  # type: ignore[method-assign]
