"""A call as a SIP phone makes it: INVITE over UDP or TCP, G.711 in RTP both ways, keys as telephone-events."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace

from loadtest.call import PHONE_RATE_HZ, CallOver, CallPlan, EndCause, Key, Pcm16, PhoneOptions
from loadtest.frame_tables import Encoding, Voice, each_frame, frame_tables
from loadtest.phone_address import SipAddress
from loadtest.phone_wire import PhoneWire
from loadtest.report import MediaReport, SetupReport
from loadtest.rtp_playout import RtpPlayout
from loadtest.script import Interrupt, Press, Repeat, Step
from loadtest.sip.digest import Credentials
from loadtest.sip.link import Link
from loadtest.sip.message import BadMessage, parse_uri
from loadtest.sip.rtp import ENCODERS, RtpPort
from loadtest.sip.sdp import CODECS, EVENT_TYPE, RemoteMedia, answering_direction, describe, read_media
from loadtest.sip.uac import SipCaller, State
from loadtest.ticker import running_clock

_CONNECT_S = 10.0


ENCODINGS = {codec: Encoding(codec, PHONE_RATE_HZ, each_frame(encode)) for codec, encode in ENCODERS.items()}
"""Every frame as the payload that carries it."""


def check_phone(phone: PhoneOptions) -> None:
    """Raises :class:`ValueError` for what no SIP phone can say."""
    if phone.codec is not None and phone.codec not in CODECS:
        raise ValueError(f"a codec is {' or '.join(CODECS)}, not {phone.codec}")
    if phone.caller is not None:
        parse_uri(f"sip:{phone.caller}@host")
    if phone.user is not None and not re.fullmatch(r'[^"\\\x00-\x1f\x7f]+', phone.user):
        raise ValueError("a user's name has no quotes and no control characters")


def _presses(steps: Sequence[Step]) -> bool:
    return any(
        isinstance(step, Press)
        or (isinstance(step, Interrupt) and isinstance(step.what, Press))
        or (isinstance(step, Repeat) and _presses(step.steps))
        for step in steps
    )


async def dial_sip(plan: CallPlan, address: SipAddress) -> SipWire:
    """Call and wait until somebody answers. Raises :class:`CallOver` if nobody does."""
    check_phone(plan.phone)
    wire = SipWire(plan, address)
    try:
        await wire.call()
    except BaseException:
        await wire.hang_up()
        raise
    return wire


class SipWire(PhoneWire):
    """See :class:`loadtest.call.Wire`; and the :class:`~loadtest.sip.uac.Phone` of its own signalling."""

    rate_hz = PHONE_RATE_HZ
    voice: Voice
    ear: RtpPlayout
    _codec: str
    """Of the frames: that of the answer, whatever the server asks for later."""
    setup_ms: float

    def __init__(self, plan: CallPlan, address: SipAddress) -> None:
        super().__init__("")
        self._plan = plan
        self._address = address
        self._codecs = (plan.phone.codec,) if plan.phone.codec else tuple(CODECS)
        self._loop = asyncio.get_running_loop()
        self._clock = running_clock()
        self._link = Link(self._on_message, self._on_lost)
        self._rtp = RtpPort(self._on_first_packet, self._on_key, self._on_unknown)
        self._signalling: SipCaller | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._vanished = self._holding = False
        self._up = asyncio.Event()
        self._ended = asyncio.Event()
        self._session, self._version = secrets.randbits(31), 0
        self._remote: RemoteMedia | None = None
        self._began_s = 0.0
        self._answered_s: float | None = None
        self._first_s: float | None = None

    async def call(self) -> None:
        """Raises :class:`CallOver` if the call does not come about."""
        address, phone = self._address, self._plan.phone
        await frame_tables.voice(ENCODINGS[self._codecs[0]], self._plan.steps)  # the likeliest, before anybody waits
        self._began_s = self._clock()
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._link.open(address.host, address.port, tcp=address.tcp)
                await self._rtp.open(self._link.local[0])
        except (OSError, TimeoutError) as error:
            raise CallOver(EndCause.REFUSED, f"no answer at {address.target}: {error or 'timeout'}") from error
        caller = phone.caller or "caller"
        self._signalling = SipCaller(
            address.target,
            self._link.local,
            self,
            transport="TCP" if address.tcp else "UDP",
            token=lambda: secrets.token_hex(8),
            caller=caller,
            credentials=None if phone.password is None else Credentials(phone.user or caller, phone.password),
        )
        self.log.call_id = self._signalling.call_id
        self._signalling.invite(self._clock())
        self._settle()
        await self._up.wait()
        if self._answered_s is None:
            await self._ended.wait()
        self.check()
        assert self._answered_s is not None
        assert self._remote is not None
        self.setup_ms = (self._answered_s - self._began_s) * 1000
        self.voice = await frame_tables.voice(ENCODINGS[self._codec], self._plan.steps)
        if self._remote.event_type is None and _presses(self._plan.steps):
            self.log.note_error("the server takes no telephone-events: keys are not heard there")

    def encode(self, pcm: Pcm16) -> bytes:
        return ENCODERS[self._codec](pcm)

    def send_voice(self, frame: bytes, key: Key | None) -> None:
        self.check()
        self._rtp.send(frame, key)

    def skip(self, slots: int) -> None:
        self._rtp.skip(slots)

    def hold(self, held: bool) -> None:
        """As a phone's button: music is not played, silence is sent."""
        if self._signalling is not None:
            self._holding = held
            self.ear.pause()
            self._signalling.offer(self._clock())
            self._settle()

    async def vanish(self, linger_s: float) -> None:
        self._vanished = True
        if self._timer is not None:
            self._timer.cancel()
        self._rtp.deafen()
        await asyncio.sleep(linger_s)  # the sockets stay: closed ones would tell the server so (ICMP)
        await self._rtp.close()
        self._link.abort()
        await self._link.close()

    async def hang_up(self) -> str | None:
        signalling = self._signalling
        if signalling is not None and signalling.state is not State.OVER:
            signalling.hang_up(self._clock())
            self._settle()
            await self._ended.wait()  # the signalling's own timers bound it
        if self._timer is not None:
            self._timer.cancel()
        if self._answered_s is not None and self._first_s is None:
            self.log.note_error("no audio came: not one RTP packet")
        self.end(CallOver(EndCause.HANGUP))
        await self._rtp.close()
        await self._link.close()
        return None if signalling is None else signalling.failure

    def setup(self) -> SetupReport | None:
        signalling = self._signalling
        if signalling is None:
            return None
        return SetupReport(
            self._ms(self._answered_s),
            None,
            None,
            self._ms(self._first_s),
            trying_ms=self._ms(signalling.trying_s),
            ringing_ms=self._ms(signalling.ringing_s),
        )

    def media(self) -> MediaReport:
        return self.ear.report()

    def buffer(self) -> None:
        return None

    # --- the phone of the signalling ----------------------------------------------------------------------------------

    def answered(self, sdp: str) -> None:
        remote = read_media(sdp, self._codecs)
        self._talk_to(remote)
        self._answered_s = self._clock()
        self._codec = remote.codec
        self.ear = self._rtp.listen(remote.codec)

    def describe(self, offer: str | None) -> str:
        self._version += 1
        codecs: tuple[str, ...] = self._codecs
        direction = "sendonly" if self._holding else "sendrecv"
        event_type: int | None = EVENT_TYPE
        if offer is None and self._remote is not None:  # no other codec in the middle of a call
            codecs, event_type = (self._remote.codec,), self._remote.event_type
        elif offer is not None:
            remote = read_media(offer, self._codecs)
            self._talk_to(remote)
            codecs, event_type = (remote.codec,), remote.event_type
            direction = answering_direction(remote, holding=self._holding)
        host, port = self._link.local[0], self._rtp.port
        if self._plan.rtp_route is not None:
            host, port = self._plan.rtp_route.ours((host, port))
        return describe(
            host,
            port,
            codecs,
            session=self._session,
            version=self._version,
            direction=direction,
            event_type=event_type,
        )

    def updated(self, sdp: str) -> None:
        self._talk_to(read_media(sdp, self._codecs if self._remote is None else (self._remote.codec,)))

    def referred(self, target: str) -> None:
        self.log.transferred_to = target.partition("<")[2].partition(">")[0] or target

    def _talk_to(self, remote: RemoteMedia) -> None:
        if self._plan.rtp_route is not None:
            host, port = self._plan.rtp_route.theirs((remote.host, remote.port))
            remote = replace(remote, host=host, port=port)
        self._remote = remote
        self._rtp.talk_to(remote)

    # --- what comes ---------------------------------------------------------------------------------------------------

    def _on_message(self, data: bytes) -> None:
        if self._signalling is None or self._vanished:
            return
        try:
            self._signalling.receive(data, self._clock())
        except BadMessage as error:
            self.log.note_malformed(f"malformed message: {error}")
        self._settle()

    def _on_lost(self, error: Exception | None) -> None:
        signalling = self._signalling
        if signalling is None or signalling.state is State.OVER or self._vanished:
            return
        if self._answered_s is None:
            reason = error or "it closed the connection"
            signalling.end(CallOver(EndCause.REFUSED, f"no answer at {self._address.target}: {reason}"))
        else:
            signalling.end(
                CallOver(EndCause.CONNECTION_LOST, f"the connection was lost{f': {error}' if error else ''}")
            )
        self._settle()

    def _on_first_packet(self) -> None:
        self._first_s = self._clock()

    def _on_key(self, digit: str) -> None:
        self.log.keys_heard += digit

    def _on_unknown(self, payload_type: int) -> None:
        self.log.note_error(f"packets of payload type {payload_type} came, which was not offered: they are not heard")

    def _on_timer(self) -> None:
        if self._signalling is not None:
            self._signalling.tick(self._clock())
        self._settle()

    def _settle(self) -> None:
        """Send what the signalling wants sent, and see what it came to."""
        signalling = self._signalling
        assert signalling is not None
        while signalling.outbox:
            self._link.send(signalling.outbox.pop(0))
        if self._timer is not None:
            self._timer.cancel()
        next_s = signalling.next_s
        self._timer = (
            None if next_s is None else self._loop.call_later(max(0.0, next_s - self._clock()), self._on_timer)
        )
        if signalling.state is not State.CALLING:
            self._up.set()
        if signalling.state is State.OVER:
            self.end(signalling.over or CallOver(EndCause.HANGUP))
            self._ended.set()

    def _ms(self, at_s: float | None) -> float | None:
        return None if at_s is None else round((at_s - self._began_s) * 1000, 1)
