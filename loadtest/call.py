"""What a call is, whatever carries it: where to call and what to do there, what carries it, what came of it.

A :class:`Wire` takes the caller's frames and has an :class:`~loadtest.ear.Ear` for what comes back. Whether the other
end says more than sound is its own business: what it says is in the wire's :class:`CallLog`, which of a phone line has
nothing but the call's id. Nothing of it waits while the call is up: one tick sends a frame, what comes is taken in as
it comes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from loadtest.ear import Ear, HeardMedia
from loadtest.frame_tables import Voice
from loadtest.measure import TurnMark
from loadtest.report import BufferReport, MediaReport, SetupReport
from loadtest.script import Patience, Step
from loadtest.wire import CallLog

Pcm16 = npt.NDArray[np.int16]

CALL_RATE_HZ = 24_000
"""Of calls over the Realtime protocol, whichever transport."""

PHONE_RATE_HZ = 8_000

SLOT_MS = 20


class Transport(enum.StrEnum):
    """What carries a call; the values are part of the ``--json`` document."""

    WEBSOCKET = "websocket"
    WEBRTC = "webrtc"
    SIP = "sip"
    TWILIO = "twilio"
    AUDIOSOCKET = "audiosocket"


class EndCause(enum.StrEnum):
    """Why a call was over; the values are part of the ``--json`` document."""

    HANGUP = "hangup"
    AGENT_HANGUP = "agent_hangup"
    TIME_LIMIT = "time_limit"
    BUSY = "busy"
    REFUSED = "refused"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    NO_MEDIA = "no_media"
    NO_SESSION = "no_session"
    STALLED = "stalled"
    FLOODED = "flooded"
    CONNECTION_LOST = "connection_lost"
    VANISHED = "vanished"
    ABANDONED = "abandoned"


class CallOver(Exception):  # noqa: N818 (calls end)
    """The call ended, or never came about. ``problem`` says for a person what went wrong, if anything did."""

    def __init__(self, cause: EndCause, problem: str | None = None) -> None:
        super().__init__(problem or cause.value)
        self.cause = cause
        self.problem = problem


class MediaRoute(Protocol):
    """Stands between the two ends of a WebRTC call, as :class:`loadtest.udp_relay.RelayRoute` does."""

    def offer(self, sdp: str) -> str:
        """The offer as the server gets it."""

    async def answer(self, sdp: str) -> str:
        """The answer as the caller gets it."""


class RtpRoute(Protocol):
    """Stands between the two ends of a SIP call's RTP, as :class:`loadtest.udp_relay.RtpRelay` does. Addresses are host
    and port."""

    def ours(self, address: tuple[str, int]) -> tuple[str, int]:
        """What the server is told of where the caller's RTP goes."""

    def theirs(self, address: tuple[str, int]) -> tuple[str, int]:
        """Where the caller's RTP for the server goes."""


@dataclass(frozen=True, slots=True)
class PhoneOptions:
    """What only phone wires know of. ``caller`` is the number that calls (SIP's From; a stream's parameter
    ``from``). ``user`` and ``password`` answer a SIP server's challenge; ``codec`` is the only one to offer (``pcmu``
    or ``pcma``; both by default). ``parameters`` and ``auth_token`` are the carrier's: its stream's custom parameters,
    and what it signs with; ``signed_url`` is the public address where it is not the one called."""

    caller: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    codec: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    auth_token: str | None = field(default=None, repr=False)
    signed_url: str | None = None


class CallerSound(Protocol):
    """What is heard of the caller beside its lines: noise, an echo of the agent. Stateful, one a call."""

    def frame(self, line: Pcm16 | None, heard: Pcm16) -> Pcm16 | None:
        """The next 20 ms. ``line`` is what the caller says in them, if anything, ``heard`` what was heard in those
        before. None: the line (or silence) as it is."""


