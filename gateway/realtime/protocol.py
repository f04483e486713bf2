"""One Realtime session's event stream, sans-IO: text frames in, what the call must do out; notices in, frames out.

The pattern is that of websockets' own protocol object: nothing here waits, reads a clock or touches a socket. The
owner calls :meth:`RealtimeProtocol.receive` for each frame, :meth:`~RealtimeProtocol.encode` for each notice, and
sends what :meth:`~RealtimeProtocol.take` gives after each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

import msgspec
from msgspec.structs import replace

from gateway.realtime import client_events as client
from gateway.realtime import server_events
from gateway.realtime.client_events import ParsedEvent, parse_event
from gateway.realtime.errors import ProtocolError, Rejected
from gateway.realtime.items import read_item
from gateway.realtime.responses import read_options
from gateway.realtime.session_lock import IGNORED, hide_tools, open_fields, refuse_event, refuse_session, show_locked
from gateway.realtime.session_object import Locks, Session, SessionDefaults, WireFormat, merge
from gateway.realtime.session_patch import EXTENSIONS, SessionPatch
from streaming.config import ResponseOptions, SessionConfig
from streaming.events import (
    CancelResponse,
    ClearOutput,
    Configure,
    CreateItem,
    CreateResponse,
    DeleteItem,
    Dtmf,
    RetrieveItem,
    TruncateItem,
)
from streaming.notices import (
    CallEnded,
    InputCommitted,
    Notice,
    PlaybackStarted,
    ResponseCreated,
    ResponseDone,
    TranscriptCompleted,
    TranscriptDelta,
    TranscriptFailed,
    TurnRecorded,
)

NOT_HERE = "not_supported_on_this_transport"

MAX_PENDING_TRANSCRIPTS = 1_000
"""Committed items whose transcript may still come; the oldest are forgotten first."""


class AppendAudio(msgspec.Struct, frozen=True):
    """Caller audio in the session's input format: whole samples, never empty."""

    audio: bytes


class CommitAudio(msgspec.Struct, frozen=True):
    event_id: str | None = None


class ClearAudio(msgspec.Struct, frozen=True):
    event_id: str | None = None


Inbound = (
    AppendAudio
    | CommitAudio
    | ClearAudio
    | Configure
    | CreateItem
    | RetrieveItem
    | DeleteItem
    | TruncateItem
    | CreateResponse
    | CancelResponse
    | ClearOutput
    | Dtmf
)


