"""A strict checker of the order of Realtime server events; each test that makes a call feeds it every event.

The rules are numbered as in ``docs/protocols/realtime.md``, "Order". It knows nothing of the gateway: it reads the
stream as a client does, so it works over any transport and in any test::

    checker = OrderChecker()
    for event in events:
        checker.feed(event)
    checker.finish()
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Event = dict[str, Any]

KNOWN_TYPES = frozenset(
    """
    session.created session.updated error
    input_audio_buffer.speech_started input_audio_buffer.speech_stopped input_audio_buffer.committed
    input_audio_buffer.cleared input_audio_buffer.timeout_triggered input_audio_buffer.dtmf_event_received
    conversation.item.added conversation.item.done conversation.item.retrieved conversation.item.deleted
    conversation.item.truncated
    conversation.item.input_audio_transcription.delta conversation.item.input_audio_transcription.completed
    conversation.item.input_audio_transcription.failed
    response.created response.done response.output_item.added response.output_item.done
    response.content_part.added response.content_part.done response.output_audio.delta response.output_audio.done
    response.output_audio_transcript.delta response.output_audio_transcript.done response.output_text.delta
    response.output_text.done response.function_call_arguments.delta response.function_call_arguments.done
    output_audio_buffer.started output_audio_buffer.stopped output_audio_buffer.cleared
    rate_limits.updated offhook.turn offhook.call_ended
    """.split()
)

AUDIO_ENDS = (
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
)
TEXT_ENDS = ("response.output_text.done", *AUDIO_ENDS[2:])
FUNCTION_ENDS = ("response.function_call_arguments.done", "response.output_item.done", "conversation.item.done")

MESSAGE_STARTS = ("response.output_item.added", "conversation.item.added", "response.content_part.added")
FUNCTION_STARTS = ("response.output_item.added", "conversation.item.added")

DELTAS = {
    "audio": {"response.output_audio.delta", "response.output_audio_transcript.delta"},
    "text": {"response.output_text.delta"},
    "function_call": {"response.function_call_arguments.delta"},
}
VOICE_STATES = ("started", "stopped", "timed_out", "committed", "added")


@dataclass
class _Output:
    """One output item on its way through a response."""

    item_id: str
    index: int
    kind: Literal["message", "function_call"]
    seen: list[str]
    part: str | None = None
    """``audio``, ``text`` or ``function_call`` once it is known."""
    joined: str = ""

    @property
    def starts(self) -> tuple[str, ...]:
        return MESSAGE_STARTS if self.kind == "message" else FUNCTION_STARTS

    @property
    def ends(self) -> tuple[str, ...]:
        return {"audio": AUDIO_ENDS, "text": TEXT_ENDS}.get(self.part or "", FUNCTION_ENDS)

    @property
    def next(self) -> str | None:
        """The next event of the frame; deltas may come before it where it is the first end."""
        frame = (*self.starts, *self.ends)
        return frame[len(self.seen)] if len(self.seen) < len(frame) else None

    @property
    def takes_deltas(self) -> bool:
        return len(self.seen) == len(self.starts)

    @property
    def over(self) -> bool:
        """That ``conversation.item.done`` comes for a function call is not promised."""
        return self.next is None or (self.kind == "function_call" and self.next == "conversation.item.done")


@dataclass
class _Response:
    id: str
    outputs: list[_Output] = field(default_factory=list)
    done: bool = False
    playback: Literal["none", "started", "over"] = "none"

    @property
    def current(self) -> _Output | None:
        """The output item that may have more events."""
        return self.outputs[-1] if self.outputs and self.outputs[-1].next is not None else None

    @property
    def unfinished(self) -> _Output | None:
        """The output item that must have more events."""
        return self.current if self.current is not None and not self.current.over else None


@dataclass
class _Voice:
    """A voice item on its way into the conversation."""

    item_id: str
    stage: Literal["started", "stopped", "timed_out", "committed", "added"]
    previous_item_id: str | None = None
    maybe_gone: bool = False
    """The buffer was cleared: that event does not say of which item."""


class OrderChecker:
    """Raises AssertionError with the rule's number at the first event out of order.

    ``transport``: on ``webrtc`` audio goes beside the events and ``output_audio_buffer.*`` tells of its playing.
    ``onset_cancels``: the session interrupts at the onset of speech (a client's own turn detection with
    ``interrupt_response``; not an agent's, which first waits for words), so a response that is active at
    ``speech_started`` must end as ``turn_detected`` before anything else is said of the input.
    """

    def __init__(self, *, transport: Literal["websocket", "webrtc"] = "websocket", onset_cancels: bool = False) -> None:
        self._transport = transport
        self._onset_cancels = onset_cancels
        self._event_ids: set[str] = set()
        self._client_event_ids: set[str | None] | None = None
        self._transcribes = False
        self._extended = False
        self._ended = False
        self._items: set[str] = set()
        self._deleted: set[str] = set()
        self._voices: dict[str, _Voice] = {}
        self._interrupted: str | None = None
        self._added: str | None = None
        self._transcripts: dict[str, str] = {}
        self._transcribed: set[str] = set()
        self._responses: dict[str, _Response] = {}

    @property
    def active_response(self) -> str | None:
        """The id of the response that is not done."""
        return next((response.id for response in self._responses.values() if not response.done), None)

    def sent(self, event: Event) -> None:
        """Tell of an event the client sent. From the first one on, errors may only name ids told here."""
        self._client_event_ids = self._client_event_ids or {None}
        self._client_event_ids.add(event.get("event_id"))

    def feed(self, event: Event) -> None:
        """The next server event."""
        kind = event.get("type")
        self._require(1, isinstance(kind, str) and kind in KNOWN_TYPES, event, "not a server event of GA")
        event_id = event.get("event_id")
        self._require(1, isinstance(event_id, str) and event_id != "", event, "no event_id")
        self._require(1, event_id not in self._event_ids, event, "event_id used before")
        self._require(9, not self._ended, event, "the call has ended")
        first = not self._event_ids
        self._event_ids.add(str(event_id))
        self._require(1, first == (kind == "session.created"), event, "session.created comes first, and once")
        self._dispatch(str(kind), event)

    def finish(self) -> None:
        """The stream ended at rest: nothing may be half done."""
        rest: Event = {"type": "end of stream"}
        half_done = [voice for voice in self._voices.values() if not voice.maybe_gone]
        self._require(2, not half_done, rest, f"voice items left half done: {half_done}")
        self._require(2, self._added is None, rest, f"item {self._added} was added, never done")
        waiting = set(self._transcripts) - self._deleted
        self._require(3, not waiting, rest, f"no transcript of {waiting}")
        self._require(5, self.active_response is None, rest, f"response {self.active_response} was never done")
        self._require(7, self._sounding is None, rest, f"the playback of {self._sounding} never ended")

    def _dispatch(self, kind: str, event: Event) -> None:
        if kind in ("session.created", "session.updated"):
            self._session(event)
        elif kind == "error":
            self._error(event)
        elif kind.startswith("input_audio_buffer."):
            self._input(kind.removeprefix("input_audio_buffer."), event)
        elif kind.startswith("conversation.item.input_audio_transcription."):
            self._transcription(kind.rpartition(".")[2], event)
        elif kind.startswith("conversation.item."):
            self._item(kind, event)
        elif kind.startswith("output_audio_buffer."):
            self._playback(kind.removeprefix("output_audio_buffer."), event)
        elif kind == "offhook.turn":
            self._turn(event)
        elif kind == "offhook.call_ended":
            self._require(9, self._extended, event, "an extension nobody asked for")
            self._require(9, isinstance(event.get("cause"), str) and event["cause"] != "", event, "no cause")
            self._ended = True
        elif kind == "response.created":
            self._response_created(event)
        elif kind == "response.done":
            self._response_done(event)
        elif kind.startswith("response."):
            self._response_part(kind, event)

    @staticmethod
    def _require(rule: int, holds: bool, event: Event, why: str) -> None:
        if not holds:
            raise AssertionError(f"rule {rule}: {why}; at {str(event)[:600]}")

    # --- session and errors ---------------------------------------------------------------------------------

    def _session(self, event: Event) -> None:
        session = event.get("session")
        self._require(1, isinstance(session, dict) and session.get("type") == "realtime", event, "no session")
        assert isinstance(session, dict)
        settings = session["audio"]["input"]
        self._transcribes = settings["transcription"] is not None
        self._extended = "offhook" in session.get("include", ())
        if settings["turn_detection"] is None:
            self._maybe_gone("started")

    def _error(self, event: Event) -> None:
        body = event.get("error")
        self._require(8, isinstance(body, dict), event, "no error object")
        assert isinstance(body, dict)
        for name in ("type", "code", "message"):
            self._require(8, isinstance(body.get(name), str) and body[name] != "", event, f"an error has a {name}")
        self._require(8, body["type"] != body["code"], event, "the code is not the type")
        self._require(8, {"param", "event_id"} <= body.keys(), event, "param and event_id are there, or null")
        if self._client_event_ids is not None:
            self._require(8, body["event_id"] in self._client_event_ids, event, "event_id the client never sent")

    # --- the caller's side ----------------------------------------------------------------------------------

    def _input(self, name: str, event: Event) -> None:
        if name == "dtmf_event_received":
            key, at = event.get("event"), event.get("received_at")
            self._require(9, isinstance(key, str) and len(key) == 1 and key in "0123456789*#ABCD", event, "no key")
            self._require(9, isinstance(at, int), event, "no time")
            return
        if name == "cleared":
            self._maybe_gone("started", "stopped")
            return
        item_id = event.get("item_id")
        self._require(2, isinstance(item_id, str) and item_id != "", event, "no item_id")
        self._require(2, self._interrupted is None, event, f"{self._interrupted} was interrupted, and is not done")
        item_id = str(item_id)
        if name == "speech_stopped":
            voice = self._voices.get(item_id)
            self._require(2, voice is not None and voice.stage == "started", event, f"stopped after {voice}")
            self._voices[item_id].stage = "stopped"
        elif name == "committed":
            self._committed(item_id, event)
        else:
            self._begin_voice(item_id, "started" if name == "speech_started" else "timed_out", event)

    def _begin_voice(self, item_id: str, stage: Literal["started", "timed_out"], event: Event) -> None:
        """One turn is spoken at a time; earlier ones may still wait for their words."""
        speaking = self._oldest("started", "timed_out")
        self._require(2, speaking is None, event, f"still open: {speaking}")
        self._require(2, item_id not in self._items and item_id not in self._voices, event, "item_id used before")
        self._voices[item_id] = _Voice(item_id, stage)
        if stage == "started" and self._onset_cancels:
            self._interrupted = self.active_response

    def _committed(self, item_id: str, event: Event) -> None:
        self._require(2, item_id not in self._items, event, "item_id used before")
        self._known_previous(2, event)
        half_done = self._oldest("committed", "added")
        self._require(2, half_done is None, event, f"not done: {half_done}")
        waiting = self._oldest(*VOICE_STATES)
        voice = self._voices.setdefault(item_id, _Voice(item_id, "stopped"))
        self._require(2, voice.stage in ("stopped", "timed_out"), event, f"committed after {voice}")
        self._require(2, waiting is None or waiting is voice or voice.maybe_gone, event, f"{waiting} comes before it")
        voice.stage, voice.previous_item_id, voice.maybe_gone = "committed", event["previous_item_id"], False
        if self._transcribes:
            self._transcripts[item_id] = ""

    def _oldest(self, *stages: str) -> _Voice | None:
        """The item in one of these stages that began first; not one that a clear may have ended."""
        voices = (voice for voice in self._voices.values() if voice.stage in stages and not voice.maybe_gone)
        return next(voices, None)

    def _maybe_gone(self, *stages: str) -> None:
        for voice in self._voices.values():
            voice.maybe_gone |= voice.stage in stages

    def _known_previous(self, rule: int, event: Event) -> None:
        self._require(rule, "previous_item_id" in event, event, "previous_item_id is there, or null")
        previous = event["previous_item_id"]
        self._require(rule, previous is None or previous in self._items, event, "unknown previous_item_id")

    def _transcription(self, name: str, event: Event) -> None:
        item_id = event["item_id"]
        self._require(3, item_id not in self._transcribed, event, "the transcript had ended")
        self._require(3, item_id in self._transcripts, event, "never committed, or transcription was off")
        if name == "delta":
            self._transcripts[item_id] += event["delta"]
            return
        joined = self._transcripts.pop(item_id)
        self._transcribed.add(item_id)
        if name == "completed":
            self._require(3, joined in ("", event["transcript"]), event, f"the deltas joined to {joined!r}")
            self._require(3, isinstance(event.get("usage"), dict), event, "no usage")

    def _item(self, kind: str, event: Event) -> None:
        name = kind.rpartition(".")[2]
        if name in ("added", "done"):
            self._item_in_place(name, event)
        else:
            item_id = event["item"]["id"] if name == "retrieved" else event["item_id"]
            self._require(2, item_id in self._items, event, "unknown item")
            if name == "truncated":
                told = "transcript" in event
                self._require(9, told == self._extended, event, "what was heard is told to who asked for it")
            if name == "deleted":
                self._items.discard(item_id)
                self._deleted.add(item_id)

    def _item_in_place(self, name: str, event: Event) -> None:
        item = event["item"]
        output = self._output_of(item["id"])
        if output is not None:
            self._require(4, output.next == event["type"], event, f"expected {output.next}")
            self._item_state(output, item, event)
            output.seen.append(event["type"])
        elif name == "added":
            self._input_item_added(item, event)
        else:
            self._require(2, self._added == item["id"], event, f"done after {self._added} was added")
            self._added = None
            self._voices.pop(item["id"], None)
        if name == "added":
            self._require(2, item["id"] not in self._items, event, "item id used before")
            self._known_previous(2, event)
            self._items.add(item["id"])

    def _input_item_added(self, item: dict[str, Any], event: Event) -> None:
        """A turn of the caller that was committed, or an item the client made."""
        self._require(2, self._added is None, event, f"{self._added} is not done")
        voice = self._voices.get(item["id"])
        if voice is not None:
            self._require(2, voice.stage == "committed", event, f"added after {voice}")
            same = event["previous_item_id"] == voice.previous_item_id and item["role"] == "user"
            self._require(2, same, event, f"not as committed: {voice}")
            voice.stage = "added"
        self._require(4, item["status"] != "in_progress", event, "belongs to no response")
        self._added = item["id"]

    # --- responses ------------------------------------------------------------------------------------------

    def _output_of(self, item_id: str) -> _Output | None:
        """The output item with this id that is on its way."""
        currents = (response.current for response in self._responses.values() if not response.done)
        return next((output for output in currents if output is not None and output.item_id == item_id), None)

    def _response_created(self, event: Event) -> None:
        response = event["response"]
        self._require(4, response["status"] == "in_progress", event, "a response begins in progress")
        self._require(4, response["output"] == [], event, "a response begins empty")
        self._require(4, response["id"] not in self._responses, event, "response id used before")
        self._require(4, self.active_response is None, event, f"{self.active_response} is not done")
        pending = self._oldest("committed", "added", "timed_out")
        self._require(2, pending is None, event, f"the item it answers is not done: {pending}")
        self._require(2, self._added is None, event, f"{self._added} is not done")
        self._responses[response["id"]] = _Response(response["id"])

    def _live(self, event: Event, response_id: Any) -> _Response:
        self._require(4, response_id in self._responses, event, "the response was never created")
        response = self._responses[response_id]
        self._require(5, not response.done, event, "the response was done")
        return response

    def _response_done(self, event: Event) -> None:
        body = event["response"]
        response = self._live(event, body["id"])
        unfinished = response.unfinished
        self._require(5, unfinished is None, event, f"output item left open: {unfinished}")
        shown = [item["id"] for item in body["output"]]
        self._require(4, shown == [output.item_id for output in response.outputs], event, "not the items it made")
        self._require(4, isinstance(body.get("usage"), dict), event, "no usage")
        self._status(body, event)
        if self._interrupted == response.id:
            details = body["status_details"]
            reason = (body["status"], details.get("reason")) == ("cancelled", "turn_detected")
            self._require(2, reason, event, "interrupted by speech")
            self._interrupted = None
        response.done = True

    def _status(self, body: dict[str, Any], event: Event) -> None:
        status, details = body["status"], body["status_details"] or {"type": body["status"]}
        self._require(4, details.get("type") == status, event, "status_details of another status")
        if status == "cancelled":
            self._require(4, details.get("reason") in ("turn_detected", "client_cancelled"), event, "no reason")
        elif status == "incomplete":
            self._require(4, details.get("reason") in ("max_output_tokens", "content_filter"), event, "no reason")
        elif status == "failed":
            self._require(8, bool((details.get("error") or {}).get("code")), event, "a failure has a code")
        else:
            self._require(4, status == "completed", event, "not a final status")
        if status == "completed":
            whole = all(item["status"] == "completed" for item in body["output"])
            self._require(4, whole, event, "a completed response has completed items")

    def _response_part(self, kind: str, event: Event) -> None:
        response = self._live(event, event.get("response_id"))
        output = response.current
        if kind == "response.output_item.added":
            self._output_added(response, event)
            return
        self._require(4, output is not None, event, "no output item is open")
        assert output is not None
        item_id = event["item"]["id"] if kind == "response.output_item.done" else event.get("item_id")
        self._require(4, item_id == output.item_id, event, f"the open item is {output.item_id}")
        self._require(4, event["output_index"] == output.index, event, f"the open index is {output.index}")
        if kind.endswith(".delta"):
            self._delta(kind, output, event)
        else:
            self._frame_event(kind, output, event)

    def _output_added(self, response: _Response, event: Event) -> None:
        unfinished = response.unfinished
        self._require(4, unfinished is None, event, f"the item before is open: {unfinished}")
        item = event["item"]
        self._require(4, item["status"] == "in_progress", event, "an item begins in progress")
        self._require(4, item["type"] in ("message", "function_call"), event, "not an output item")
        self._require(4, event["output_index"] == len(response.outputs), event, "indexes count up")
        if item["type"] == "message":
            self._require(4, item["role"] == "assistant", event, "a reply is the assistant's")
        output = _Output(item["id"], event["output_index"], item["type"], ["response.output_item.added"])
        response.outputs.append(output)

    def _delta(self, kind: str, output: _Output, event: Event) -> None:
        self._open_function(output)
        self._require(4, output.takes_deltas, event, f"expected {output.next}")
        self._require(4, kind in DELTAS[output.part or ""], event, f"not a delta of {output.part}")
        on_event = kind != "response.output_audio.delta" or self._transport == "websocket"
        self._require(7, on_event, event, "audio goes beside the events here")
        if kind != "response.output_audio.delta":
            output.joined += event["delta"]

    def _open_function(self, output: _Output) -> None:
        """Whether ``conversation.item.added`` and ``.done`` frame a function call is not promised."""
        if output.kind == "function_call":
            output.part = "function_call"
            if len(output.seen) == 1:
                output.seen.append("conversation.item.added")

    def _frame_event(self, kind: str, output: _Output, event: Event) -> None:
        if kind == "response.function_call_arguments.done":
            self._open_function(output)
        self._require(4, output.next == kind, event, f"expected {output.next}")
        if kind == "response.content_part.added":
            output.part = event["part"]["type"]
            self._require(4, output.part in ("audio", "text"), event, "a part is audio or text")
        elif kind == "response.content_part.done":
            text = event["part"].get("transcript" if output.part == "audio" else "text")
            self._require(4, text == output.joined, event, f"the deltas joined to {output.joined!r}")
        elif kind == "response.output_item.done":
            self._item_state(output, event["item"], event)
        for name in ("transcript", "text", "arguments"):
            if name in event:
                rule = 6 if name == "arguments" else 4
                self._require(rule, event[name] == output.joined, event, f"the deltas joined to {output.joined!r}")
        output.seen.append(kind)

    def _item_state(self, output: _Output, item: dict[str, Any], event: Event) -> None:
        if len(output.seen) < len(output.starts):
            self._require(4, item["status"] == "in_progress", event, "an item begins in progress")
        else:
            rule = 6 if output.kind == "function_call" else 5
            self._require(rule, item["status"] in ("completed", "incomplete"), event, "the item is over")

    # --- playback -------------------------------------------------------------------------------------------

    def _playback(self, name: str, event: Event) -> None:
        self._require(7, self._transport == "webrtc", event, "only WebRTC and SIP have an output buffer")
        response_id = event.get("response_id")
        self._require(7, response_id in self._responses, event, "the response was never created")
        response = self._responses[str(response_id)]
        expected = "none" if name == "started" else "started"
        self._require(7, response.playback == expected, event, f"playback was {response.playback}")
        if name == "started":
            self._require(7, not response.done, event, "a response is not done before it is sent")
            self._require(7, self._sounding is None, event, f"{self._sounding} still sounds")
        elif name == "stopped":
            self._require(7, response.done, event, "what is heard to its end was made to its end")
        response.playback = "started" if name == "started" else "over"

    @property
    def _sounding(self) -> str | None:
        """The response whose playback began and has not ended."""
        return next((response.id for response in self._responses.values() if response.playback == "started"), None)

    # --- extensions -----------------------------------------------------------------------------------------

    def _turn(self, event: Event) -> None:
        self._require(9, self._extended, event, "an extension nobody asked for")
        turn = event.get("turn")
        known = isinstance(turn, dict) and turn.get("response_id") in self._responses
        self._require(9, known, event, "the times of a response that was never created")
