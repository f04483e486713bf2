from __future__ import annotations

import json
from datetime import UTC, datetime

from gateway.records.call_record import MAX_ENTRIES, MAX_ENTRY_CHARACTERS, MAX_TURNS, CallRecord
from gateway.records.recent import RecentCalls
from streaming.turn_times import TurnTimes

STARTED = datetime(2026, 1, 2, 3, 4, 5, 678_900, UTC)


def record(call_id: str = "call_0_a") -> CallRecord:
    return CallRecord(id=call_id, transport="websocket", agent="default", started_at=STARTED)


def test_a_call_s_life() -> None:
    call = record()
    assert call.summary()["state"] == "ringing"
    call.answered(12.34)
    call.answered(99.0)
    call.phase = "listening"
    assert (call.summary()["state"], call.summary()["answered_ms"], call.summary()["phase"]) == (
        "answered",
        12.3,
        "listening",
    )
    call.ended("hung_up", 1_000.0)
    call.ended("error", 2_000.0)
    call.answered(3_000.0)
    call.phase = "idle"
    assert call.summary() == {
        "id": "call_0_a",
        "object": "call",
        "transport": "websocket",
        "agent": "default",
        "direction": "inbound",
        "caller": None,
        "dialled": None,
        "wire_id": None,
        "state": "ended",
        "phase": None,
        "started_at": "2026-01-02T03:04:05.678+00:00",
        "answered_ms": 12.3,
        "ended_ms": 1000.0,
        "cause": "hung_up",
        "turn_count": 0,
    }


def test_a_cut_replaces_what_was_said_by_what_was_heard() -> None:
    call = record()
    call.say("item_1", "user", "hello", at_ms=10)
    call.say("item_2", "assistant", "one two three", at_ms=20)
    call.say("item_3", "user", "wait", at_ms=30)
    call.say("item_2", "assistant", "one two", cut=True, at_ms=40)
    call.forget("item_1")
    call.forget("item_9")
    assert [(entry.item_id, entry.text, entry.cut, entry.at_ms) for entry in call.transcript] == [
        ("item_2", "one two", True, 20),
        ("item_3", "wait", False, 30),
    ]


def test_a_call_of_any_length_stays_small() -> None:
    call = record()
    for number in range(MAX_ENTRIES + 3):
        call.say(f"item_{number}", "user", "x" * (MAX_ENTRY_CHARACTERS + 1), at_ms=number)
        call.turn(TurnTimes(f"resp_{number}", number, False))
    assert len(call.transcript) == MAX_ENTRIES
    assert call.transcript[0].item_id == "item_3"
    assert len(call.transcript[0].text) == MAX_ENTRY_CHARACTERS
    assert call.entries_dropped == 3
    assert len(call.turns) == MAX_TURNS
    assert call.summary()["turn_count"] == MAX_TURNS + 3


def test_the_latency_record_of_a_turn() -> None:
    call = record()
    early = TurnTimes("resp_1", 1, True, decision_ms=301.26, prompt_tokens=7)
    assert call.turn(early) is None
    late = TurnTimes(
        "resp_1",
        1,
        True,
        decision_ms=301.26,
        final_ms=float("nan"),
        cut_to_silence_ms=80.0,
        prompt_tokens=7,
        prefilled_tokens=3,
        completion_tokens=2,
        spoke_ms=1200.0,
        ended_ms=4321.06,
        failure="llm_failed",
        at_ms=8000.04,
    )
    assert call.turn(late) is early
    view = call.view()
    json.dumps(view, allow_nan=False)
    assert view["turns"] == [
        {
            "response_id": "resp_1",
            "utterance": 1,
            "speculative": True,
            "decision_ms": 301.3,
            "final_ms": None,
            "first_token_ms": None,
            "first_clause_ms": None,
            "first_audio_ms": None,
            "first_sent_ms": None,
            "cut_to_silence_ms": 80.0,
            "prompt_tokens": 7,
            "prefilled_tokens": 3,
            "completion_tokens": 2,
            "spoke_ms": 1200.0,
            "ended_ms": 4321.1,
            "failure": "llm_failed",
            "at_ms": 8000.0,
        }
    ]


def test_recent_calls_keep_the_last_ones_newest_first() -> None:
    recent = RecentCalls(2)
    for name in "abc":
        recent.add(record(name))
    assert [call.id for call in recent] == ["c", "b"]
    assert len(recent) == 2
    assert recent.find("a") is None
    found = recent.find("b")
    assert found is not None
    assert found.id == "b"


def test_what_was_cut_is_kept_beside_what_was_heard() -> None:
    call = record()
    call.partly("item_1", "assistant", "one two ", at_ms=10)
    call.partly("item_1", "assistant", "three four", at_ms=20)
    assert [(partial.text, partial.at_ms) for partial in call.partials] == [("one two three four", 10)]
    call.say("item_1", "assistant", "one two", cut=True, at_ms=30)
    call.settle("item_1")
    (entry,) = call.transcript
    assert (entry.text, entry.unheard, entry.at_ms, call.partials) == ("one two", "three four", 10, ())
    call.say("item_1", "assistant", "one", cut=True, at_ms=40)
    assert call.transcript[0].unheard == "two three four"
    call.say("item_2", "assistant", "other words", cut=True, at_ms=50)
    assert "unheard" not in call.view()["transcript"][1]


def test_what_is_new_since_a_version() -> None:
    call = record()
    for number in range(5):
        call.say(f"item_{number}", "user", "words", at_ms=number)
    seen = call.version
    call.say("item_1", "user", "words", at_ms=9)
    call.phase = call.phase
    call.forget("nothing")
    assert call.version == seen, "nothing has changed"
    call.say("item_1", "user", "other words", at_ms=9)
    call.turn(TurnTimes("resp_1", 1, False))
    changes = call.since(seen, 10)
    assert [entry.item_id for entry in changes.entries] == ["item_1"]
    assert [times.response_id for times in changes.turns] == ["resp_1"]
    assert (changes.kept, changes.missed) == (None, False)
    assert [entry.item_id for entry in call.since(0, 2).entries] == ["item_4", "item_1"]
    assert call.since(0, 2).missed
    call.forget("item_4")
    assert call.since(seen, 10).kept == ("item_0", "item_1", "item_2", "item_3")
    assert call.since(call.version, 10).kept is None


def test_what_is_being_said_is_bounded_and_ends_with_the_call() -> None:
    call = record()
    for number in range(9):
        call.partly(f"item_{number}", "user", "x" * (MAX_ENTRY_CHARACTERS + 1), at_ms=number)
    assert [partial.item_id for partial in call.partials] == ["item_5", "item_6", "item_7", "item_8"]
    assert len(call.partials[0].text) == MAX_ENTRY_CHARACTERS
    call.partly("item_9", "assistant", "hello", at_ms=1)
    call.settle_all("user")
    assert [partial.item_id for partial in call.partials] == ["item_9"]
    call.ended("hung_up", 10)
    assert call.partials == ()