@dataclass(frozen=True, slots=True)
class CallPlan:
    """Where to call and what to do there; the lines' samples are at ``rate_hz``. ``length_ms`` is the planned length,
    which steps that are repeated need; ``linger_s`` how long a caller that vanished keeps its socket, unread. ``key``
    goes into the Authorization header; with ``ephemeral`` it buys a client secret first, which then opens the call.
    ``route`` and ``ephemeral`` are for WebRTC alone, ``phone`` for phone wires, ``rtp_route`` for SIP; ``via`` is where
    WebSockets and AudioSocket connect to in place of the server (a relay). Without ``patience`` the caller has the
    wire's own."""

    url: str
    steps: tuple[Step, ...]
    agent: str | None = None
    key: str | None = None
    max_seconds: float = 120.0
    patience: Patience | None = None
    ephemeral: bool = False
    route: MediaRoute | None = None
    rate_hz: int = CALL_RATE_HZ
    phone: PhoneOptions = field(default_factory=PhoneOptions)
    sound: CallerSound | None = None
    length_ms: float | None = None
    linger_s: float = 5.0
    via: tuple[str, int] | None = None
    rtp_route: RtpRoute | None = None


@dataclass(frozen=True, slots=True)
class CallTape:
    """What happened. ``caller`` and ``agent`` are equally long and sample-aligned, mono int16 at ``rate_hz``; sample 0
    is the caller's first tick, at most 20 ms after the call was up (``session.created`` came; the phone was answered).
    ``caller_lag_ms`` is the worst lateness of this process at its own deadlines: times are doubtful where it is large.
    In ``skipped_slots`` it came so late that nothing was sent, and the line went on after them. ``problem`` says for a
    person what went wrong, if anything did."""

    end_cause: EndCause
    problem: str | None
    setup_ms: float | None
    caller: Pcm16
    agent: Pcm16
    marks: tuple[TurnMark, ...]
    late_slots: tuple[int, ...]
    caller_lag_ms: float
    log: CallLog
    rate_hz: int = CALL_RATE_HZ
    setup: SetupReport | None = None
    media: MediaReport | None = None
    buffer: BufferReport | None = None
    heard: HeardMedia = field(default_factory=HeardMedia)
    skipped_slots: tuple[int, ...] = ()
    noise_dbfs: float | None = None
    """Of the agent's line, if it has any (:mod:`loadtest.line_noise`)."""


def no_call(over: CallOver, rate_hz: int = CALL_RATE_HZ) -> CallTape:
    """The tape of a call that did not come about."""
    empty = np.zeros(0, dtype=np.int16)
    return CallTape(over.cause, over.problem, None, empty, empty, (), (), 0.0, CallLog(), rate_hz)


@dataclass(frozen=True, slots=True)
class Key:
    """A key that is down in this slot, the ``slot``-th since it went down; ``last``: it is released with its end."""

    digit: str
    slot: int
    last: bool


class Wire(Protocol):
    """A connected call. What sends raises :class:`CallOver` once the call is over."""

    voice: Voice
    rate_hz: int
    patience: Patience
    """Of a caller who has no other: how long to wait depends on what else than sound the wire tells."""

    @property
    def ear(self) -> Ear: ...

    @property
    def log(self) -> CallLog: ...

    @property
    def setup_ms(self) -> float | None:
        """None of a call that turned out never to have come about."""

    def attend(self, turn: Callable[[], int], on_over: Callable[[CallOver], None]) -> None:
        """Take in what comes from now on, and what came before. ``turn`` tells which turn was last begun, -1 before the
        first. ``on_over`` is told once, at once if the call is over already."""

    def begin(self) -> None:
        """Tell the server what it must be told before the caller speaks."""

    def encode(self, pcm: Pcm16) -> bytes:
        """20 ms of another sound than the lines', as :meth:`send_voice` takes them."""

    def send_voice(self, frame: bytes, key: Key | None) -> None:
        """The next frame, with a key that was down meanwhile, if the wire has keys. Never waits: a server that stops
        reading is noticed by how long what was sent has been queued."""

    def skip(self, slots: int) -> None:
        """So many slots went by without a frame."""

    def hold(self, held: bool) -> None:
        """Put the agent on hold, or take it back, if the wire has a word for that."""

    async def vanish(self, linger_s: float) -> None:
        """No more is sent or read, and nobody is told. The socket stays for so long."""

    async def hang_up(self) -> str | None:
        """Tell the server, if it takes telling; returns what failed. The call is over after it."""

    def setup(self) -> SetupReport | None: ...

    def media(self) -> MediaReport | None: ...

    def buffer(self) -> BufferReport | None: ...
