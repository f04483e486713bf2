"""A phone of tests on real sockets: our own user agent, with a description in place of media."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from gateway.transports.sip.asking import Outcome
from gateway.transports.sip.digest import Credentials
from gateway.transports.sip.incoming import IncomingSession
from gateway.transports.sip.message import Request
from gateway.transports.sip.outgoing import OutgoingSession, begin_outgoing
from gateway.transports.sip.session import Session
from gateway.transports.sip.session_events import SessionEvents
from gateway.transports.sip.sockets import Sockets
from gateway.transports.sip.transaction import Peer, TransportName
from gateway.transports.sip.user_agent import Local, UserAgent, Verdict

HOST = "127.0.0.1"


class Described:
    """G.711 at a port where nobody listens."""

    def __init__(self, host: str = HOST) -> None:
        self._host = host
        self.remote_hold = False
        self.direction = "sendrecv"
        self.version = 0

    def offer(self) -> str:
        self.version += 1
        return (
            f"v=0\r\no=- 1 {self.version} IN IP4 {self._host}\r\ns=-\r\nc=IN IP4 {self._host}\r\nt=0 0\r\n"
            "m=audio 9 RTP/AVP 0 101\r\na=rtpmap:0 PCMU/8000\r\na=rtpmap:101 telephone-event/8000\r\n"
            f"a={self.direction}\r\n"
        )

    def answer(self, offer_sdp: str) -> str:
        self.accept(offer_sdp)
        return self.offer()

    def accept(self, answer_sdp: str) -> None:
        self.remote_hold = "a=sendonly" in answer_sdp or "a=inactive" in answer_sdp


@dataclass
class Placed:
    """A call of a phone's, and what was told of it."""

    media: Described
    told: list[str] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    session: Session = field(init=False)

    async def until(self, what: str) -> None:
        async with asyncio.timeout(10):
            while not any(said.startswith(what) for said in self.told):
                self.news.clear()
                await self.news.wait()

    def _say(self, what: str) -> None:
        self.told.append(what)
        self.news.set()

    def established(self) -> None:
        self._say("established")

    def hung_up(self, cause: str) -> None:
        self._say(f"hung up: {cause}")

    def closed(self) -> None:
        self._say("closed")

    def pressed(self, key: str) -> None:
        self._say(f"key {key}")

    def held(self, on: bool) -> None:
        self._say("held" if on else "taken back")

    def rings(self) -> None:
        self._say("rings")

    def failed(self, status: int) -> None:
        self._say(f"failed: {status}")

    async def reoffer(self) -> Outcome:
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.session.reoffer(done.set_result)
        async with asyncio.timeout(10):
            return await done


@dataclass
class Caller:
    """``on_invite`` answers calls that come in."""

    host: str = HOST
    transport: TransportName = "udp"
    tls: ssl.SSLContext | None = None
    on_invite: Callable[[IncomingSession, Placed], None] | None = None
    incoming: list[Placed] = field(default_factory=list)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._wake: asyncio.TimerHandle | None = None
        self._loop = loop
        self.sockets = Sockets(self, max_connections=500, tls_client=self.tls)
        self.ua = UserAgent(
            self,
            self.sockets.send,
            now_s=loop.time,
            local=lambda peer: Local(self.host, self.sockets.ports.get("udp", 5060)),
            random_hex=lambda: secrets.token_hex(10),
            random_below=secrets.randbelow,
            session_expires_s=0,
            on_timer=self._wake_at,
        )

    @contextlib.asynccontextmanager
    async def up(self) -> AsyncIterator[Caller]:
        await self.sockets.listen_udp(self.host, 0)
        try:
            yield self
        finally:
            self.ua.close()
            await self.sockets.close()
            if self._wake is not None:
                self._wake.cancel()

    @property
    def port(self) -> int:
        return self.sockets.ports["udp"]

    def call(
        self, port: int, user: str = "default", *, agent: str = "", password: tuple[str, str] | None = None
    ) -> Placed:
        placed = Placed(Described(self.host))
        transport = "" if self.transport == "udp" else f";transport={self.transport}"
        session: OutgoingSession = begin_outgoing(
            self.ua,
            f"sip:{user}@{HOST}:{port}{transport}{f';agent={agent}' if agent else ''}",
            Peer(self.transport, HOST, port),
            placed,
            from_uri=f"sip:caller@{self.host}",
            credentials=Credentials(*password) if password is not None else None,
        )
        placed.session = session
        session.invite(placed.media)
        return placed

    def _wake_at(self, at_s: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = self._loop.call_at(at_s, self._run)

    def _run(self) -> None:
        self.ua.timers.run()
        at_s = self.ua.timers.next_at()
        if at_s is not None:
            self._wake_at(at_s)

    # --- Application, Above ---

    def invited(self, session: IncomingSession) -> SessionEvents:
        placed = Placed(Described(self.host))
        placed.session = session
        self.incoming.append(placed)
        if self.on_invite is not None:
            session.events = placed
            self.on_invite(session, placed)
        return placed

    def unready(self) -> str | None:
        return None

    def judge(self, request: Request, source: Peer) -> Verdict:
        return "allow"

    def answers(self, host: str) -> bool:
        return True

    def challenges(self, host: str, *, stale: bool) -> list[tuple[str, str]]:
        return []

    def count(self, name: str) -> None: ...

    def takes(self, host: str, size: int = 0) -> bool:
        return True

    def trusts(self, host: str) -> bool:
        return True

    def keeps(self, host: str) -> bool:
        return True

    def receive(self, data: bytes, source: Peer) -> None:
        self.ua.receive(data, source)

    def unreachable(self, is_gone: Callable[[Peer], bool]) -> None:
        self.ua.transactions.unreachable(is_gone)


def answers(session: IncomingSession, placed: Placed) -> None:
    session.negotiate(placed.media)
    session.ring(for_long=False)
    session.accept()
