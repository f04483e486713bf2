"""One phone call's media: RTP both ways, agreed on by offer and answer. Knows nothing of SIP, calls or settings.

A datagram is put in order, decoded and heard where it comes in; a frame is coded and sent when its time on the grid of
all calls comes (:mod:`gateway.transports.sip.frame_ticker`). There is no task and no timer of its own: what has to
happen at some time (gaps that are given up, reports, the watchdog) happens on the next frame.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable
from typing import Protocol

import pylibsrtp
import structlog

from engines.api import Pcm16
from gateway.transports.phone.line import LineError, Quality
from gateway.transports.rtp.packet import RtpPacket, is_rtcp
from gateway.transports.rtp.receiver import RtpReceiver
from gateway.transports.rtp.rtcp import FIRST_REPORT_S, Reports
from gateway.transports.rtp.watchdog import Verdict, Watchdog
from gateway.transports.sip.codecs import ENCODE_HZ, Codec, open_codec, usable_codecs
from gateway.transports.sip.frame_ticker import ticker_of
from gateway.transports.sip.latch import Latch, Source
from gateway.transports.sip.media_policy import MediaCause, MediaEvents, RtpPolicy
from gateway.transports.sip.offer_answer import Agreed, Local, OfferAnswer
from gateway.transports.sip.paced_sender import PacedSender
from gateway.transports.sip.rtp_socket import PortsExhausted, RtpSocket, bind_pair, route_to
from gateway.transports.sip.sdes import SecureMedia
from gateway.transports.sip.sdp import Address, BadSdp
from gateway.transports.sip.telephone_event import MAX_DIGITS, KeyReader, key_packets
from streaming.audio.resample import Resampler

__all__ = ["BadSdp", "MediaEvents", "PortsExhausted", "RtpMedia", "RtpPolicy"]

_log = structlog.get_logger(__name__)

REPORT_S = 5.0
"""RFC 3550, section 6.2; each one up to a quarter sooner or later."""
QUIET_AFTER_S = 0.2
"""A caller from whom nothing comes for this long is silent: silence is told as it goes by, this far behind."""
FILL_S = 0.1
PACKETS_A_FRAME = 10
"""What one call may take in, in 20 ms (packets of 5 ms, twice over), and up to :data:`MAX_BURST` after a stall."""
MAX_BURST = 250
MAX_SOURCES = 32
"""SSRCs of one peer; libsrtp keeps a state for each."""
_ANYWHERE = "192.0.2.1"
_NEVER = float("inf")


class Wire(Protocol):
    port: int

    def send_rtp(self, data: bytes, to: Source) -> None: ...

    def send_rtcp(self, data: bytes, to: Source) -> None: ...

    def close(self) -> None: ...


class RtpMedia:
    """Open, then :meth:`answer` an offer, or :meth:`offer` and :meth:`accept`, at any time again; media flows from the
    first agreement until :meth:`close`."""

    def __init__(self, policy: RtpPolicy, events: MediaEvents, ip: str, rng: random.Random) -> None:
        self._policy, self._events, self._rng = policy, events, rng
        self._loop = asyncio.get_running_loop()
        self._clock: Callable[[], float] = self._loop.time
        self._ip = ip
        self.rate_hz = 8000
        """Of :meth:`play`; holds from the first agreement on."""
        self._talks: OfferAnswer
        self._wire: Wire
        self._sender = PacedSender(self._send, rng)
        self._codec: Codec | None = None
        self._resampler: Resampler | None = None
        self._receiver: RtpReceiver | None = None
        self._keys = KeyReader(8000)
        self._reports: Reports | None = None
        self._watchdog: Watchdog | None = None
        self._secure: SecureMedia | None = None
        self._latch, self._rtcp_latch = Latch(), Latch()
        self._leave: Callable[[], None] | None = None
        self._started = policy.starts_at_once
        self._sends = False
        self._due_s = _NEVER
        self._next_report_s = _NEVER
        self._filled_s = 0.0
        self._suspect = False
        self._over = False
        self._budget = MAX_BURST
        self._sources: set[int] = set()
        self._heard_ms = 0.0
        self._heard: tuple[object, ...] | None = None
        self._pressed: asyncio.Future[None] | None = None
        self._before = Quality(lost=0, concealed=0, late=0)
        self.refused = 0
        """Datagrams that were no media of this call: strangers', forged, malformed, over the limit."""

    @classmethod
    async def open(cls, policy: RtpPolicy, events: MediaEvents, *, peer_ip: str = "") -> RtpMedia:
        """Takes two ports. ``peer_ip``: who we talk to, which says which of our addresses they can reach.

        Raises :class:`PortsExhausted`, and :class:`OSError` if ``policy.bind_ip`` is none of this machine's.
        """
        wildcard = policy.bind_ip in ("0.0.0.0", "::")
        own = route_to(peer_ip or _ANYWHERE) or "127.0.0.1" if wildcard else policy.bind_ip
        rng = random.Random(secrets.randbits(64))
        media = cls(policy, events, policy.advertised_ip or own, rng)
        pair = bind_pair(policy.bind_ip, policy.ports, rng)
        media.attach(RtpSocket(pair, media.on_rtp, media.on_rtcp), secrets.token_bytes)
        return media

    def attach(self, wire: Wire, random_bytes: Callable[[int], bytes]) -> None:
        """What packets are sent by; those that come go to :meth:`on_rtp` and :meth:`on_rtcp`."""
        self._wire = wire
        codecs = usable_codecs(self._policy.codecs)
        local = Local(self._ip, wire.port, wire.port + 1, codecs, self._policy.srtp)
        self._talks = OfferAnswer(local, self._rng.getrandbits(62), random_bytes)

    # --- offer and answer -----------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        return self._wire.port

    @property
    def remote_hold(self) -> bool:
        """The far end does not want to hear us."""
        return self._talks.agreed is not None and self._talks.agreed.remote_hold

    @property
    def secured(self) -> bool:
        """Media is SRTP."""
        return self._secure is not None

    @property
    def congested(self) -> bool:
        """Audio has to wait: the far end has put us on hold, or keys are being sent."""
        return self.remote_hold or self._sender.pressing

    def offer(self) -> str:
        """The first, or the next one after :meth:`hold`."""
        return self._talks.offer()

    def answer(self, offer_sdp: str) -> str:
        """Raises :class:`BadSdp`; what was agreed before stands then."""
        answer = self._talks.answer(offer_sdp)
        self._apply()
        return answer

    def accept(self, answer_sdp: str) -> None:
        """The answer to our offer. Raises :class:`BadSdp`; what was agreed before stands then."""
        self._talks.accept(answer_sdp)
        self._apply()

    def start(self) -> None:
        """The call is answered: media goes both ways from now on. Twice is fine."""
        if self._started:
            return
        self._started = True
        if self._talks.agreed is not None:
            self._apply()

    async def hold(self, on: bool) -> None:
        """Whether we do not want to hear the far end: said by the next :meth:`offer`, and heeded at once."""
        self._talks.hold = on

    def _apply(self) -> None:
        agreed = self._talks.agreed
        assert agreed is not None
        if self._over:
            return
        now_s = self._clock()
        self._secure_by(agreed)
        self._code_by(agreed)
        self._latch.announce(agreed.remote)
        self._rtcp_latch.announce(agreed.remote_rtcp)
        self._sends = agreed.send and self._started
        if not agreed.send:
            self._sender.clear()
            self._keys_done(LineError("on_hold", "The far end has put the call on hold."))
        self._filled_s = now_s
        self._watchdog = Watchdog(self._policy.suspect_after_s, self._policy.lost_after_s, now_s)
        if self._leave is None:
            self._next_report_s = now_s + FIRST_REPORT_S
            self._leave = ticker_of(self._loop).join(self._on_frame)
        self._due_s = now_s

    def _secure_by(self, agreed: Agreed) -> None:
        ours, theirs = agreed.our_crypto, agreed.their_crypto
        if ours is None or theirs is None:
            self._secure = None
        elif self._secure is None or not self._secure.has(ours, theirs):
            self._secure = SecureMedia(ours, theirs)
            self._sources.clear()

    def _code_by(self, agreed: Agreed) -> None:
        first, codec = agreed.formats[0], self._codec
        if codec is None or codec.name != first.name:
            if codec is None:
                self.rate_hz = ENCODE_HZ[first.name]
            codec = self._codec = open_codec(first.name)
            same = codec.encode_hz == self.rate_hz
            self._resampler = None if same else Resampler(self.rate_hz, codec.encode_hz)
        self._sender.use(first.payload_type, codec)
        heard = (agreed.formats, agreed.keys, agreed.comfort_noise)
        if heard != self._heard:
            self._heard = heard
            self._listen_to(agreed, codec)

    def _listen_to(self, agreed: Agreed, codec: Codec) -> None:
        first = agreed.formats[0]
        decodings = {one.payload_type: codec if one is first else open_codec(one.name) for one in agreed.formats}
        events: dict[int, Callable[[RtpPacket], None]] = {}
        if agreed.keys is not None:
            self._keys = KeyReader(agreed.keys.clock_hz)
            events[agreed.keys.payload_type] = self._on_key
        if agreed.comfort_noise is not None:
            events[agreed.comfort_noise] = self._on_comfort_noise
        self._before = self.quality()
        self._receiver = RtpReceiver(decodings, self._hear, events)
        if self._reports is None:
            cname = f"{self._rng.getrandbits(64):016x}"  # says nothing of who or where we are (RFC 7022)
            self._reports = Reports(self._sender, self._receiver, cname, self._send_rtcp, self._clock)
        else:
            self._reports.hear_of(self._receiver)

    # --- sending --------------------------------------------------------------------------------------------------

    def play(self, pcm: Pcm16) -> None:
        """20 ms at :attr:`rate_hz`, sent with the next frames of the grid."""
        if self._over or not self._sends:
            return
        self._sender.play(pcm if self._resampler is None else self._resampler.process(pcm))

    def clear(self) -> bool:
        """Drop what has not left. Returns whether there was any."""
        if self._resampler is not None:
            self._resampler.reset()
        return self._sender.clear()

    async def send_dtmf(self, digits: str) -> None:
        """Returns when they were sent. Raises :class:`LineError`: ``no_keys`` (not agreed on: use INFO), ``bad_keys``,
        ``on_hold``, ``busy`` or ``line_down``."""
        agreed = self._talks.agreed
        if self._over or agreed is None:
            raise LineError("line_down", "The call has no media.")
        if agreed.keys is None:
            raise LineError("no_keys", "The far end takes no keys as RTP events.")
        if not self._sends:
            raise LineError("on_hold", "The far end has put the call on hold.")
        if self._pressed is not None:
            raise LineError("busy", "Other keys are being sent.")
        if len(digits) > MAX_DIGITS:
            raise LineError("bad_keys", f"At most {MAX_DIGITS} keys can be sent at once.")
        try:
            packets = key_packets(digits, agreed.keys.clock_hz)
        except ValueError:
            raise LineError("bad_keys", "Keys are 0 to 9, *, # and A to D.") from None
        self._sender.press(agreed.keys.payload_type, packets)
        self._pressed = self._loop.create_future()
        try:
            await self._pressed
        finally:
            self._pressed = None
            self._sender.release()

    def _keys_done(self, error: LineError | None = None) -> None:
        if self._pressed is None or self._pressed.done():
            return
        if error is not None:
            self._pressed.set_exception(error)
        else:
            self._pressed.set_result(None)

    def _send(self, packet: bytes) -> None:
        to = self._latch.to
        if to is None:
            return
        if self._secure is not None:
            try:
                packet = self._secure.protect(packet)
            except pylibsrtp.Error:
                self.refused += 1
                return
        self._wire.send_rtp(packet, to)

    def _send_rtcp(self, packet: bytes) -> None:
        agreed = self._talks.agreed
        assert agreed is not None
        to = self._rtcp_latch.to if not agreed.rtcp_mux else self._latch.to
        if to is None:
            return
        if self._secure is not None:
            try:
                packet = self._secure.protect_rtcp(packet)
            except pylibsrtp.Error:
                self.refused += 1
                return
        (self._wire.send_rtp if agreed.rtcp_mux else self._wire.send_rtcp)(packet, to)

    # --- receiving ------------------------------------------------------------------------------------------------

    def on_rtp(self, data: bytes, source: Source) -> None:
        """One datagram as it comes."""
        receiver = self._receiver
        if receiver is None or self._over or self._budget <= 0 or not self._latch.admits(source):
            self.refused += 1
            return
        self._budget -= 1
        if is_rtcp(data):
            agreed = self._talks.agreed
            if agreed is not None and agreed.rtcp_mux:
                self._read_report(data, source, self._latch)
            return
        if self._secure is not None:
            try:
                data = self._secure.unprotect(data)
            except pylibsrtp.Error:
                self.refused += 1
                return
        now_s = self._clock()
        if not receiver.receive(data, now_s):
            self.refused += 1
            return
        if self._latch.take(source):
            self._follow(source)
        if receiver.ssrc not in self._sources:
            self._is_from(receiver.ssrc)
        self._alive(now_s)
        due_s = receiver.due_s()
        if due_s is not None and due_s < self._due_s:
            self._due_s = due_s

    def _follow(self, source: Source) -> None:
        """Reports go where media comes from, one port above, as long as none came from elsewhere."""
        agreed = self._talks.agreed
        assert agreed is not None
        if source != (agreed.remote.ip, agreed.remote.port) and self._rtcp_latch.source is None:
            self._rtcp_latch.announce(Address(source[0], source[1] + 1))

    def on_rtcp(self, data: bytes, source: Source) -> None:
        if self._over or self._reports is None or self._budget <= 0:
            self.refused += 1
            return
        media = self._latch.source
        if not self._rtcp_latch.admits(source) or (media is not None and source[0] != media[0]):
            self.refused += 1
            return
        self._budget -= 1
        self._read_report(data, source, self._rtcp_latch)

    def _read_report(self, data: bytes, source: Source, latch: Latch) -> None:
        assert self._reports is not None
        assert self._receiver is not None
        if self._secure is not None:
            try:
                data = self._secure.unprotect_rtcp(data)
            except pylibsrtp.Error:
                self.refused += 1
                return
        now_s = self._clock()
        if not self._reports.receive(data, now_s):
            self.refused += 1
            return
        latch.take(source)
        if self._receiver.quiet and self._watchdog is not None:
            self._alive(now_s)  # it said that it is silent, and that it lives

    def _is_from(self, ssrc: int | None) -> None:
        if ssrc is None:
            return
        self._sources.add(ssrc)
        self._keys.forget()
        if len(self._sources) > MAX_SOURCES:
            self._lose("protocol_error")

    def _hear(self, pcm: Pcm16) -> None:
        agreed, receiver = self._talks.agreed, self._receiver
        if self._over or receiver is None or agreed is None or not agreed.receive or self._talks.hold:
            return
        rate_hz = receiver.decoding.rate_hz
        at_ms = self._heard_ms
        self._heard_ms = at_ms + len(pcm) * 1000 / rate_hz
        self._events.audio(pcm, rate_hz, at_ms)

    def _on_key(self, packet: RtpPacket) -> None:
        key = self._keys.read(packet.payload, packet.timestamp, marker=packet.marker)
        if key is not None and not self._over:
            self._events.dtmf(key)

    def _on_comfort_noise(self, packet: RtpPacket) -> None:
        assert self._receiver is not None
        self._receiver.quiet = True

    # --- time -----------------------------------------------------------------------------------------------------

    def _on_frame(self, number: int, now_s: float) -> None:
        try:
            self._budget = min(MAX_BURST, self._budget + PACKETS_A_FRAME)
            if now_s >= self._due_s:
                self._keep_house(now_s)
            if self._sends:
                self._sender.tick(number, now_s)
                if self._pressed is not None and not self._sender.pressing:
                    self._keys_done()
        except Exception:  # noqa: BLE001 (a defect ends this call, and no other)
            _log.exception("a call's media broke down")
            self._lose("internal_error")

    def _keep_house(self, now_s: float) -> None:
        receiver, watchdog, agreed = self._receiver, self._watchdog, self._talks.agreed
        assert receiver is not None
        assert watchdog is not None
        assert agreed is not None
        gap_s = receiver.due_s()
        if gap_s is not None and now_s >= gap_s:
            receiver.expire(now_s)
        if now_s >= self._next_report_s and self._reports is not None:
            self._reports.send(now_s)
            self._next_report_s = now_s + REPORT_S * (0.75 + self._rng.random() / 2)
        due = [self._next_report_s]
        if agreed.receive and self._started and not self._talks.hold:
            self._fill(receiver, now_s)
            due.append(max(now_s + FILL_S, (receiver.heard_s or 0.0) + QUIET_AFTER_S))
            self._watch(watchdog, now_s)
            due.append(watchdog.next_s(now_s))
        else:
            watchdog.heard(now_s)
            self._filled_s = now_s
        gap_s = receiver.due_s()
        self._due_s = min(due) if gap_s is None else min(*due, gap_s)

    def _fill(self, receiver: RtpReceiver, now_s: float) -> None:
        """Nothing comes: to whoever listens for the end of a turn that is silence, and not nothing."""
        heard_s = receiver.heard_s
        if heard_s is None or now_s - heard_s < QUIET_AFTER_S:
            return
        begins_s, until_s = max(self._filled_s, heard_s + 0.02), now_s - FILL_S
        if until_s > begins_s:
            receiver.fill(int((until_s - begins_s) * receiver.decoding.clock_hz), now_s)
            self._filled_s = until_s

    def _alive(self, now_s: float) -> None:
        assert self._watchdog is not None
        self._watchdog.heard(now_s)
        if self._suspect:
            self._suspect = False
            self._events.suspect(False)

    def _watch(self, watchdog: Watchdog, now_s: float) -> None:
        verdict = watchdog.verdict(now_s)
        if verdict is Verdict.LOST:
            self._lose("media_timeout")
        elif verdict is Verdict.SUSPECT and not self._suspect:
            self._suspect = True
            self._events.suspect(True)

    # --- the end --------------------------------------------------------------------------------------------------

    def quality(self) -> Quality:
        before, receiver = self._before, self._receiver
        if receiver is None:
            return before
        counts = receiver.counts
        frame_ticks = receiver.decoding.clock_hz // 50
        return Quality(
            frames_in=before.frames_in + counts.received,
            frames_out=self._sender.packets,
            lost=(before.lost or 0) + counts.lost,
            concealed=(before.concealed or 0) + -(-receiver.concealed_ticks // frame_ticks),
            late=(before.late or 0) + counts.late,
            jitter_ms=round(receiver.jitter_ms, 1),
            round_trip_ms=self._reports.rtt_ms if self._reports is not None else None,
        )

    def _lose(self, cause: MediaCause) -> None:
        if self._over:
            return
        self._stop()
        self._events.lost(cause)

    def _stop(self) -> None:
        self._over = True
        if self._leave is not None:
            self._leave()
        self._keys_done(LineError("line_down", "The call is over."))

    async def close(self) -> None:
        """Give the ports back. Twice is fine."""
        if self._reports is not None and not self._over:
            self._reports.send_goodbye()
        self._stop()
        self._wire.close()
