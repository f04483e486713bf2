"""User agents on a network of their own, in virtual time: no socket, no task, every delay and loss as told."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.transports.sip.digest import Credentials
from gateway.transports.sip.incoming import IncomingSession
from gateway.transports.sip.message import Request, Response, parse
from gateway.transports.sip.outgoing import OutgoingSession, begin_outgoing
from gateway.transports.sip.sdp import BadSdp
from gateway.transports.sip.session_events import SessionEvents
from gateway.transports.sip.transaction import Peer, TransportName
from gateway.transports.sip.user_agent import Local, UserAgent, Verdict

DELAY_S = 0.01


class FakeMedia:
    """Descriptions that are plain words: ``offer 1``, ``answer 1``. ``bad`` is refused, ``hold`` puts on hold."""

    def __init__(self, words: str = "") -> None:
        self.words = words
        self.remote_hold = False
        self.said: list[str] = []
        self.heard: list[str] = []
        self._count = itertools.count(1)

    def offer(self) -> str:
        self.said.append(f"offer {next(self._count)}{self.words}")
        return self.said[-1]

    def answer(self, offer_sdp: str) -> str:
        self._take(offer_sdp)
        self.said.append(f"answer to {offer_sdp}")
        return self.said[-1]

    def accept(self, answer_sdp: str) -> None:
        self._take(answer_sdp)

    def _take(self, text: str) -> None:
        if "bad" in text:
            raise BadSdp(488, "no_codec", "nothing that we can do")
        self.heard.append(text)
        self.remote_hold = "hold" in text


class Ear:
    """What a session told, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def established(self) -> None:
        self.told.append("established")

    def hung_up(self, cause: str) -> None:
        self.told.append(f"hung up: {cause}")

    def closed(self) -> None:
        self.told.append("closed")

    def pressed(self, key: str) -> None:
        self.told.append(f"key {key}")

    def held(self, on: bool) -> None:
        self.told.append("held" if on else "taken back")

    def rings(self) -> None:
        self.told.append("rings")

    def failed(self, status: int) -> None:
        self.told.append(f"failed: {status}")


@dataclass
class Agent:
    """A user agent with what is above it. ``on_invite`` does something with a call that comes in."""

    net: Net
    host: str
    ua: UserAgent = field(init=False)
    transport: TransportName = "udp"
    session_expires_s: int = 0
    verdict: Verdict = "allow"
    not_ready: str | None = None
    on_invite: Callable[[IncomingSession, FakeMedia], None] | None = None
    calls: list[IncomingSession] = field(default_factory=list)
    ears: list[Ear] = field(default_factory=list)
    media: list[FakeMedia] = field(default_factory=list)
    counted: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = random.Random(self.host)
        self.ua = UserAgent(
            self,
            lambda data, peer: self.net.send(data, self.peer, peer),
            now_s=lambda: self.net.now_s,
            local=lambda _: Local(self.host, 5060),
            random_hex=lambda: f"{rng.getrandbits(80):020x}",
            random_below=rng.randrange,
            session_expires_s=self.session_expires_s,
        )
        self.net.agents[self.host] = self

    @property
    def peer(self) -> Peer:
        return Peer(self.transport, self.host, 5060, flow=None if self.transport == "udp" else 7)

    def call(self, other: Agent, *, credentials: Credentials | None = None) -> tuple[OutgoingSession, Ear, FakeMedia]:
        ear, media = Ear(), FakeMedia()
        session = begin_outgoing(
            self.ua,
            f"sip:desk@{other.host}",
            other.peer,
            ear,
            from_uri=f"sip:caller@{self.host}",
            credentials=credentials,
        )
        session.invite(media)
        return session, ear, media

    @property
    def is_clean(self) -> bool:
        """No dialog, transaction or timer."""
        return not (self.ua.sessions or len(self.ua.transactions) or len(self.ua.timers) or self.ua._invites)

    # --- Application ---

    def invited(self, session: IncomingSession) -> SessionEvents:
        ear, media = Ear(), FakeMedia()
        self.calls.append(session)
        self.ears.append(ear)
        self.media.append(media)
        if self.on_invite is not None:
            session.events = ear
            self.on_invite(session, media)
        return ear

    def unready(self) -> str | None:
        return self.not_ready

    def judge(self, request: Request, source: Peer) -> Verdict:
        return self.verdict

    def answers(self, host: str) -> bool:
        return self.verdict != "drop"

    def challenges(self, host: str, *, stale: bool) -> list[tuple[str, str]]:
        return [("www-authenticate", f'Digest realm="rig", nonce="n", qop="auth", stale={str(stale).lower()}')]

    def count(self, name: str) -> None:
        self.counted.append(name)


