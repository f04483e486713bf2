"""Keeps us registered with a trunk (RFC 3261, section 10), so that its calls come here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog

from gateway.sip_settings import TrunkSettings
from gateway.transports.sip.address import BadSyntax, format_host, parse_address
from gateway.transports.sip.asking import Fields
from gateway.transports.sip.dialling import credentials_of
from gateway.transports.sip.dialog import MAX_FORWARDS
from gateway.transports.sip.message import Headers, Request, Response, via_line
from gateway.transports.sip.sockets import PING, addresses_of
from gateway.transports.sip.transaction import Peer
from gateway.transports.sip.user_agent import UserAgent

if TYPE_CHECKING:
    from gateway.transports.sip.guard import SourceGuard

_log = structlog.get_logger(__name__)

RETRY_S = (5.0, 15.0, 30.0, 60.0, 120.0, 300.0)
"""After a failure, the last for all further ones; each up to a quarter longer."""
REFRESH = 0.8
"""Of its time a registration is made anew after this part."""
LEAST_S = 30
"""A registrar that grants less is asked no more often than this allows."""
PING_S = 25.0
LEAVE_S = 2.0


class Registration:
    """One trunk's. ``sleep`` and the user agent's clock are all the time there is."""

    def __init__(
        self,
        ua: UserAgent,
        name: str,
        trunk: TrunkSettings,
        guard: SourceGuard,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        find: Callable[[str, int], Awaitable[list[str]]] = addresses_of,
    ) -> None:
        self._ua = ua
        self._name = name
        self._trunk = trunk
        self._guard = guard
        self._sleep = sleep
        self._find = find
        self._call_id = ua.random_hex()
        self._tag = ua.new_tag()
        self._seq = ua.random_below(2**16)
        self._expires_s = trunk.expires_s
        self._peer: Peer | None = None
        self.registered = False

    async def run(self) -> None:
        """Until cancelled; then the registrar is told so, if it answers soon."""
        failures = 0
        try:
            while True:
                granted_s = await self._attempt()
                if granted_s is not None:
                    failures = 0
                    await self._rest(max(LEAST_S, granted_s) * REFRESH)
                else:
                    wait_s = RETRY_S[min(failures, len(RETRY_S) - 1)]
                    failures += 1
                    await self._sleep(wait_s * (1 + self._ua.random_below(250) / 1000))
        finally:
            await self._leave()

    async def _rest(self, time_s: float) -> None:
        """The way back stays open meanwhile: through NAT, and on an idle connection (RFC 5626, 3.5)."""
        while time_s > 0:
            await self._sleep(min(time_s, PING_S))
            time_s -= PING_S
            if self._peer is not None:
                self._ua.send(PING, self._peer)

    async def _attempt(self) -> float | None:
        """How long we are registered now; None: we are not."""
        host, port = self._trunk.host_port
        try:
            addresses = await self._find(host, port)
        except OSError:
            self._failed("not_found", None)
            return None
        # By its name over TLS: that is what its certificate says.
        self._peer = Peer(self._trunk.transport, host if self._trunk.transport == "tls" else addresses[0], port)
        response = await self._register(self._expires_s)
        if response is not None and response.status == 423:
            least = response.headers.get("min-expires")
            if least.isascii() and least.isdecimal() and self._expires_s < int(least) <= 86_400:
                self._expires_s = int(least)
                response = await self._register(self._expires_s)
        if response is None or response.status >= 300:
            self._failed("refused" if response is not None else "no_answer", response)
            return None
        if not self.registered:
            _log.info("registered with a trunk", trunk=self._name)
        self.registered = True
        self._ua.count("sip_registered")
        self._guard.trust(self._name, addresses)
        return self._granted(response)

    def _failed(self, why: str, response: Response | None) -> None:
        self.registered = False
        self._ua.count("sip_registration_failed")
        status = response.status if response is not None else None
        _log.warning("not registered with a trunk", trunk=self._name, reason=why, status=status)

    def _granted(self, response: Response) -> float:
        """The time of our own contact, else of the whole answer, else what we asked for."""
        said = response.headers.get("expires")
        with contextlib.suppress(BadSyntax):
            ours = parse_address(self._contact).uri
            for value in response.headers.listed("contact"):
                contact = parse_address(value)
                if (contact.uri.user, contact.uri.host, contact.uri.port) == (ours.user, ours.host, ours.port):
                    said = contact.parameters.get("expires") or said
        return float(said) if said.isascii() and said.isdecimal() and len(said) < 7 else float(self._expires_s)

    async def _leave(self) -> None:
        self._guard.trust(self._name, [])
        if self.registered:
            self.registered = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await self._register(0)

    async def _register(self, expires_s: int) -> Response | None:
        done: asyncio.Future[Response | None] = asyncio.get_running_loop().create_future()

        def finish(response: Response | None) -> None:
            if not done.done() and (response is None or response.status >= 200):
                done.set_result(response)

        credentials = credentials_of(self._trunk)
        self._ua.request(lambda extra: self._request(expires_s, extra), credentials, finish, lambda: finish(None))
        return await done

    def _request(self, expires_s: int, extra: Fields) -> tuple[Request, Peer]:
        peer, trunk = self._peer, self._trunk
        assert peer is not None
        self._seq += 1
        address = f"<sip:{trunk.user}@{trunk.our_domain}>"
        headers = Headers()
        headers.add("via", via_line(peer.transport, *self._ua.sent_by(peer), self._ua.new_branch()))
        headers.add("max-forwards", str(MAX_FORWARDS))
        headers.add("from", f"{address};tag={self._tag}")
        headers.add("to", address)
        headers.add("call-id", self._call_id)
        headers.add("cseq", f"{self._seq} REGISTER")
        headers.add("contact", self._contact)
        headers.add("expires", str(expires_s))
        for name, value in extra:
            headers.add(name, value)
        return Request(headers, method="REGISTER", uri=f"sip:{trunk.our_domain}"), peer

    @property
    def _contact(self) -> str:
        assert self._peer is not None
        host, port = self._ua.sent_by(self._peer)
        transport = "" if self._peer.transport == "udp" else f";transport={self._peer.transport}"
        return f"<sip:{self._trunk.user}@{format_host(host)}:{port}{transport}>"
