"""Takes calls over SIP beside the engines, and places them: the shell around :class:`.user_agent.UserAgent`."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import Any

import structlog

from gateway.readiness import unready
from gateway.security.networks import is_loopback
from gateway.settings import ConfigurationError
from gateway.sip_settings import SipSettings
from gateway.state import Gateway
from gateway.switchboard import Admission
from gateway.transports.sip.answering import Answering
from gateway.transports.sip.dialling import dial
from gateway.transports.sip.digest import DigestGate
from gateway.transports.sip.frame_ticker import ticker_of, unmeasured
from gateway.transports.sip.guard import SourceGuard
from gateway.transports.sip.incoming import IncomingSession
from gateway.transports.sip.line import SipLine
from gateway.transports.sip.message import Request
from gateway.transports.sip.registration import Registration
from gateway.transports.sip.rtp_socket import route_to
from gateway.transports.sip.session_events import SessionEvents
from gateway.transports.sip.sockets import Sockets
from gateway.transports.sip.transaction import Peer, TransportName
from gateway.transports.sip.user_agent import Local, UserAgent, Verdict

_log = structlog.get_logger(__name__)

COMPLAIN_S = 60.0
"""An exchange that is not in ``sip.allow`` hears nothing: the log has to say so, and scanners must not fill it."""
STOP_S = 3.0
"""At the end: for the calls that are left to be hung up."""


@contextlib.asynccontextmanager
async def sip_calls(gateway: Gateway) -> AsyncIterator[None]:
    """Take them until the block is left, if the settings say so. Raises :class:`ConfigurationError`
    (``cannot_listen``, ``tls_unreadable``)."""
    if not gateway.settings.sip.enabled:
        yield
        return
    async with SipServer(gateway).listening() as server:
        gateway.wires.sip = server
        ticker = ticker_of(asyncio.get_running_loop())
        ticker.left = gateway.metrics.sender("sip").sent
        try:
            yield
        finally:
            gateway.wires.sip = None
            ticker.left = unmeasured


class SipServer:
    """One gateway's SIP endpoint. (``Application`` of the user agent, ``Above`` of its sockets.)"""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.settings: SipSettings = gateway.settings.sip
        self._loop = asyncio.get_running_loop()
        self._wake: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._by_source: Counter[str] = Counter()
        self._complains_from_s = 0.0
        digest = self._digest_gate()
        self.guard = SourceGuard(
            allow=self.settings.allow,
            digest=digest,
            anyone=self.settings.anyone,
            local_only=self.settings.is_open_to_none,
            requests_per_s=self.settings.requests_per_s,
            has_call=lambda host: self._by_source[host] > 0,
            now_s=self._loop.time,
        )
        self._sockets = Sockets(
            self, max_connections=self.settings.max_connections, tls_client=_client_tls(self.settings)
        )
        self.ua = UserAgent(
            self,
            self._sockets.send,
            now_s=self._loop.time,
            local=self.local,
            random_hex=lambda: secrets.token_hex(10),
            random_below=secrets.randbelow,
            session_expires_s=self.settings.session_expires_s,
            on_timer=self._wake_at,
        )
        self.answering = Answering(self)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[SipServer]:
        """Take calls until the block is left; then those still up are hung up. Raises :class:`ConfigurationError`
        (``cannot_listen``, ``tls_unreadable``)."""
        try:
            await self._listen()
            self._register()
            ports = {f"{name}_port": port for name, port in self._sockets.ports.items()}
            _log.info("taking calls over SIP", host=self.settings.host, **ports)
            yield self
        finally:
            await self._close()

    @property
    def ports(self) -> Mapping[TransportName, int]:
        """Where it listens, by transport."""
        return self._sockets.ports

    @property
    def idle(self) -> bool:
        """No dialog, and no call's task."""
        return not (self.ua.sessions or self._by_source)

    def local(self, peer: Peer) -> Local:
        """Our address as this peer reaches us: the advertised one, except on this machine itself."""
        port = self._sockets.ports.get(peer.transport, self.settings.port)
        advertised = self.gateway.settings.media.advertised_ip
        if advertised and not is_loopback(peer.host):
            return Local(advertised, port)
        if not ipaddress.ip_address(self.settings.host).is_unspecified:
            return Local(self.settings.host, port)
        return Local(route_to(peer.host) or "127.0.0.1", port)

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    @contextlib.contextmanager
    def counted(self, host: str) -> Iterator[None]:
        """A call with this source."""
        self._by_source[host] += 1
        try:
            yield
        finally:
            self._by_source[host] -= 1
            if not self._by_source[host]:
                del self._by_source[host]

    def address_of(self, peer: Peer) -> str:
        """As its messages come from it (:meth:`.sockets.Sockets.address_of`)."""
        return self._sockets.address_of(peer)

    def calls_of(self, host: str) -> int:
        return self._by_source[host]

    async def dial(self, admission: Admission, to: str, *, caller: str, agent: str, ring_s: float) -> None:
        """Run the call from its INVITE to its end (``Dialler`` of :mod:`gateway.outbound`). Raises
        :class:`gateway.outbound.DialFailed`."""
        await dial(self, admission, to, caller=caller, agent=agent, ring_s=ring_s)

    # --- Application ----------------------------------------------------------------------------------------------

    def invited(self, session: IncomingSession) -> SessionEvents:
        line = SipLine()
        line.session = session
        line.trunk_domain = self._trunk_domain(session.caller.host)
        self.start(self.answering.answer(session, line), "sip call")
        return line

    def unready(self) -> str | None:
        why_not = unready(self.gateway.switchboard, self.gateway.engines.health())
        return None if why_not is None else why_not["status"]

    def judge(self, request: Request, source: Peer) -> Verdict:
        verdict = self.guard.judge(request, source)
        if verdict == "drop" and self._loop.time() >= self._complains_from_s:
            self._complains_from_s = self._loop.time() + COMPLAIN_S
            _log.warning("a SIP request is not answered: who sent it may not call", source=source.host)
        return verdict

    def answers(self, host: str) -> bool:
        return self.guard.answers(host)

    def challenges(self, host: str, *, stale: bool) -> list[tuple[str, str]]:
        return self.guard.challenges(host, stale=stale)

    def count(self, name: str) -> None:
        self.gateway.metrics.count(name)

    # --- Above ----------------------------------------------------------------------------------------------------

    def takes(self, host: str, size: int = 0) -> bool:
        return self.guard.takes(host, size)

    def trusts(self, host: str) -> bool:
        return self.settings.is_open_to_none or self.guard.is_allowed(host)

    def keeps(self, host: str) -> bool:
        return self.guard.is_allowed(host) or self._by_source[host] > 0

    def receive(self, data: bytes, source: Peer) -> None:
        try:
            self.ua.receive(data, source)
        except Exception:  # a message must not take the server along, whatever it found; in tests it is seen
            self.count("sip_defects")
            _log.exception("a SIP message was not understood")
            if self.gateway.strict:
                raise

    def unreachable(self, is_gone: Callable[[Peer], bool]) -> None:
        self.ua.transactions.unreachable(is_gone)

    # --------------------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        host, wanted = self.settings.host, self.settings.port
        try:
            await self._sockets.listen(host, wanted, self.settings.transports)
            if "tls" in self.settings.transports:
                await self._sockets.listen_stream(host, self.settings.tls_port, self._server_tls())
        except OSError as error:
            problem = f"sip.port: cannot listen on {host}:{wanted}: {error.strerror or error}"
            raise ConfigurationError("cannot_listen", problem) from None

    def _trunk_domain(self, host: str) -> str | None:
        """Of the trunk that a call from there came by."""
        trunks = self.settings.trunks
        known = trunks.get(self.guard.trunk_of(host) or "")
        found = known or next((trunk for trunk in trunks.values() if trunk.host_port[0] == host), None)
        return found.our_domain if found is not None else None

    def _register(self) -> None:
        for name, trunk in self.settings.trunks.items():
            if trunk.register_here:
                self.start(Registration(self.ua, name, trunk, self.guard).run(), f"sip trunk {name}")

    def _server_tls(self) -> ssl.SSLContext:
        settings = self.gateway.settings
        cert, key = self.settings.tls_cert or settings.tls_cert, self.settings.tls_key or settings.tls_key
        if cert is None or key is None:
            raise ConfigurationError("tls_incomplete", "sip.transports: tls needs sip.tls_cert and sip.tls_key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError("tls_unreadable", f"sip.tls_cert: {error}") from None
        return context

    def _digest_gate(self) -> DigestGate | None:
        users = {name: password.get_secret_value() for name, password in self.settings.users.items()}
        if not users:
            return None
        return DigestGate(
            users,
            self.settings.realm,
            secret=secrets.token_bytes(32),
            now_s=self._loop.time,
            random_hex=lambda: secrets.token_hex(8),
            algorithms=self.settings.digest,
        )

    def _wake_at(self, at_s: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = self._loop.call_at(at_s, self._run_timers)

    def _run_timers(self) -> None:
        self._wake = None
        try:
            self.ua.timers.run()
        finally:
            at_s = self.ua.timers.next_at()
            if at_s is not None:
                self._wake_at(at_s)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "a call's task failed", "exception": error, "task": task}
            self._loop.call_exception_handler(context)

    async def _close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)
        self.ua.close()
        await self._sockets.close()
        if self._wake is not None:
            self._wake.cancel()


def _client_tls(settings: SipSettings) -> ssl.SSLContext | None:
    if "tls" not in settings.transports:
        return None
    try:
        return ssl.create_default_context(cafile=str(settings.tls_ca) if settings.tls_ca is not None else None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError("tls_unreadable", f"sip.tls_ca: {error}") from None
