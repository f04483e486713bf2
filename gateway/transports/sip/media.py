"""One phone call's media: RTP both ways, agreed on by offer and answer. Knows nothing of SIP, calls or settings.

A datagram is put in order, decoded and heard where it comes in; a frame is coded and sent when its time on the grid of
all calls comes (:mod:`gateway.transports.sip.frame_ticker`). There is no task and no timer of its own: what has to
happen at some time (gaps that are given up, reports, the watchdog) happens on the next frame.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import secrets
from collections.abc import Callable

import structlog

from engines.api import Pcm16
from gateway.transports.phone.line import LineError, Quality
from gateway.transports.rtp.packet import is_rtcp
from gateway.transports.rtp.rtcp import FIRST_REPORT_S, Reports
from gateway.transports.rtp.watchdog import Watchdog
from gateway.transports.sip.caller_stream import CallerStream
from gateway.transports.sip.codecs import ENCODE_HZ, Codec, open_codec, usable_codecs
from gateway.transports.sip.frame_ticker import ticker_of
from gateway.transports.sip.latch import Source
from gateway.transports.sip.media_path import MediaPath, Wire
from gateway.transports.sip.media_policy import MediaCause, MediaEvents, RtpPolicy
from gateway.transports.sip.offer_answer import Agreed, Local, OfferAnswer
from gateway.transports.sip.paced_sender import PacedSender
from gateway.transports.sip.rtp_socket import ANYWHERE, PortsExhausted, RtpSocket, bind_pair, route_to
from gateway.transports.sip.sdp import BadSdp
from gateway.transports.sip.telephone_event import MAX_DIGITS, key_packets
from streaming.audio.resample import Resampler

__all__ = ["BadSdp", "MediaEvents", "PortsExhausted", "RtpMedia", "RtpPolicy"]

_log = structlog.get_logger(__name__)

REPORT_S = 5.0
"""RFC 3550, section 6.2; each one up to a quarter sooner or later."""
PACKETS_A_FRAME = 10
"""What one call may take in, in 20 ms (packets of 5 ms, twice over), and up to :data:`MAX_BURST` after a stall."""
MAX_BURST = 250
_NEVER = float("inf")


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
        self._path: MediaPath
        self._sender: PacedSender
        self._stream = CallerStream(events)
        self._codec: Codec | None = None
        self._resampler: Resampler | None = None
        self._reports: Reports | None = None
        self._watchdog: Watchdog | None = None
        self._leave: Callable[[], None] | None = None
        self._started = policy.starts_at_once
        self._sends = False
        self._due_s = _NEVER
        self._next_report_s = _NEVER
        self._over = self._closed = False
        self._budget = MAX_BURST
        self._pressed: asyncio.Future[None] | None = None
        self._refused = 0

    @classmethod
    async def open(cls, policy: RtpPolicy, events: MediaEvents, *, peer_ip: str = "") -> RtpMedia:
        """Takes two ports. ``peer_ip``: who we talk to, which says which of our addresses they can reach.

        Raises :class:`PortsExhausted`, and :class:`OSError` if ``policy.bind_ip`` is none of this machine's.
        """
        bind_ip = policy.bind_ip or "0.0.0.0"
        wildcard = bind_ip in ("0.0.0.0", "::")
        own = route_to(peer_ip or ANYWHERE) or "127.0.0.1" if wildcard else bind_ip
        rng = random.Random(secrets.randbits(64))
        media = cls(policy, events, policy.advertised_ip or own, rng)
        pair = bind_pair(bind_ip, policy.ports, rng)
        media.attach(RtpSocket(pair, media.on_rtp, media.on_rtcp), secrets.token_bytes)
        return media

    def attach(self, wire: Wire, random_bytes: Callable[[int], bytes]) -> None:
        """What packets are sent by; those that come go to :meth:`on_rtp` and :meth:`on_rtcp`."""
        self.port = wire.port
        self._path = MediaPath(wire)
        self._sender = PacedSender(self._path.send_rtp, self._rng)
        codecs = usable_codecs(self._policy.codecs)
        local = Local(self._ip, wire.port, wire.port + 1, codecs, self._policy.srtp)
        self._talks = OfferAnswer(local, self._rng.getrandbits(62), random_bytes)

    # --- offer and answer -----------------------------------------------------------------------------------------

    @property
    def remote_hold(self) -> bool:
        """The far end does not want to hear us."""
        return self._talks.agreed is not None and self._talks.agreed.remote_hold

    @property
    def secured(self) -> bool:
        """Media is SRTP."""
        return self._path.secured

    @property
    def refused(self) -> int:
        """Datagrams that were no media of this call: strangers', forged, malformed, over the limit."""
        return self._refused + self._path.refused

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
        self._listen()
        self._due_s = self._clock()

    def _apply(self) -> None:
        agreed = self._talks.agreed
        assert agreed is not None
        if self._over:
            return
        now_s = self._clock()
        self._path.agree(agreed)
        codec = self._code_by(agreed)
        self._sender.use(agreed.formats[0].payload_type, codec)
        self._stream.agree(agreed, codec, now_s)
        self._sends = agreed.send and self._started
        if not agreed.send:
            self._sender.clear()
            self._keys_done(LineError("on_hold", "The far end has put the call on hold."))
        if self._watchdog is None:
            policy, suspect = self._policy, self._events.suspect
            self._watchdog = Watchdog(policy.suspect_after_s, policy.lost_after_s, now_s, suspect)
        self._watchdog.heard(now_s)
        if self._reports is None:
            cname = f"{self._rng.getrandbits(64):016x}"  # says nothing of who or where we are (RFC 7022)
            self._reports = Reports(self._sender, self._stream.receiver, cname, self._path.send_rtcp, self._clock)
            self._next_report_s = now_s + FIRST_REPORT_S
            self._leave = ticker_of(self._loop).join(self._on_frame)
        self._reports.hear_of(self._stream.receiver)
        self._listen()
        self._due_s = now_s

    def _listen(self) -> None:
        """Not on hold, by whichever side: what comes then is music, or nothing at all."""
        agreed, talks = self._talks.agreed, self._talks
        heard = agreed is not None and agreed.receive and not agreed.remote_hold
        self._stream.listens = heard and not talks.hold and not self._over

    def _code_by(self, agreed: Agreed) -> Codec:
        first, codec = agreed.formats[0], self._codec
        if codec is None or codec.name != first.name:
            if codec is None:
                self.rate_hz = ENCODE_HZ[first.name]
            codec = self._codec = open_codec(first.name)
            same = codec.encode_hz == self.rate_hz
            self._resampler = None if same else Resampler(self.rate_hz, codec.encode_hz)
        return codec

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

    # --- receiving ------------------------------------------------------------------------------------------------

    def on_rtp(self, data: bytes, source: Source) -> None:
        """One datagram as it comes."""
        try:
            if is_rtcp(data) and self._path.mux:
                self._read_report(data, source)
            elif self._stream.ready and self._path.admits_rtp(source) and self._has_budget():
                self._take(data, source)
            else:
                self._refused += 1
        except Exception:  # noqa: BLE001 (a defect ends this call, and no other)
            self._break_down()

    def _take(self, data: bytes, source: Source) -> None:
        packet = self._path.open_rtp(data)
        if packet is None:
            return
        now_s = self._clock()
        if not self._stream.take(packet, now_s, secured=self._path.secured):
            self._refused += 1
            return
        self._path.took_rtp(source)
        if self._stream.too_many_sources:
            self._lose("protocol_error")
            return
        self._alive(now_s)
        due_s = self._stream.receiver.due_s()
        if due_s is not None and due_s < self._due_s:
            self._due_s = due_s

    def on_rtcp(self, data: bytes, source: Source) -> None:
        """One datagram as it comes."""
        try:
            self._read_report(data, source)
        except Exception:  # noqa: BLE001 (a defect ends this call, and no other)
            self._break_down()

    def _has_budget(self) -> bool:
        """Spends it. Strangers have none to spend: they cannot starve the caller."""
        self._budget -= 1
        return self._budget >= 0 and not self._over

    def _read_report(self, data: bytes, source: Source) -> None:
        if not (self._stream.ready and self._path.admits_rtcp(source) and self._has_budget()):
            self._refused += 1
            return
        packet = self._path.open_rtcp(data)
        if packet is None:
            return
        assert self._reports is not None
        now_s = self._clock()
        if not self._reports.receive(packet, now_s):
            self._refused += 1
            return
        self._path.took_rtcp(source)
        if self._stream.receiver.quiet:
            self._alive(now_s)  # it said that it is silent, and now that it lives

    # --- time -----------------------------------------------------------------------------------------------------

    def _on_frame(self, number: int, now_s: float) -> None:
        try:
            self._budget = min(MAX_BURST, max(self._budget, 0) + PACKETS_A_FRAME)
            if now_s >= self._due_s:
                self._keep_house(now_s)
            if self._sends:
                self._sender.tick(number, now_s)
                if self._pressed is not None and not self._sender.pressing:
                    self._keys_done()
        except Exception:  # noqa: BLE001 (a defect ends this call, and no other)
            self._break_down()

    def _keep_house(self, now_s: float) -> None:
        watchdog, reports = self._watchdog, self._reports
        assert watchdog is not None
        assert reports is not None
        due_s = self._stream.on_time(now_s)
        if now_s >= self._next_report_s:
            reports.send(now_s)
            self._next_report_s = now_s + REPORT_S * (0.75 + self._rng.random() / 2)
        if self._stream.listens and self._started:
            if watchdog.is_lost(now_s):
                self._lose("media_timeout")
        else:
            watchdog.heard(now_s)
        self._due_s = min(due_s, self._next_report_s, watchdog.next_s(now_s))

    def _alive(self, now_s: float) -> None:
        assert self._watchdog is not None
        self._watchdog.heard(now_s)

    # --- the end --------------------------------------------------------------------------------------------------

    def quality(self) -> Quality:
        """So far; frames are packets."""
        rtt_ms = self._reports.rtt_ms if self._reports is not None else None
        rtt_ms = None if rtt_ms is None else round(rtt_ms, 1)
        return dataclasses.replace(self._stream.quality(), frames_out=self._sender.packets, round_trip_ms=rtt_ms)

    def _break_down(self) -> None:
        _log.exception("a call's media broke down")
        self._lose("internal_error")

    def _lose(self, cause: MediaCause) -> None:
        if self._over:
            return
        self._stop()
        self._events.lost(cause)

    def _stop(self) -> None:
        self._over = True
        self._listen()
        if self._leave is not None:
            self._leave()
        self._keys_done(LineError("line_down", "The call is over."))

    def _counts(self) -> dict[str, object]:
        return {
            **dataclasses.asdict(self.quality()),
            "codec": self._codec.name if self._codec is not None else None,
            "secured": self.secured,
            "refused": self.refused,
            "malformed": self._stream.receiver.malformed if self._stream.ready else 0,
            "overrun": self._sender.dropped,
            "oversize": self._path.oversize,
            "unsent": self._path.unsent,
        }

    async def close(self) -> None:
        """Give the ports back. Twice is fine."""
        if self._closed:
            return
        self._closed = True
        if self._reports is not None and not self._over:
            self._reports.send_goodbye()
        self._stop()
        _log.info("media of the phone call", **self._counts())
        self._path.close()
