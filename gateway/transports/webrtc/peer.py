"""One browser: its media over SRTP, its events over a data channel. Knows nothing of calls, HTTP or settings.

Built on aiortc's DTLS and SCTP and on aioice, not on aiortc's ``RTCPeerConnection``: its receivers hold audio back for
80 ms and lose more of it for good with each packet lost, its senders code stereo in a thread, frame by frame. Media
goes past aiortc's tasks both ways: a datagram is decrypted, put in order, decoded and heard where it arrives, and a
frame is coded, encrypted and sent where it is played.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pylibsrtp
import structlog
from aiortc import RTCCertificate, RTCDtlsFingerprint, RTCDtlsParameters, RTCDtlsTransport
from aiortc.rtp import is_rtcp

from engines.api import Pcm16
from gateway.transports.rtp.decoding import OpusDecoding
from gateway.transports.rtp.receiver import RtpReceiver
from gateway.transports.rtp.rtcp import FIRST_REPORT_S, REPORT_S, Reports
from gateway.transports.rtp.watchdog import Watchdog
from gateway.transports.webrtc.candidates import (
    IceConnection,
    IceServer,
    MediaPolicy,
    NoMediaPort,
    remote_candidates,
)
from gateway.transports.webrtc.data_channel import DataChannel
from gateway.transports.webrtc.ice_link import IceLink, run_through
from gateway.transports.webrtc.named_timers import NamedTimers
from gateway.transports.webrtc.offer import BadOffer, Local, Offer, parse_offer, write_answer
from gateway.transports.webrtc.peer_events import LostCause, MediaStats, PeerEvents
from gateway.transports.webrtc.rtp_sender import RtpSender

__all__ = [
    "BadOffer",
    "IceServer",
    "LostCause",
    "MediaPeer",
    "MediaPolicy",
    "MediaStats",
    "NoMediaPort",
    "PeerEvents",
]

_log = structlog.get_logger(__name__)

GOODBYE_S = 1.0
"""Silence after an RTCP BYE: the peer did not only change its microphone."""
CLOSE_S = 5.0
"""What a TURN server gets to take a relay back; everything else is let go of at once."""
MAX_SOURCES = 32
"""SSRCs of one peer. A browser has one, and another after its microphone was changed; libsrtp keeps a state for each,
and looks through all of them for every packet."""
QUIET_FILL_S = 0.1
"""How often the silence of a peer that sends none (DTX) is told; it stays this far behind the clock, and a bit."""


class MediaPeer:
    """``answer`` once, then play and send until ``close``, which may be called at any time, and twice."""

    def __init__(self, policy: MediaPolicy, events: PeerEvents, *, clock: Callable[[], float] | None = None) -> None:
        self._policy = policy
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._clock = clock if clock is not None else self._loop.time
        self._link: IceLink | None = None
        self._dtls: RTCDtlsTransport | None = None
        self._channel: DataChannel | None = None
        self._receiver: RtpReceiver | None = None
        self._sender: RtpSender | None = None
        self._reports: Reports | None = None
        self._watchdog: Watchdog | None = None
        self._setup: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._timers = NamedTimers(self._loop, self._clock)
        self._connected = False
        self._over = False
        """Nothing is told any more."""
        self._rejected = 0
        self._sources: set[bytes] = set()
        self._last_stats = MediaStats(0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, None, 0)
        self._quiet_told_s = 0.0

    async def answer(self, offer_sdp: str) -> str:
        """The answer to an offer; media connects behind it, and :meth:`PeerEvents.connected` tells when.

        Raises :class:`BadOffer`, and :class:`NoMediaPort` if this host has nothing left to listen at; nothing
        is left behind then.
        """
        if self._link is not None or self._over:
            raise RuntimeError("a peer answers one offer")
        offer = parse_offer(offer_sdp)
        try:
            self._link = IceLink(IceConnection(self._policy))
            await self._link.ice.gather_candidates()
            answer = self._prepare(offer, self._link)
        except BaseException:
            await self.close()
            raise
        self._setup = self._loop.create_task(self._connect(offer), name="webrtc-setup")
        return answer

    def play(self, pcm: Pcm16) -> None:
        """One 20 ms frame, mono, 24 kHz: coded and sent at once. Before the connection is up it is dropped."""
        if self._sender is not None and self._connected:
            self._sender.play(pcm)

    def clear(self) -> None:
        """The reply was cut: the next frame begins another talk spurt."""
        if self._sender is not None and self._connected:
            self._sender.clear()

    def send(self, text: str) -> bool:
        """One event. False: the channel is not open, too much waits, or the peer does not take messages that long."""
        return self._channel is not None and self._channel.send(text)

    @property
    def buffered_bytes(self) -> int:
        return self._channel.buffered_bytes if self._channel is not None else 0

    def stats(self) -> MediaStats:
        receiver, sender, reports = self._receiver, self._sender, self._reports
        if receiver is None or sender is None or reports is None:
            return self._last_stats
        counts = receiver.counts
        return MediaStats(
            packets_in=counts.received,
            packets_out=sender.packets,
            lost=counts.lost,
            late=counts.late,
            reordered=counts.reordered,
            duplicates=counts.duplicates,
            malformed=receiver.malformed + self._rejected,
            resyncs=counts.resyncs,
            concealed_ms=receiver.concealed_ticks // 48,
            jitter_ms=round(receiver.jitter_ms, 1),
            rtt_ms=None if reports.rtt_ms is None else round(reports.rtt_ms, 1),
            far_lost=reports.far_lost,
        )

    async def close(self) -> None:
        """Say goodbye and let go of everything."""
        if self._closing is None:
            self._over = True
            self._timers.stop()
            self._closing = self._loop.create_task(self._close(), name="webrtc-close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._setup is not None:
            self._setup.cancel()
            await asyncio.wait({self._setup})
        if self._sender is not None:
            self._sender.close()
        if self._reports is not None and self._connected:
            self._reports.send_goodbye()
        if self._channel is not None:
            await self._channel.stop()
        if self._dtls is not None:
            reading = self._dtls._task
            await self._dtls.stop()
            if reading is not None:
                await asyncio.gather(reading, return_exceptions=True)
            self._dtls.remove_all_listeners()
        if self._link is not None:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self._link.ice.close()
            except TimeoutError:
                _log.warning("a TURN server does not let go of a relay")
        self._let_go()

    def _let_go(self) -> None:
        """The parts know each other, and hold codecs and TLS states outside of Python's heap: left to the collector,
        which sees only how few objects that is, they would pile up."""
        self._last_stats = self.stats()
        self._setup = None
        self._sender = self._receiver = self._reports = None
        self._channel = self._dtls = self._link = None

    def _prepare(self, offer: Offer, link: IceLink) -> str:
        """Everything that the answer names."""
        cname = secrets.token_hex(8)
        certificate = RTCCertificate.generateCertificate()
        self._dtls = RTCDtlsTransport(cast(Any, link), [certificate])
        self._dtls._set_role("server" if offer.setup == "active" else "client")
        self._dtls.on("statechange", self._on_dtls_state)
        if offer.channel is not None:
            self._channel = DataChannel(self._dtls, _ChannelListener(self))
        self._receiver = RtpReceiver({offer.opus: OpusDecoding()}, self._hear)
        self._sender = RtpSender(offer.opus, self._send_rtp, self._clock)
        self._reports = Reports(self._sender, self._receiver, cname, self._send_rtp, self._clock)
        fingerprints = {print_.algorithm: print_.value for print_ in certificate.getFingerprints()}
        local = Local(
            session_id=secrets.randbits(62),
            ufrag=link.ice.local_username,
            pwd=link.ice.local_password,
            fingerprint=fingerprints["sha-256"],
            setup="passive" if offer.setup == "active" else "active",
            candidates=link.ice.answer_candidates(),
            ssrc=self._sender.ssrc,
            cname=cname,
            sctp_port=self._channel.port if self._channel is not None else 5000,
            max_message_bytes=self._channel.max_message_bytes if self._channel is not None else 0,
        )
        return write_answer(offer, local)

    async def _connect(self, offer: Offer) -> None:
        try:
            async with asyncio.timeout(self._policy.setup_s):
                await self._establish(offer)
            await self._start(offer)
        except (TimeoutError, ConnectionError):
            self._lose("connection_lost" if self._connected else "never_connected")
        except Exception:  # noqa: BLE001 (of whatever kind: a call whose set-up ends without a word would never end)
            _log.exception("a peer could not be connected")
            self._lose("protocol_error")

    async def _establish(self, offer: Offer) -> None:
        """Raises :class:`ConnectionError`."""
        assert self._link is not None
        assert self._dtls is not None
        ice = self._link.ice
        ice.remote_username, ice.remote_password = offer.ufrag, offer.pwd
        ice.remote_is_lite = offer.ice_lite
        ice.ice_controlling = offer.ice_lite  # RFC 8445, section 6.1.1
        for candidate in remote_candidates(offer.candidates, self._policy):
            await ice.add_remote_candidate(candidate)
        # No end of candidates is told: those of the peer that were left out may still show up as the source of its own
        # checks.
        await ice.connect()
        prints = [RTCDtlsFingerprint(algorithm, value) for algorithm, value in offer.fingerprints]
        await self._dtls.start(RTCDtlsParameters(fingerprints=prints, role="auto"))
        if self._dtls.state != "connected":
            raise ConnectionError("no DTLS, or not with the certificate that was offered")

    async def _start(self, offer: Offer) -> None:
        assert self._link is not None
        assert self._sender is not None
        now_s = self._clock()
        self._connected = True
        policy, suspect = self._policy, self._events.suspect
        self._watchdog = Watchdog(policy.suspect_after_s, policy.lost_after_s, now_s, suspect)
        self._events.connected()
        self._link.ice.hear(self._on_media)
        if offer.direction in ("sendrecv", "recvonly"):
            self._sender.start()
        if offer.direction == "recvonly":  # no RTP will tell that it lives, but its consent checks do
            self._link.ice.on_check = self._on_check
        self._timers.at("reports", now_s + FIRST_REPORT_S, self._report)
        self._watch()
        if self._channel is not None:
            await self._channel.start(offer.sctp_port, offer.max_message_bytes)

    # media

    def _on_media(self, data: bytes) -> None:
        """One datagram of SRTP or SRTCP, as it comes in."""
        dtls, receiver, reports = self._dtls, self._receiver, self._reports
        if self._over or dtls is None or receiver is None or reports is None:
            return
        now_s = self._clock()
        try:
            if is_rtcp(data):
                reports.receive(dtls._rx_srtp.unprotect_rtcp(data), now_s)
                self._is_from(data[4:8])
                if reports.goodbye and "goodbye" not in self._timers:
                    self._timers.at("goodbye", now_s + GOODBYE_S, partial(self._take_leave, now_s))
                return
            packet = dtls._rx_srtp.unprotect(data)
        except pylibsrtp.Error:  # forged, sent twice, or of another session
            self._rejected += 1
            return
        self._is_from(data[8:12])
        receiver.receive(packet, now_s)
        self._heard(receiver, now_s)

    def _is_from(self, source: bytes) -> None:
        self._sources.add(source)
        if len(self._sources) > MAX_SOURCES:
            self._lose("protocol_error")

    def _heard(self, receiver: RtpReceiver, now_s: float) -> None:
        if self._watchdog is not None:
            self._watchdog.heard(now_s)
        due_s = receiver.due_s()
        if due_s is not None and "gap" not in self._timers:
            self._timers.at("gap", due_s, self._give_up)
        if receiver.quiet and "quiet" not in self._timers:
            self._quiet_told_s = now_s
            self._timers.at("quiet", now_s + 2 * QUIET_FILL_S, self._fill_quiet)

    def _hear(self, pcm: Pcm16) -> None:
        if not self._over:
            self._events.audio(pcm)

    def _give_up(self) -> None:
        """A packet was waited for long enough."""
        assert self._receiver is not None
        self._receiver.expire(self._clock())
        due_s = self._receiver.due_s()
        if due_s is not None:
            self._timers.at("gap", due_s, self._give_up)

    def _fill_quiet(self) -> None:
        """A peer that sends nothing while its caller is silent must not look like one whose packets are late."""
        receiver, now_s = self._receiver, self._clock()
        if receiver is None or not receiver.quiet or receiver.heard_s is None:
            return
        begins_s = max(self._quiet_told_s, receiver.heard_s + 0.02)
        until_s = now_s - QUIET_FILL_S
        if until_s > begins_s and not (self._watchdog is not None and self._watchdog.suspicious):
            receiver.fill(int((until_s - begins_s) * 48_000), now_s)
            self._quiet_told_s = until_s
        self._timers.at("quiet", now_s + QUIET_FILL_S, self._fill_quiet)

    def _send_rtp(self, data: bytes) -> None:
        """RTP or RTCP, encrypted and sent within this call."""
        dtls = self._dtls
        if dtls is None or not self._connected:
            return
        with contextlib.suppress(OSError, pylibsrtp.Error):  # the connection goes down, and its reader tells
            run_through(dtls._send_rtp(data))

    def _report(self) -> None:
        assert self._reports is not None
        now_s = self._clock()
        self._reports.send(now_s)
        self._timers.at("reports", now_s + REPORT_S * (0.75 + secrets.randbelow(500) / 1000), self._report)

    # liveness

    def _on_check(self) -> None:
        if not self._over and self._watchdog is not None:
            self._watchdog.heard(self._clock())

    def _take_leave(self, said_s: float) -> None:
        """The peer said that its stream ends."""
        assert self._receiver is not None
        if (self._receiver.heard_s or 0.0) <= said_s:
            self._lose("peer_closed")

    def _watch(self) -> None:
        assert self._watchdog is not None
        now_s = self._clock()
        if self._watchdog.is_lost(now_s):
            self._lose("media_timeout")
            return
        self._timers.at("watch", self._watchdog.next_s(now_s), self._watch)

    def _on_dtls_state(self) -> None:
        assert self._dtls is not None
        assert self._link is not None
        if self._dtls.state == "closed" and self._connected:
            self._lose("connection_lost" if self._link.ice.lost else "peer_closed")

    def _lose(self, cause: LostCause) -> None:
        if self._over:
            return
        self._over = True
        self._timers.stop()
        self._events.lost(cause)


class _ChannelListener:
    """The channel's word to the peer's events."""

    def __init__(self, peer: MediaPeer) -> None:
        self._peer = peer

    def opened(self) -> None:
        if not self._peer._over:
            self._peer._events.channel_open()

    def closed(self) -> None:
        self._peer._lose("peer_closed")

    def text(self, text: str) -> None:
        if not self._peer._over:
            self._peer._events.message(text)

    def binary(self) -> None:
        if not self._peer._over:
            self._peer._events.binary()

    def drained(self) -> None:
        if not self._peer._over:
            self._peer._events.writable()

    def broken(self) -> None:
        self._peer._lose("protocol_error")
