"""A call over WebRTC, as a browser makes it: Opus in RTP both ways, events over the data channel ``oai-events``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
import numpy as np

from loadtest.address import CallAddress
from loadtest.call import (
    CALL_RATE_HZ,
    SLOT_MS,
    SLOT_SAMPLES,
    CallOver,
    CallPlan,
    EndCause,
    Key,
    MediaRoute,
    Pcm16,
    Voice,
    frames_of,
)
from loadtest.realtime_wire import RealtimeWire
from loadtest.report import MediaReport, SetupReport
from loadtest.rtp_playout import OPUS_CLOCK_HZ, RtpPlayout
from loadtest.webrtc_peer import Peer
from loadtest.webrtc_signalling import Signalling, on_loopback
from loadtest.wire import ServerEvent, decode_event
from streaming.audio.opus import ENCODER_HZ, OpusDecoder, OpusEncoder

_CONNECT_S = 10.0


class CallDecoder:
    """libopus at the call's rate (:class:`loadtest.rtp_playout.Decoding`)."""

    def __init__(self) -> None:
        self._decoder = OpusDecoder(CALL_RATE_HZ)

    def decode(self, payload: bytes) -> Pcm16:
        return self._decoder.decode(payload)

    def recover(self, samples: int, following: bytes | None) -> Pcm16:
        return self._decoder.conceal(samples * OPUS_CLOCK_HZ // CALL_RATE_HZ, following)


def encode_voice(plan: CallPlan) -> Voice:
    """Every frame as the Opus packet that carries it. Blocks, about 0.1 ms a frame."""
    assert ENCODER_HZ == CALL_RATE_HZ
    encoder = OpusEncoder()
    lines: list[list[bytes]] = []
    for turn in plan.turns:
        encoder.reset()
        lines.append([encoder.encode(frame) for frame in frames_of(turn.pcm)])
    encoder.reset()
    silent = np.zeros(SLOT_SAMPLES, dtype=np.int16)
    return Voice(tuple(lines), [encoder.encode(silent) for _ in range(3)][-1])


async def dial_webrtc(plan: CallPlan, address: CallAddress) -> WebRtcWire:
    """Connect and wait for ``session.created``. Raises :class:`CallOver` if that did not come about."""
    voice = await asyncio.to_thread(encode_voice, plan)
    signalling = Signalling(plan, address)
    peer = Peer(on_loopback(address.url))
    try:
        if plan.ephemeral:
            await signalling.take_secret()
        offer = await peer.offer()
        peer.times.began_s = asyncio.get_running_loop().time()
        answer = await signalling.offer(plan.route.offer(offer) if plan.route is not None else offer)
        peer.times.answered_s = asyncio.get_running_loop().time()
        await peer.accept(await _routed(answer, plan.route), address.url, within_s=_CONNECT_S)
        created = await _first_event(peer)
    except BaseException as error:
        if not peer.left:
            await signalling.hang_up()
        await peer.close()
        await signalling.aclose()
        if isinstance(error, CallOver) and error.cause is EndCause.AGENT_HANGUP:
            raise CallOver(EndCause.NO_SESSION, "the server ended the call before its session began") from error
        raise
    return WebRtcWire(peer, signalling, created, voice)


async def _routed(answer: str, route: MediaRoute | None) -> str:
    try:
        return answer if route is None else await route.answer(answer)
    except (ValueError, OSError) as error:
        raise CallOver(EndCause.NO_MEDIA, str(error)) from error


async def _first_event(peer: Peer) -> ServerEvent:
    try:
        async with asyncio.timeout(_CONNECT_S):
            first = decode_event(await peer.receive())
    except (TimeoutError, msgspec.MsgspecError) as error:
        raise CallOver(EndCause.NO_SESSION, "the server did not begin with session.created") from error
    if first.type != "session.created":
        raise CallOver(EndCause.NO_SESSION, f"the server began with {first.type}, not with session.created")
    return first


class WebRtcWire(RealtimeWire):
    """See :class:`loadtest.call.Wire`. The server owns the output buffer: it cuts and truncates by itself."""

    def __init__(self, peer: Peer, signalling: Signalling, created: ServerEvent, voice: Voice) -> None:
        super().__init__(created)
        self.voice = voice
        self.origin_s = asyncio.get_running_loop().time()
        self.setup_ms = (self.origin_s - peer.times.began_s) * 1000
        self.ear = RtpPlayout(self.origin_s, CallDecoder(), rate_hz=CALL_RATE_HZ, slot_ms=SLOT_MS)
        self._peer = peer
        self._signalling = signalling
        peer.listen(self.ear)

    async def send_voice(self, frame: bytes, key: Key | None) -> None:
        if self._peer.over is not None:
            raise self._peer.over
        self._peer.microphone.say(frame)

    async def send_event(self, event: Mapping[str, object]) -> None:
        self._peer.send(msgspec.json.encode(event).decode())

    async def receive(self) -> str | bytes:
        return await self._peer.receive()

    async def hang_up(self) -> str | None:
        try:
            return None if self._peer.left else await self._signalling.hang_up()
        finally:
            await self._peer.close()
            await self._signalling.aclose()

    def setup(self) -> SetupReport | None:
        return self._peer.times.report()

    def media(self) -> MediaReport:
        return self.ear.report()

    def buffer(self) -> None:
        return None
