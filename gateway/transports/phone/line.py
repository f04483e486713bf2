"""The contract between a phone transport and the call on it. Nothing above it knows whose wire it is.

A transport (SIP and RTP, a carrier's media WebSocket, AudioSocket) makes a :class:`PhoneLine`; the call is a
:class:`LineEvents`. All of both run on the event loop; what is not ``async`` never blocks, never raises, and does
nothing once the line is down.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal, Protocol

from engines.api import Pcm16


class PlayoutOwner(enum.Enum):
    """Who releases frames to the caller's ear: the one real difference between phone wires."""

    OURS = "ours"
    """RTP, AudioSocket: a frame is heard as it is sent. At most two are ahead; silence is not sending."""
    THEIRS = "theirs"
    """Carriers: sent 200 to 400 ms ahead into their buffer, which can be cleared, and whose marks say what was
    heard."""


class Ability(enum.Enum):
    """What a line can do beside audio. The agent's tools are those that its line has."""

    TRANSFER = "transfer"
    SEND_DTMF = "send_dtmf"
    HOLD = "hold"


class LineError(Exception):
    """The line could not do it. ``code`` is stable; the call goes on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Incoming:
    """Who calls whom, as the wire says. Empty: it does not say. Numbers are the callers' own: redacted in logs."""

    transport: str
    """``sip``, ``twilio``, ``telnyx``, ``plivo``, ``vonage``, ``jambonz``, ``audiosocket``, ``asterisk``,
    ``freeswitch``."""
    agent: str = ""
    """The agent that the wire asks for by name (a SIP user, a carrier's parameter)."""
    dialled: str = ""
    """The number or user that was called."""
    caller: str = ""
    wire_id: str = ""
    """The other side's id of the call (Call-ID, callSid, UUID): for finding it in their logs."""
    direction: Literal["inbound", "outbound"] = "inbound"
    """``outbound``: we placed it, so ``dialled`` is who answered."""


@dataclass(frozen=True, slots=True)
class Quality:
    """What is known of the media so far; None: the wire does not tell."""

    frames_in: int = 0
    frames_out: int = 0
    lost: int | None = None
    concealed: int | None = None
    late: int | None = None
    jitter_ms: float | None = None
    round_trip_ms: float | None = None


class PhoneLine(Protocol):
    """What a call asks of its line."""

    owner: PlayoutOwner
    rate_hz: int
    """Of :meth:`play` (8,000 to 48,000), fixed before the call is answered."""
    abilities: frozenset[Ability]

    @property
    def congested(self) -> bool:
        """Whether audio must wait: the peer does not take it, or has put us on hold. :meth:`LineEvents.writable`
        says when it flows again."""

    def play(self, pcm: Pcm16) -> None:
        """20 ms of audio at :attr:`rate_hz`."""

    def mark(self, name: str) -> None:
        """After the audio so far (``THEIRS`` only): :meth:`LineEvents.mark_played` tells when it was heard."""

    def clear(self) -> bool:
        """Drop what the far end has not played (``THEIRS``), and what has not left. Returns whether audio was dropped
        on this side. Marks that come back because of it are told as ``cleared``."""

    async def send_dtmf(self, digits: str) -> None:
        """``0-9*#A-D``, at most 32. Returns when they were sent. Raises :class:`LineError`."""

    async def transfer(self, target: str) -> None:
        """Hand the caller over to ``target`` (a number or URI, already allowed). Returns when the other side took it
        over: the call then ends. Raises :class:`LineError`: the call goes on."""

    async def hold(self, on: bool) -> None:
        """Put the caller on hold, or back. Raises :class:`LineError`."""

    async def hang_up(self, cause: str) -> None:
        """End the phone call itself (BYE, REST, 0x00), bounded in time, and free the line. Twice is fine; after the
        far end hung up it only frees."""

    def quality(self) -> Quality: ...


class LineEvents(Protocol):
    """What a line tells its call."""

    def audio(self, pcm: Pcm16, rate_hz: int, at_ms: float | None = None) -> None:
        """Caller audio in order, of any length up to a second. ``at_ms`` is the media time of its first sample, where
        the wire has one: a jump forward is a gap, filled with silence."""

    def dtmf(self, digit: str) -> None:
        """One key, once."""

    def mark_played(self, name: str, *, cleared: bool = False) -> None:
        """Everything before the mark was heard, or (``cleared``) dropped before it was."""

    def held(self, on: bool) -> None:
        """The far end put us on hold, or took us back."""

    def writable(self) -> None:
        """The line is no longer congested."""

    def hung_up(self, cause: str) -> None:
        """The line is gone: ``caller_hung_up``, ``connection_lost``, ``media_timeout``, ``protocol_error``, …; the
        first cause stands."""