class Net:
    """Carries messages by host. ``loses`` says which do not arrive: told the message, and how many went before."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.agents: dict[str, Agent] = {}
        self.loses: Callable[[bytes, int], bool] = lambda data, number: False
        self.delay_s: Callable[[], float] = lambda: DELAY_S
        self.log: list[tuple[float, str, bytes]] = []
        """When, from whom, what."""
        self._queue: list[tuple[float, int, bytes, Peer, Peer]] = []
        self._order = itertools.count()

    def send(self, data: bytes, source: Peer, to: Peer) -> None:
        number = len(self.log)
        self.log.append((self.now_s, source.host, data))
        if not self.loses(data, number):
            heapq.heappush(self._queue, (self.now_s + self.delay_s(), next(self._order), data, source, to))

    def run(self, for_s: float) -> None:
        """Let that much time go by."""
        until_s = self.now_s + for_s
        while (at_s := self._next_at()) is not None and at_s <= until_s:
            self.now_s = max(self.now_s, at_s)
            if self._queue and self._queue[0][0] <= self.now_s:
                _, _, data, source, to = heapq.heappop(self._queue)
                agent = self.agents.get(to.host)
                if agent is not None:
                    agent.ua.receive(data, source)
            for agent in self.agents.values():
                agent.ua.timers.run()
        self.now_s = until_s

    def _next_at(self) -> float | None:
        times = [at_s for agent in self.agents.values() if (at_s := agent.ua.timers.next_at()) is not None]
        return min([*times, *([self._queue[0][0]] if self._queue else [])], default=None)

    def messages(self, host: str) -> list[str]:
        """What a host sent, in short: ``INVITE``, ``200 INVITE``."""
        return [short(data) for _, source, data in self.log if source == host]


def short(data: bytes) -> str:
    message = parse(data)
    return message.method if isinstance(message, Request) else f"{message.status} {message.cseq[1]}"


def answers(session: IncomingSession, media: FakeMedia) -> None:
    """For ``on_invite``: answer at once."""
    session.negotiate(media)
    session.ring(for_long=False)
    session.accept()


@dataclass
class Phone:
    """One user agent, and a peer that writes its messages by hand."""

    agent: Agent
    source: Peer = field(default_factory=lambda: Peer("udp", "192.0.2.9", 5060))

    @classmethod
    def make(cls, **kwargs: object) -> Phone:
        return cls(Agent(Net(), "192.0.2.1", **kwargs))  # type: ignore[arg-type]

    def say(self, *lines: str, body: str = "", source: Peer | None = None) -> list[Request | Response]:
        """Send a message, and read what comes back at once."""
        head = "\r\n".join([*lines, f"Content-Length: {len(body.encode())}", "", ""])
        return self.say_raw((head + body).encode("utf-8", "surrogateescape"), source)

    def say_raw(self, data: bytes, source: Peer | None = None) -> list[Request | Response]:
        log = self.agent.net.log
        before = len(log)
        self.agent.ua.receive(data, source or self.source)
        return [parse(said) for _, _, said in log[before:]]

    def answers_to(self, data: bytes) -> list[int]:
        """The statuses of what comes back; it may repeat what cannot be read."""
        log = self.agent.net.log
        before = len(log)
        self.agent.ua.receive(data, self.source)
        return [int(said.split(b" ")[1]) for _, _, said in log[before:]]

    def after(self, time_s: float) -> list[Request | Response]:
        """Let time go by, and read what was sent meanwhile."""
        net = self.agent.net
        before = len(net.log)
        net.run(time_s)
        return [parse(said) for _, _, said in net.log[before:]]


def request(
    method: str,
    *extra: str,
    seq: int = 1,
    tag: str = "",
    branch: str = "z9hG4bKa",
    call_id: str = "call-1",
    uri: str = "sip:desk@192.0.2.1",
    contact: str = "<sip:caller@192.0.2.9>",
    from_tag: str = "theirs",
) -> list[str]:
    """The lines of a request that is in order."""
    return [
        f"{method} {uri} SIP/2.0",
        f"Via: SIP/2.0/UDP 192.0.2.9;branch={branch}",
        "Max-Forwards: 70",
        f"From: <sip:caller@192.0.2.9>;tag={from_tag}",
        f"To: <sip:desk@192.0.2.1>{f';tag={tag}' if tag else ''}",
        f"Call-ID: {call_id}",
        f"CSeq: {seq} {method}",
        *([f"Contact: {contact}"] if contact else []),
        *extra,
    ]


SDP = "Content-Type: application/sdp"


def only_response(said: list[Request | Response]) -> Response:
    (response,) = said
    assert isinstance(response, Response)
    return response


def statuses(said: list[Request | Response]) -> list[int | str]:
    return [message.status if isinstance(message, Response) else message.method for message in said]


def up(phone: Phone, *extra: str, body: str = "offer 1") -> str:
    """A call that was answered and acknowledged: our tag."""
    phone.agent.on_invite = answers
    said = phone.say(*request("INVITE", *extra, *([SDP] if body else [])), body=body)
    response = said[-1]
    assert isinstance(response, Response)
    assert response.status == 200, statuses(said)
    tag = response.to.tag
    assert phone.say(*request("ACK", tag=tag, branch="z9hG4bKb"), body="") == []
    return tag


def reply(phone: Phone, sent: Request, status: str) -> None:
    kept = [f"{name}: {sent.headers.get(name)}" for name in ("via", "from", "to", "call-id", "cseq")]
    phone.say(f"SIP/2.0 {status}", *kept)