class RealtimeProtocol:
    """Both directions of one session. ``new_id(kind)`` gives a unique id such as ``event_…``; ``now_s`` is Unix time.

    ``count`` is told by name what is to be counted. ``call_id`` is shown as the session's id, ``model`` as its model.
    ``media``: audio goes beside the events, by RTP (WebRTC, SIP), so none comes or goes in them; the output buffer is
    the gateway's, and its events tell of it.
    """

    def __init__(
        self,
        *,
        call_id: str,
        model: str,
        defaults: SessionDefaults,
        new_id: Callable[[str], str],
        now_s: Callable[[], float],
        count: Callable[[str], None],
        media: bool = False,
    ) -> None:
        self._call_id = call_id
        self._model = model
        self._defaults = defaults
        self._new_id = new_id
        self._now_s = now_s
        self._count = count
        self._media = media
        self._expires_at_s = int(now_s() + defaults.config.max_call_s)
        self._conversation_id = new_id("conv")
        self._session = Session.initial(defaults)
        self._locked = False
        self._input_flowed = False
        self._output_flowed = False
        self._responding: set[str] = set()
        self._transcribing: dict[str, None] = {}
        self._outgoing: list[str] = []

    @property
    def config(self) -> SessionConfig:
        """What the call's session is to do now; the first one, before any update."""
        return replace(self._session.config(self._defaults), owns_playout=self._media)

    @property
    def input_format(self) -> WireFormat:
        return self._session.input_format

    @property
    def output_format(self) -> WireFormat:
        return self._session.output_format

    def take(self) -> list[str]:
        """The frames to send, in order; the queue is empty afterwards."""
        taken, self._outgoing = self._outgoing, []
        return taken

    def begin_with(self, session: object) -> None:
        """A session object that came with the call (beside an SDP offer, inside a client secret), before :meth:`open`.
        All or nothing, as an update. Raises :class:`gateway.realtime.errors.Rejected`."""
        update = msgspec.json.encode({"type": "session.update", "session": session})
        parsed = parse_event(update.decode())
        if isinstance(parsed, ProtocolError):
            raise Rejected(parsed.code, parsed.message, parsed.param)
        assert isinstance(parsed, client.SessionUpdate)
        if self._locked:
            refuse_session(parsed.session)
        self._merge(parsed.session)

    def lock(self) -> None:
        """From here on the client takes part in the call as it is (:mod:`gateway.realtime.session_lock`). What has
        been set until now is what a null restores."""
        self._locked = True
        self._defaults = replace(self._defaults, config=self._session.config(self._defaults))

    def show_session(self) -> dict[str, Any]:
        """The session as ``session.created`` carries it."""
        ids = {"id": self._call_id, "model": self._model, "expires_at": self._expires_at_s}
        shown = self._session.show()
        return {**(show_locked(shown) if self._locked else shown), **ids}

    # --- in -------------------------------------------------------------------------------------------------

    def receive(self, text: str) -> list[Inbound]:
        """One text frame. A bad one queues exactly one ``error`` and gives nothing."""
        return self.apply(parse_event(text))

    def receive_binary(self) -> None:
        """A binary frame: there is no event in one."""
        self._fail(ProtocolError("unexpected_binary_frame", "events are JSON text frames"))

    def apply(self, parsed: ParsedEvent | ProtocolError) -> list[Inbound]:
        """What :func:`parse_event` made of a frame, perhaps in another thread. Frames must be applied in order."""
        if isinstance(parsed, ProtocolError):
            self._fail(parsed)
            return []
        try:
            return self._apply(parsed)
        except Rejected as refusal:
            self._fail(refusal.error(parsed.event_id))
            return []

    def _apply(self, event: ParsedEvent) -> list[Inbound]:
        if self._locked:
            refuse_event(event)
        match event:
            case client.ParsedAppend():
                return self._append(event.audio)
            case client.SessionUpdate():
                return [self._update(event)]
            case client.InputCommit():
                return [CommitAudio(event.event_id)]
            case client.InputClear():
                return [ClearAudio(event.event_id)]
            case client.OutputClear() if self._media:
                return [ClearOutput(event.event_id)]
            case client.OutputClear():
                raise Rejected(
                    NOT_HERE,
                    "only WebRTC and SIP have an output buffer here; cancel the response and truncate its item",
                    "type",
                )
            case client.ItemCreate():
                return [CreateItem(read_item(event.item, self._new_id), event.previous_item_id, event.event_id)]
            case client.ItemRetrieve():
                return [RetrieveItem(event.item_id, event.event_id)]
            case client.ItemDelete():
                return [DeleteItem(event.item_id, event.event_id)]
            case client.ItemTruncate():
                return [TruncateItem(event.item_id, event.content_index, event.audio_end_ms, event.event_id)]
            case client.ResponseCreate():
                options = read_options(event.response, self._session) if event.response else ResponseOptions()
                return [CreateResponse(options, event.event_id)]
            case client.ResponseCancel():
                return [CancelResponse(event.response_id, event.event_id)]
            case client.DtmfPressed():
                return [Dtmf(digit) for digit in event.digits]
            case _:
                assert_never(event)

    def _append(self, audio: bytes) -> list[Inbound]:
        if self._media:
            raise Rejected(NOT_HERE, "audio goes by RTP on this transport, not in events", "type")
        size = self.input_format.bytes_per_sample
        if len(audio) % size:
            raise Rejected("invalid_audio_length", f"a sample of this format has {size} bytes", "audio")
        if not audio:
            return []
        self._input_flowed = True
        return [AppendAudio(audio)]

    def _update(self, event: client.SessionUpdate) -> Configure:
        patch = open_fields(event.session) if self._locked else event.session
        self._merge(patch)
        if patch != event.session:
            self._count(IGNORED)
        self._send_session("session.updated")
        return Configure(self.config)

    def _merge(self, patch: SessionPatch) -> None:
        locks = Locks(self._input_flowed, self._output_flowed, bool(self._responding))
        session = merge(self._session, patch, self._defaults, locks)
        if self._media:
            for side, wire in (("input", session.input_format), ("output", session.output_format)):
                if wire is not WireFormat.PCM:
                    message = "audio goes by RTP on this transport: its codec is negotiated there"
                    raise Rejected("unsupported_audio_format", message, f"session.audio.{side}.format")
        self._session = session

    # --- out ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Queue ``session.created``, which must be the first event."""
        self._send_session("session.created")

    def encode(self, notice: Notice) -> None:
        """Queue the events of a notice, in the order the protocol promises."""
        if self._locked:
            notice = hide_tools(notice)
        if self._wanted(notice):
            for event in server_events.events_of(notice, self._session, self._conversation_id, self._now_s):
                self._send(event)

    def encode_audio(self, response_id: str, item_id: str, audio: bytes) -> None:
        """Queue ``response.output_audio.delta``; ``audio`` is whole samples in the output format."""
        self._output_flowed = True
        self._outgoing.append(server_events.audio_delta(response_id, item_id, audio, self._new_id("event")))

    def _wanted(self, notice: Notice) -> bool:
        """Keep track of responses, and of the items whose transcripts the client was promised: the setting at
        the commit decides, so that each of them gets exactly one end."""
        match notice:
            case InputCommitted():
                if self._session.transcription is not None:
                    self._transcribing[notice.item_id] = None
                    if len(self._transcribing) > MAX_PENDING_TRANSCRIPTS:
                        del self._transcribing[next(iter(self._transcribing))]
            case TranscriptDelta():
                return notice.item_id in self._transcribing
            case TranscriptCompleted() | TranscriptFailed():
                promised = notice.item_id in self._transcribing
                self._transcribing.pop(notice.item_id, None)
                return promised
            case ResponseCreated():
                self._responding.add(notice.response.id)
            case ResponseDone():
                self._responding.discard(notice.response.id)
            case PlaybackStarted():
                self._output_flowed = True
            case TurnRecorded() | CallEnded():
                return EXTENSIONS in self._session.include
            case _:
                pass
        return True

    def _send_session(self, kind: str) -> None:
        self._send({"type": kind, "session": self.show_session()})

    def _fail(self, fault: ProtocolError) -> None:
        self._send(server_events.error(fault))

    def _send(self, event: server_events.Event) -> None:
        self._outgoing.append(server_events.stamp(event, self._new_id("event")))
