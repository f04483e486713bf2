"""What a carrier's media WebSocket says and hears, as values: the contract of the one core with each vendor's module.

A vendor is two things. A :class:`Carrier` (one a gateway) judges signatures and answers webhooks; a :class:`Dialect`
(one a call) turns messages into events and back. Both are pure: no sockets, no clocks. What has to be done over the
vendor's REST API is a :class:`RestRequest`, which ``rest.py`` sends.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from engines.api import Pcm16
from gateway.transports.phone.line import Ability, Incoming, PlayoutOwner

Message = str | bytes
"""A WebSocket message, text or binary."""

MAX_NAME_CHARS = 128
"""Of anything a wire names (ids, marks, agents, numbers): longer is cut or refused."""


class Encoding(enum.Enum):
    """What audio is on the wire, mono."""

    MULAW = "mulaw"
    ALAW = "alaw"
    PCM16_LE = "pcm16_le"
    PCM16_BE = "pcm16_be"
    """Network order, as in RTP's L16."""


# --- what a message says ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The stream begins. Nothing that came before it counts."""

    incoming: Incoming
    encoding: Encoding = Encoding.MULAW
    rate_hz: int = 8_000
    """Of the caller's audio."""
    out_rate_hz: int | None = None
    """Of :meth:`Dialect.encode_audio`; None: as the caller's."""
    owner: PlayoutOwner = PlayoutOwner.THEIRS
    """``OURS``: a wire that can neither clear nor mark. Then :meth:`Dialect.encode_mark` is not called."""
    tail: tuple[Message, ...] = ()
    """What makes the carrier play the end of what it has, sent when no audio follows a mark."""


@dataclass(frozen=True, slots=True)
class Audio:
    """Caller audio in the encoding of :class:`Started`, any length."""

    payload: bytes
    at_ms: float | None = None
    """Media time of its first sample, where the wire has one."""


@dataclass(frozen=True, slots=True)
class Key:
    digit: str
    """One of ``0-9*#A-D``."""


@dataclass(frozen=True, slots=True)
class MarkPlayed:
    name: str
    cleared: bool | None = None
    """Whether it was dropped unheard; None: the wire does not say (:attr:`Dialect.marks_return_on_clear`)."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """The carrier dropped what it had not played."""


@dataclass(frozen=True, slots=True)
class Flow:
    """The carrier's buffer is full (``False``), or takes audio again."""

    on: bool


@dataclass(frozen=True, slots=True)
class Stopped:
    """The carrier ended the stream. ``cause`` as in :meth:`gateway.transports.phone.line.LineEvents.hung_up`."""

    cause: str = "caller_hung_up"


@dataclass(frozen=True, slots=True)
class Ignored:
    """Nothing that concerns the call. ``reason`` is counted: ``unknown_event``, ``bad_json``, ``bad_audio``, … or empty
    for what is simply of no interest."""

    reason: str = ""


CarrierEvent = Started | Audio | Key | MarkPlayed | Cleared | Flow | Stopped | Ignored


# --- what is asked of the vendor --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RestRequest:
    """One call of the vendor's REST API, relative to its base URL."""

    method: str
    path: str
    body: Mapping[str, object] | None = None
    """Sent as JSON, or as a form (``form``)."""
    form: bool = False
    done: frozenset[int] = frozenset()
    """Statuses beside 2xx that mean it is so already (a call that has ended cannot be hung up)."""
    repeatable: bool = True
    """Whether it may be sent again when it is not known to have arrived. A transfer may not."""


@dataclass(frozen=True, slots=True)
class Act:
    """How something is done on this wire: messages on the stream, then a request. Neither: closing the stream does
    it."""

    messages: tuple[Message, ...] = ()
    request: RestRequest | None = None
    sounds_s: float = 0.0
    """How long the keys sound that this sends. If messages are their tones, so long nothing is cleared."""


