"""What a call is, whatever carries it: where to call and what to say there, what carries it, what came of it.

A :class:`Wire` takes the caller's frames and has an :class:`Ear` for what comes back. Whether the other end says more
than sound is its own business: what it says is in the wire's :class:`CallLog`, which of a phone line has nothing but
the call's id.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from loadtest.measure import TurnMark
from loadtest.report import BufferReport, MediaReport, SetupReport
from loadtest.script import Patience, Turn
from loadtest.wire import CallLog

Pcm16 = npt.NDArray[np.int16]

CALL_RATE_HZ = 24_000
"""Of calls over the Realtime protocol, whichever transport."""

PHONE_RATE_HZ = 8_000

SLOT_MS = 20
SLOT_SAMPLES = CALL_RATE_HZ * SLOT_MS // 1000


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
    CONNECTION_LOST = "connection_lost"


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


@dataclass(frozen=True, slots=True)
class CallPlan:
    """Where to call and what to do there; the turns' samples are at ``rate_hz``. ``key`` goes into the Authorization
    header; with ``ephemeral`` it buys a client secret first, which then opens the call. ``route`` and ``ephemeral`` are
    for WebRTC alone, ``phone`` for phone wires. Without ``patience`` the caller has the wire's own."""

    url: str
    turns: tuple[Turn, ...]
    agent: str | None = None
    key: str | None = None
    max_seconds: float = 120.0
    patience: Patience | None = None
    ephemeral: bool = False
    route: MediaRoute | None = None
    rate_hz: int = CALL_RATE_HZ
    phone: PhoneOptions = field(default_factory=PhoneOptions)


@dataclass(frozen=True, slots=True)
class CallTape:
    """What happened. ``caller`` and ``agent`` are equally long and sample-aligned, mono int16 at ``rate_hz``; sample 0
    is the moment the call was up (``session.created`` came; the phone was answered). ``caller_lag_ms`` is the worst
    lateness of this process at its own deadlines: times are doubtful where it is large. ``problem`` says for a person
    what went wrong, if anything did."""

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


def no_call(over: CallOver, rate_hz: int = CALL_RATE_HZ) -> CallTape:
    """The tape of a call that did not come about."""
    empty = np.zeros(0, dtype=np.int16)
    return CallTape(over.cause, over.problem, None, empty, empty, (), (), 0.0, CallLog(), rate_hz)


@dataclass(frozen=True, slots=True)
class Voice:
    """The caller's lines as the wire carries them, one entry a frame of 20 ms, and a frame of silence."""

    lines: tuple[Sequence[bytes], ...]
    silence: bytes


@dataclass(frozen=True, slots=True)
class Key:
    """A key that is down in this slot, the ``slot``-th since it went down; ``last``: it is released with its end."""

    digit: str
    slot: int
    last: bool


class Ear(Protocol):
    """What the caller hears, slot by slot of 20 ms from the moment the call was up."""

    @property
    def late_slots(self) -> Sequence[int]:
        """Slots that were silent because audio came late."""

    @property
    def busy(self) -> bool:
        """The agent will be heard for longer than the buffer's own delay."""

    def advance(self, now_s: float) -> None:
        """Play every slot that began before ``now_s``."""

    def slot(self, index: int) -> Pcm16:
        """What was heard in a slot that is over."""

    def heard(self) -> Pcm16:
        """Everything heard so far."""


class Wire(Protocol):
    """A connected call, up since ``origin_s`` on the loop's clock. Everything that waits raises :class:`CallOver` once
    the call is over."""

    origin_s: float
    setup_ms: float
    voice: Voice
    rate_hz: int
    patience: Patience
    """Of a caller who has no other: how long to wait depends on what else than sound the wire tells."""

    @property
    def ear(self) -> Ear: ...

    @property
    def log(self) -> CallLog: ...

    async def begin(self) -> None:
        """Tell the server what it must be told before the caller speaks."""

    async def listen(self, turn: Callable[[], int]) -> None:
        """Take in what comes until the call is over. ``turn`` tells which turn was last begun, -1 before the first."""

    async def send_voice(self, frame: bytes, key: Key | None) -> None:
        """The next frame of :attr:`voice`; with a key that was down meanwhile, if the wire has keys."""

    async def hang_up(self) -> str | None:
        """Tell the server, if it takes telling; returns what failed. The call is over after it, and :meth:`listen`
        says so."""

    def setup(self) -> SetupReport | None: ...

    def media(self) -> MediaReport | None: ...

    def buffer(self) -> BufferReport | None: ...


def frames_of(pcm: Pcm16, rate_hz: int = CALL_RATE_HZ) -> list[Pcm16]:
    """A line in frames of 20 ms, the last filled up with silence."""
    samples = rate_hz * SLOT_MS // 1000
    padded = np.pad(pcm, (0, -len(pcm) % samples))
    return list(padded.reshape(-1, samples))
