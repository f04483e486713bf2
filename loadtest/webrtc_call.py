"""A call over WebRTC, as a browser makes it: Opus in RTP both ways, events over the data channel ``oai-events``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from loadtest.address import CallAddress
from loadtest.call import CALL_RATE_HZ, CallOver, CallPlan, EndCause, Key, MediaRoute, Pcm16
from loadtest.frame_tables import Encoding, Voice, frame_tables
from loadtest.realtime_wire import RealtimeWire, session_created
from loadtest.report import MediaReport, SetupReport
from loadtest.rtp_playout import OPUS_CLOCK_HZ, RtpPlayout
from loadtest.ticker import running_clock
from loadtest.tls import tls_context
from loadtest.webrtc_peer import Peer
from loadtest.webrtc_signalling import Signalling, on_loopback
from loadtest.wire import ServerEvent
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


def _encode_line(frames: Sequence[Pcm16]) -> Sequence[bytes]:
    encoder = OpusEncoder()
    return [encoder.encode(frame) for frame in frames]


assert ENCODER_HZ == CALL_RATE_HZ
ENCODING = Encoding("opus", CALL_RATE_HZ, _encode_line)
"""Every frame as the Opus packet that carries it; about 0.1 ms a frame."""


async def dial_webrtc(plan: CallPlan, address: CallAddress) -> WebRtcWire:
    """Connect and wait for ``session.created``. Raises :class:`CallOver` if that did not come about."""
    voice = await frame_tables.voice(ENCODING, plan.steps)
    signalling = Signalling(plan, address, await tls_context())
    peer = Peer(on_loopback(address.url))
    try:
        if plan.ephemeral:
            await signalling.take_secret()
        offer = await peer.offer()
        peer.times.began_s = running_clock()()
        answer = await signalling.offer(plan.route.offer(offer) if plan.route is not None else offer)
        peer.times.answered_s = running_clock()()
        await peer.accept(await _routed(answer, plan.route), address.url, within_s=_CONNECT_S)
        created = await session_created(peer.receive, _CONNECT_S)
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


class WebRtcWire(RealtimeWire):
    """See :class:`loadtest.call.Wire`. The server owns the output buffer: it cuts and truncates by itself."""

    def __init__(self, peer: Peer, signalling: Signalling, created: ServerEvent, voice: Voice) -> None:
        super().__init__(created)
        self.voice = voice
        self.setup_ms = (running_clock()() - peer.times.began_s) * 1000
        self.ear = RtpPlayout(None, CallDecoder(), rate_hz=CALL_RATE_HZ)
        self._encoder: OpusEncoder | None = None
        self._peer = peer
        self._signalling = signalling
        peer.listen(self.ear)

    def attend(self, turn: Callable[[], int], on_over: Callable[[CallOver], None]) -> None:
        self._turn = turn
        self._peer.attend(self.on_message, on_over)

    def encode(self, pcm: Pcm16) -> bytes:
        self._encoder = self._encoder or OpusEncoder()
        return self._encoder.encode(pcm)

    def send_voice(self, frame: bytes, key: Key | None) -> None:
        if self._peer.over is not None:
            raise self._peer.over
        self._peer.microphone.say(frame)

    def skip(self, slots: int) -> None:
        self._peer.microphone.skip(slots)

    def send_event(self, event: Mapping[str, object]) -> None:
        self._peer.send(msgspec.json.encode(event).decode())

    async def vanish(self, linger_s: float) -> None:
        await self._peer.vanish(linger_s)
        await self._signalling.aclose()

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