class Dialect(Protocol):
    """One call's wire. Its methods raise nothing, except where they say so; before :class:`Started` only
    :meth:`decode` is called."""

    abilities: frozenset[Ability]
    marks_return_on_clear: bool
    """Whether marks that a clear dropped come back as played (Twilio, Telnyx). If not, :class:`Cleared` ends them."""

    def decode(self, message: Message) -> tuple[CarrierEvent, ...]:
        """What a message says, in order. Whatever it is: hostile input is :class:`Ignored`."""

    def encode_audio(self, pcm: Pcm16) -> list[Message]:
        """About 20 ms at the rate of :class:`Started`."""

    def encode_mark(self, name: str) -> list[Message]: ...

    def encode_clear(self) -> list[Message]: ...

    def send_dtmf(self, digits: str) -> Act:
        """Only with the ability."""

    def transfer(self, target: str) -> Act:
        """Only with the ability. ``target``: a number (``+15551234``) or a SIP URI."""

    def hang_up(self) -> Act:
        """Ends the phone call, after which the stream is closed."""


# --- what a vendor is to the gateway --------------------------------------------------------------------------------


class Unauthentic(Exception):  # noqa: N818 (an answer, not a defect)
    """It does not come from the vendor, or not now: 403. ``code`` is stable: ``signature_missing``,
    ``signature_invalid``, ``signature_expired``, ``signature_replayed``, ``ticket_invalid``, ``host_invalid``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class BadWebhook(Exception):  # noqa: N818 (an answer, not a defect)
    """The vendor's request cannot be understood: 400."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of the vendor, WebSocket upgrade or webhook, as its signature sees it."""

    url: str
    """As the vendor was given it: ``public_url``, path and query; ``wss:`` or ``https:``."""
    headers: Mapping[str, str]
    """Names in lower case."""
    query: Mapping[str, str] = field(default_factory=dict)
    method: str = "GET"
    body: bytes = b""
    form: tuple[tuple[str, str], ...] = ()
    """Of a body that is ``application/x-www-form-urlencoded``, in order."""


@dataclass(frozen=True, slots=True)
class StreamTo:
    """Where a call's audio shall go, for the answer to its webhook."""

    url: str
    """``wss:``, with a ticket in its path that opens one call, once, within a minute."""
    incoming: Incoming
    """With the agent that was chosen."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a webhook is answered with; and what must be done over REST for it, once it was answered."""

    body: bytes
    media_type: str
    request: RestRequest | None = None
    status: int = 200


Publish = Callable[[Reply], str]
"""Puts a document where the vendor may fetch it once, within a minute; returns its ``https:`` URL. For vendors whose
transfer is a URL, and not the document itself."""


class Carrier(Protocol):
    """One vendor, as it is configured."""

    name: str
    signs_upgrade: bool
    """Whether :meth:`check_upgrade` proves who connects. If not, the stream needs a ticket, or ``stream_token``."""
    api_url: str
    """Base URL of its REST API; empty: there are no credentials for one, and abilities that need it are missing."""

    @property
    def subprotocol(self) -> str | None:
        """To accept the stream with, if it is offered."""

    def check_upgrade(self, asked: Asked) -> None:
        """Raises :class:`Unauthentic`. Without ``signs_upgrade``: judges ``stream_token`` for a stream without
        ticket."""

    def check_webhook(self, asked: Asked) -> None:
        """Raises :class:`Unauthentic`."""

    def read_webhook(self, asked: Asked) -> Incoming | None:
        """Who calls whom; None: it is about something else, and is answered with an empty 200. Raises
        :class:`BadWebhook`."""

    def connect(self, asked: Asked, to: StreamTo) -> Reply:
        """Answers a webhook with: connect the call to the stream."""

    def refuse(self, asked: Asked, *, busy: bool) -> Reply:
        """Answers a webhook with: no call now (``busy``), or nobody is at that number."""

    def dialect(self, publish: Publish) -> Dialect:
        """For one call."""

    def api_headers(self, request: RestRequest) -> Mapping[str, str]:
        """Its authorization, made anew for each."""
