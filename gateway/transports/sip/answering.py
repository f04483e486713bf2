"""Answers one call: its place, its media, its agent, then the call itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import TYPE_CHECKING

import structlog

from gateway.agents.agent import UnknownAgent
from gateway.call_setup import CallNotSetUp
from gateway.switchboard import Admission, Refused
from gateway.transports.phone.line import Incoming
from gateway.transports.phone.phone_call import PhoneCall
from gateway.transports.phone.routing import choose_agent
from gateway.transports.sip.address import BadSyntax, parse_address, parse_uri
from gateway.transports.sip.bodies import why
from gateway.transports.sip.incoming import IncomingSession
from gateway.transports.sip.line import SipLine
from gateway.transports.sip.media import RtpMedia
from gateway.transports.sip.media_policy import RtpPolicy
from gateway.transports.sip.offer_answer import Srtp
from gateway.transports.sip.rtp_socket import PortsExhausted
from gateway.transports.sip.sdp import BadSdp

if TYPE_CHECKING:
    from gateway.transports.sip.server import SipServer

_log = structlog.get_logger(__name__)

RETRY_S = {"draining": 60, "engines_down": 30, "overloaded": 10}
DEFAULT_RETRY_S = 5
MAX_NAME = 128


class Answering:
    def __init__(self, server: SipServer) -> None:
        self._server = server
        self._gateway = server.gateway

    async def answer(self, session: IncomingSession, line: SipLine) -> None:
        """From the INVITE to the end of the call. Nothing is left of it then."""
        host = session.caller.host
        most = self._server.settings.calls_per_source
        if most is not None and self._server.calls_of(host) >= most:
            self._server.count("sip_source_full")
            session.reject(486, headers=[("retry-after", str(DEFAULT_RETRY_S))])
            return
        with self._server.counted(host):
            try:
                await self._admit(session, line)
            finally:
                await self._free(session, line)

    async def _admit(self, session: IncomingSession, line: SipLine) -> None:
        known = self._server.trusts(session.caller.host)
        is_stranger = self._server.settings.anyone and not known  # otherwise it came with a password
        trunks = self._server.settings.trunks.values()
        incoming = incoming_of(session, trusted=known, own_names=[trunk.user for trunk in trunks])
        try:
            choose_agent(self._gateway, incoming)
            admission = await self._gateway.switchboard.admit(
                "sip", unconnected_from=session.caller.host if is_stranger else None
            )
        except UnknownAgent:
            session.reject(404)
            return
        except Refused as refused:
            retry_s = RETRY_S.get(refused.code, DEFAULT_RETRY_S)
            session.reject(503, headers=[("retry-after", str(retry_s))])
            return
        with admission:
            structlog.contextvars.bind_contextvars(call=admission.call_id)
            try:
                call = await self._set_up(session, line, incoming, admission)
            except BadSdp as error:
                session.reject(error.status, headers=why(error))
            except UnknownAgent:
                session.reject(404)
            except (PortsExhausted, CallNotSetUp, OSError) as error:
                self._server.count("sip_not_set_up")
                _log.warning("a call could not be set up", reason=type(error).__name__)
                session.reject(503, headers=[("retry-after", str(DEFAULT_RETRY_S))])
                session.hang_up("not_set_up")
            else:
                if call is not None:
                    await call.run()

    async def _set_up(
        self, session: IncomingSession, line: SipLine, incoming: Incoming, admission: Admission
    ) -> PhoneCall | None:
        """The call, once its caller knows that it is answered; None: the caller gave up before."""
        line.media = media = await RtpMedia.open(self.media_policy(), line, peer_ip=session.caller.host)
        session.negotiate(media)
        if not session.offers:
            await self._until_answered(session, line)
            return None if line.over.is_set() else self._call(admission, incoming, line)
        call = self._call(admission, incoming, line)  # before the answer: it can still be refused
        try:
            await self._until_answered(session, line)
        except asyncio.CancelledError:
            line.hung_up("server_stop")
            await call.run()  # it is over; that is filed
            raise
        return call

    async def _until_answered(self, session: IncomingSession, line: SipLine) -> None:
        ring_s = self._server.settings.ring_s
        session.ring(for_long=ring_s > 0)
        if ring_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ring_s):
                    await line.over.wait()
        session.accept()
        await line.answered.wait()

    def _call(self, admission: Admission, incoming: Incoming, line: SipLine) -> PhoneCall:
        line.agreed()
        call = PhoneCall(self._gateway, admission, incoming, line)
        line.connect(call)
        return call

    def media_policy(self) -> RtpPolicy:
        settings = self._gateway.settings
        return RtpPolicy(
            bind_ip=settings.sip.host,
            advertised_ip=settings.media.advertised_ip,
            ports=settings.media.ports(),
            codecs=settings.sip.codecs,
            srtp=Srtp(settings.sip.srtp),
            starts_at_once=False,  # while it rings nobody need say anything: that is no dead line
        )

    async def _free(self, session: IncomingSession, line: SipLine) -> None:
        session.hang_up("server_stop")  # unless it is over
        await line.free()


def incoming_of(session: IncomingSession, *, trusted: bool, own_names: Collection[str]) -> Incoming:
    """Who calls whom. ``;agent=NAME`` at the address that was called asks for an agent by name. A trunk calls us by the
    name that we registered (one of ``own_names``): whom its caller dialled is in To. Who is ``trusted`` may say who
    really calls (RFC 3325)."""
    invite = session.invite
    try:
        uri = parse_uri(invite.uri)
        dialled = uri.user if uri.is_sip else uri.opaque.partition(";")[0]
        agent = uri.parameters.get("agent") or ""
    except BadSyntax:
        dialled, agent = "", ""
    if dialled in own_names:
        dialled = invite.to.uri.user or dialled
    caller = invite.from_.uri
    if trusted:
        with contextlib.suppress(BadSyntax, IndexError):
            caller = parse_address(invite.headers.listed("p-asserted-identity")[0]).uri
    return Incoming(
        "sip",
        agent=_printable(agent),
        dialled=_printable(dialled),
        caller=_printable(caller.user or caller.opaque.partition(";")[0]),
        wire_id=_printable(invite.call_id),
    )


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:MAX_NAME])
