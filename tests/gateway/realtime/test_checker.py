"""The checker accepts what the protocol promises, and names the rule of each breach of it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest

from tests.gateway.realtime.checker import Event, OrderChecker

Events = list[Event]


def event(kind: str, **fields: Any) -> Event:
    return {"type": kind, **fields}


def session(
    kind: str = "session.created", transcribes: bool = True, turns: bool = True, include: Sequence[str] = ()
) -> Event:
    settings: dict[str, Any] = {"transcription": {} if transcribes else None, "turn_detection": {} if turns else None}
    return event(kind, session={"type": "realtime", "audio": {"input": settings}, "include": include})


def dtmf(key: Any, at: Any = 1_700_000_000) -> Event:
    return event("input_audio_buffer.dtmf_event_received", event=key, received_at=at)


def without_transcript(cut: Event) -> Event:
    return {name: value for name, value in cut.items() if name != "transcript"}


def item(item_id: str, role: str = "user", status: str = "completed", **fields: Any) -> dict[str, Any]:
    return {"id": item_id, "type": "message", "role": role, "status": status, "content": [], **fields}


def speech(item_id: str) -> Events:
    return [
        event("input_audio_buffer.speech_started", item_id=item_id, audio_start_ms=0),
        event("input_audio_buffer.speech_stopped", item_id=item_id, audio_end_ms=900),
    ]


def commit(item_id: str, previous: str | None = None) -> Events:
    return [
        event("input_audio_buffer.committed", item_id=item_id, previous_item_id=previous),
        event("conversation.item.added", item=item(item_id), previous_item_id=previous),
        event("conversation.item.done", item=item(item_id), previous_item_id=previous),
    ]


def transcript(item_id: str, text: str = "hello") -> Events:
    kind = "conversation.item.input_audio_transcription"
    return [
        event(f"{kind}.delta", item_id=item_id, content_index=0, delta=text),
        event(f"{kind}.completed", item_id=item_id, content_index=0, transcript=text, usage={"type": "duration"}),
    ]


def created(response_id: str) -> Event:
    return event("response.created", response={"id": response_id, "status": "in_progress", "output": []})


def done(response_id: str, *output: dict[str, Any], status: str = "completed", **details: Any) -> Event:
    body = {
        "id": response_id,
        "status": status,
        "output": list(output),
        "usage": {},
        "status_details": {"type": status, **details},
    }
    return event("response.done", response=body)


def parts(response_id: str, item_id: str, kind: str) -> Callable[..., Event]:
    content = {"response_id": response_id, "item_id": item_id, "output_index": 0, "content_index": 0}
    return lambda name, **fields: event(f"response.{name}", **content, **fields)


def reply(
    response_id: str = "r1", item_id: str = "a1", previous: str | None = None, kind: str = "audio", **end: Any
) -> Events:
    part = parts(response_id, item_id, kind)
    field = "transcript" if kind == "audio" else "text"
    stream = "output_audio_transcript" if kind == "audio" else "output_text"
    open_item = item(item_id, "assistant", "in_progress")
    status = end.get("status", "completed")
    last = item(item_id, "assistant", "completed" if status == "completed" else "incomplete")
    at = {"response_id": response_id, "output_index": 0}
    events = [
        created(response_id),
        event("response.output_item.added", **at, item=open_item),
        event("conversation.item.added", item=open_item, previous_item_id=previous),
        part("content_part.added", part={"type": kind, field: ""}),
        part(f"{stream}.delta", delta="Hi "),
        *([part("output_audio.delta", delta="AAAA")] if kind == "audio" else []),
        part(f"{stream}.delta", delta="there."),
        *([part("output_audio.done")] if kind == "audio" else []),
        part(f"{stream}.done", **{field: "Hi there."}),
        part("content_part.done", part={"type": kind, field: "Hi there."}),
        event("response.output_item.done", **at, item=last),
        event("conversation.item.done", item=last, previous_item_id=previous),
        done(response_id, last, **end),
    ]
    return copy.deepcopy(events)


def function_call(framed: bool, status: str = "completed") -> Events:
    call = {"id": "f1", "type": "function_call", "status": "in_progress", "name": "f"}
    over = {**call, "status": status}
    at = {"response_id": "r1", "output_index": 0}
    arguments = {**at, "item_id": "f1", "call_id": "c1"}
    added = event("conversation.item.added", item=call, previous_item_id=None)
    finished = event("conversation.item.done", item=over, previous_item_id=None)
    return [
        created("r1"),
        event("response.output_item.added", **at, item=call),
        *([added] if framed else []),
        event("response.function_call_arguments.delta", **arguments, delta='{"a"'),
        event("response.function_call_arguments.delta", **arguments, delta=":1}"),
        event("response.function_call_arguments.done", **arguments, arguments='{"a":1}', name="f"),
        event("response.output_item.done", **at, item=over),
        *([finished] if framed else []),
        done("r1", over),
    ]


TURN = [*speech("u1"), *commit("u1"), *transcript("u1")]


def run(events: Events, checker: OrderChecker | None = None, *, finish: bool = True) -> None:
    checker = checker or OrderChecker()
    numbers = itertools.count(1)
    for each in [copy.deepcopy(event) for event in events]:
        each.setdefault("event_id", f"event_{next(numbers)}")
        checker.feed(each)
    if finish:
        checker.finish()


def breaks(rule: int, events: Events, checker: OrderChecker | None = None, *, finish: bool = False) -> None:
    with pytest.raises(AssertionError, match=rf"^rule {rule}: "):
        run(events, checker, finish=finish)


def without(events: Events, kind: str) -> Events:
    kept = [each for each in events if each["type"] != kind]
    assert len(kept) < len(events)
    return kept


# --- what is right --------------------------------------------------------------------------------------------

LATE = [*speech("u1"), *commit("u1"), *reply(previous="u1"), *transcript("u1")]
NEXT_TURN_BEFORE_WORDS = [
    *speech("u1"),
    speech("u2")[0],
    *commit("u1"),
    *transcript("u1"),
    speech("u2")[1],
    *commit("u2", "u1"),
    *transcript("u2"),
]
OVER_REPLY = [*reply()[:6], *TURN, *reply()[6:], *reply("r2", "a2", "u1")]
CLEARED = event("input_audio_buffer.cleared")
BARGE_IN = [
    *reply()[:6],
    speech("u1")[0],
    *reply(status="cancelled", reason="turn_detected")[6:],
    speech("u1")[1],
    *commit("u1", "a1"),
    *transcript("u1"),
]
TIMEOUT = [
    event("input_audio_buffer.timeout_triggered", item_id="u1", audio_start_ms=0, audio_end_ms=6_000),
    *commit("u1"),
    *transcript("u1", ""),
    *reply(previous="u1"),
]
FAILED_TRANSCRIPT = event(
    "conversation.item.input_audio_transcription.failed", item_id="u1", content_index=0, error={"code": "x"}
)
ERROR = event("error", error={"type": "t", "code": "c", "message": "m", "param": None, "event_id": None})


@pytest.mark.parametrize(
    "events",
    [
        [],
        [*TURN, *reply(previous="u1")],
        LATE,
        NEXT_TURN_BEFORE_WORDS,
        OVER_REPLY,
        TIMEOUT,
        BARGE_IN,
        reply(kind="text"),
        reply(status="incomplete", reason="max_output_tokens"),
        [created("r1"), done("r1", status="failed", error={"code": "llm_failed"})],
        [created("r1"), done("r1", status="cancelled", reason="client_cancelled")],
        [*speech("u1"), CLEARED, *speech("u2"), *commit("u2"), *transcript("u2")],
        [speech("u1")[0], CLEARED, *speech("u2"), CLEARED],
        [speech("u1")[0], session("session.updated", turns=False), *commit("u2"), *transcript("u2")],
        [speech("u1")[0], CLEARED, speech("u1")[1], *commit("u1"), *transcript("u1")],
        [*speech("u1"), *commit("u1"), FAILED_TRANSCRIPT],
        [session("session.updated", transcribes=False), *speech("u1"), *commit("u1")],
        [*commit("u1"), event("conversation.item.deleted", item_id="u1")],
        [*TURN, event("conversation.item.retrieved", item=item("u1")), *commit("u2", "u1"), *transcript("u2")],
        [*reply(), event("conversation.item.truncated", item_id="a1", content_index=0, audio_end_ms=5)],
        [event("rate_limits.updated"), ERROR, dtmf("1")],
        function_call(framed=True),
        function_call(framed=False),
    ],
)  # fmt: skip
def test_good_streams(events: Events) -> None:
    run([session(), *events])


def test_playback_on_webrtc() -> None:
    playback = [event(f"output_audio_buffer.{name}", response_id="r1") for name in ("started", "stopped")]
    events = without(reply(), "response.output_audio.delta")
    run([session(), *events[:5], playback[0], *events[5:], playback[1]], OrderChecker(transport="webrtc"))
    playback[1]["type"] = "output_audio_buffer.cleared"
    run([session(), *events[:5], *playback, *events[5:]], OrderChecker(transport="webrtc"))
    unended = [session(), *events[:5], playback[0], *events[5:]]
    breaks(7, unended, OrderChecker(transport="webrtc"), finish=True)


def test_extensions_go_to_who_asked_for_them() -> None:
    cut = event("conversation.item.truncated", item_id="a1", content_index=0, audio_end_ms=5, transcript="he")
    extensions = [cut, event("offhook.turn", turn={"response_id": "r1"})]
    run([session(include=["offhook"]), *reply(), *extensions, session("session.updated")])
    for extension in extensions:
        breaks(9, [session(), *reply(), extension])
    breaks(9, [session(include=["offhook"]), *reply(), without_transcript(cut)])
    ended = event("offhook.call_ended", cause="server_drain")
    run([session(include=["offhook"]), ended])
    breaks(9, [session(), ended])
    breaks(9, [session(include=["offhook"]), ended, ended])
    breaks(9, [session(include=["offhook"]), event("offhook.call_ended", cause=None)])
    breaks(9, [session(include=["offhook"]), event("offhook.turn", turn={"response_id": "r1"})])


def test_errors_name_events_that_were_sent() -> None:
    checker = OrderChecker()
    checker.sent({"type": "response.cancel", "event_id": "mine"})
    mine = copy.deepcopy(ERROR)
    mine["error"]["event_id"] = "mine"
    run([session(), ERROR, mine], checker)
    checker = OrderChecker()
    checker.sent({"type": "response.cancel"})
    breaks(8, [session(), mine], checker)


def test_active_response() -> None:
    checker = OrderChecker()
    run([session(), created("r1")], checker, finish=False)
    assert checker.active_response == "r1"


# --- what is wrong --------------------------------------------------------------------------------------------


def test_rule_1() -> None:
    breaks(1, TURN)
    breaks(1, [session(), session()])
    breaks(1, [{**session(), "event_id": ""}])
    breaks(1, [{**session(), "event_id": "e"}, {**ERROR, "event_id": "e"}])
    breaks(1, [session(), event("conversation.item.created", item=item("u1"))])
    breaks(1, [event("session.created")])


@pytest.mark.parametrize(
    "events",
    [
        [speech("u1")[1]],
        [speech("u1")[0], *commit("u1")],
        [speech("u1")[0], speech("u2")[0]],
        [speech("u1")[0], speech("u2")[1]],
        [*speech("u1"), speech("u1")[1]],
        [*TURN, *speech("u1")],
        [*speech("u1"), *commit("u2")],
        [*speech("u1"), *speech("u2"), *commit("u2")],
        [*TURN, *commit("u1")],
        [*commit("u1", "nobody")],
        [event("input_audio_buffer.committed", item_id="u1")],
        [event("input_audio_buffer.speech_started", audio_start_ms=0)],
        [*speech("u1"), commit("u1")[0], *commit("u2")],
        [*speech("u1"), *commit("u1")[:2], created("r1")],
        [*speech("u1"), commit("u1")[0], created("r1")],
        [*speech("u1"), commit("u1")[1]],
        [commit("u1")[0], event("conversation.item.added", item=item("u1", "system"), previous_item_id=None)],
        [commit("u1")[2]],
        [commit("u1")[1], commit("u2")[1]],
        [commit("u1")[1], created("r1")],
        [*commit("u1"), commit("u1")[1]],
        [event("conversation.item.added", item=item("u1"))],
        [event("conversation.item.retrieved", item=item("u1"))],
        [event("conversation.item.truncated", item_id="u1")],
        [TIMEOUT[0], created("r1")],
        [TIMEOUT[0], speech("u2")[0]],
    ],
)  # fmt: skip
def test_rule_2(events: Events) -> None:
    breaks(2, [session(), *events])


def test_rule_2_interruption() -> None:
    run([session(), *BARGE_IN], OrderChecker(onset_cancels=True))
    run([session(), *reply(), *speech("u1"), *commit("u1", "a1"), *transcript("u1")], OrderChecker(onset_cancels=True))
    breaks(2, [session(), *OVER_REPLY], OrderChecker(onset_cancels=True))
    talked_over = [*reply()[:6], speech("u1")[0], *reply()[6:]]
    breaks(2, [session(), *talked_over], OrderChecker(onset_cancels=True))


def test_rule_2_at_the_end() -> None:
    breaks(2, [session(), *speech("u1")], finish=True)
    breaks(2, [session(), commit("u1")[1]], finish=True)


@pytest.mark.parametrize(
    "events",
    [
        transcript("u1"),
        [*speech("u1"), *transcript("u1")],
        [*TURN, transcript("u1")[1]],
        [*TURN, transcript("u1")[0]],
        [*TURN, FAILED_TRANSCRIPT],
        [*commit("u1"), transcript("u1", "hel")[0], transcript("u1", "hello")[1]],
        [*commit("u1"), {**transcript("u1")[1], "usage": None}],
        [session("session.updated", transcribes=False), *commit("u1"), transcript("u1")[1]],
    ],
)  # fmt: skip
def test_rule_3(events: Events) -> None:
    breaks(3, [session(), *events])


def test_rule_3_at_the_end() -> None:
    breaks(3, [session(), *commit("u1")], finish=True)


FRAME = [
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
]


@pytest.mark.parametrize("kind", FRAME)
def test_rule_4_nothing_is_left_out(kind: str) -> None:
    breaks(4, [session(), *without(reply(), kind)])


@pytest.mark.parametrize("index", [1, 2, 3, 6, 7, 8, 9, 10])
def test_rule_4_nothing_changes_places(index: int) -> None:
    """Between 4 and 6 are deltas: the transcript may run ahead of the audio."""
    events = reply()
    events[index], events[index + 1] = events[index + 1], events[index]
    with pytest.raises(AssertionError, match=r"^rule [45]: "):
        run([session(), *events])


def changed(events: Events, index: int, **fields: Any) -> Events:
    copied = copy.deepcopy(events)
    copied[index].update(fields)
    return copied


@pytest.mark.parametrize(
    "events",
    [
        [created("r1"), created("r2")],
        [*reply(), created("r1")],
        reply()[1:],
        changed(reply(), 0, response={"id": "r1", "status": "completed", "output": []}),
        changed(reply(), 0, response={"id": "r1", "status": "in_progress", "output": [item("a1")]}),
        changed(reply(), 1, item=item("a1", "assistant")),
        changed(reply(), 1, item=item("a1", "user", "in_progress")),
        changed(reply(), 1, item=item("a1", "assistant", "in_progress", type="note")),
        changed(reply(), 1, output_index=1),
        changed(reply(), 2, item=item("a1", "assistant")),
        changed(reply(), 2, item=item("a9", "assistant", "in_progress")),
        changed(reply(), 3, part={"type": "video"}),
        changed(reply(), 4, item_id="a9"),
        changed(reply(), 4, output_index=1),
        changed(reply(), 4, type="response.output_text.delta"),
        changed(reply(), 8, transcript="Hi"),
        changed(reply(), 9, part={"type": "audio", "transcript": "Hi"}),
        changed(reply(), 12, **done("r1", item("a2"))),
        changed(reply(), 12, **done("r1", item("a1", status="incomplete"))),
        changed(reply(), 12, response={**done("r1", item("a1"))["response"], "usage": None}),
        changed(reply(), 12, response={**done("r1", item("a1"))["response"], "status_details": {"type": "failed"}}),
        changed(reply(), 12, **done("r1", item("a1"), status="cancelled")),
        changed(reply(), 12, **done("r1", item("a1"), status="incomplete", reason="tired")),
        changed(reply(), 12, **done("r1", item("a1"), status="in_progress")),
        [*reply()[:4], reply()[1]],
        [created("r1"), reply()[4]],
        [event("conversation.item.added", item=item("a1", "assistant", "in_progress"), previous_item_id=None)],
    ],
)  # fmt: skip
def test_rule_4(events: Events) -> None:
    breaks(4, [session(), *events])


def test_rule_5() -> None:
    for length in range(2, 12):
        breaks(5, [session(), *reply()[:length], done("r1", item("a1"))])
    for kind in ("response.output_audio.delta", "response.output_item.done"):
        late = next(each for each in reply() if each["type"] == kind)
        breaks(5, [session(), *reply(), late])
    breaks(5, [session(), *reply(), reply()[-1]])
    breaks(5, [session(), *reply()[:-1]], finish=True)
    breaks(5, changed([session(), *reply()], 11, item=item("a1", "assistant", "in_progress")))


def test_rule_6() -> None:
    breaks(6, [session(), *changed(function_call(True), 5, arguments="{}")])
    breaks(6, [session(), *function_call(True, status="in_progress")])
    breaks(5, [session(), *without(function_call(False), "response.output_item.done")])
    breaks(4, [session(), *without(function_call(True), "response.function_call_arguments.done")])
    breaks(4, [session(), *function_call(False)[:3], reply()[1]])


def playback(name: str, response_id: str = "r1") -> Event:
    return event(f"output_audio_buffer.{name}", response_id=response_id)


@pytest.mark.parametrize(
    ("transport", "events"),
    [
        ("websocket", [created("r1"), playback("started")]),
        ("webrtc", [playback("started")]),
        ("webrtc", [created("r1"), playback("stopped")]),
        ("webrtc", [created("r1"), playback("started"), playback("started")]),
        ("webrtc", [created("r1"), playback("started"), playback("stopped")]),
        ("webrtc", [created("r1"), done("r1"), playback("started")]),
        ("webrtc", [created("r1"), playback("started"), done("r1"), created("r2"), playback("started", "r2")]),
        ("webrtc", [created("r1"), playback("started"), playback("cleared"), playback("stopped")]),
        ("webrtc", reply()),
    ],
)
def test_rule_7(transport: Literal["websocket", "webrtc"], events: Events) -> None:
    breaks(7, [session(), *events], OrderChecker(transport=transport))


@pytest.mark.parametrize(
    "body",
    [
        None,
        {"type": "t", "code": None, "message": "m", "param": None, "event_id": None},
        {"type": "bad_json", "code": "bad_json", "message": "m", "param": None, "event_id": None},
        {"type": "t", "code": "c", "message": "", "param": None, "event_id": None},
        {"type": "t", "code": "c", "message": "m", "event_id": None},
        {"type": "t", "code": "c", "message": "m", "param": None},
    ],
)
def test_rule_8(body: object) -> None:
    breaks(8, [session(), event("error", error=body)])


def test_rule_8_a_failure_has_a_code() -> None:
    breaks(8, [session(), created("r1"), done("r1", status="failed")])


@pytest.mark.parametrize("pressed", [dtmf("12"), dtmf("e"), dtmf(""), dtmf(None), dtmf("1", None)])
def test_a_key_is_one_key_at_a_time(pressed: Event) -> None:
    breaks(9, [session(), pressed])
