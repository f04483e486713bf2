from __future__ import annotations

import itertools
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from gateway.records.call_record import CallRecord, Parties
from gateway.telemetry.traces_context import CallTrace
from gateway.telemetry.traces_spans import NS_PER_MS, CallSnapshot, SpanPlan, snapshot, spans_of, stages_of
from streaming.turn_times import TurnTimes

TRACE = CallTrace(7, 9, True)
STARTED = datetime(2026, 5, 4, 3, 2, 1, 500_000, tzinfo=UTC)
BEGUN_NS = round(STARTED.timestamp() * 1000) * NS_PER_MS

SPOKEN = TurnTimes(
    "resp_2",
    1,
    True,
    decision_ms=400.0,
    final_ms=150.0,
    first_token_ms=300.0,
    first_clause_ms=350.0,
    first_audio_ms=380.0,
    first_sent_ms=410.0,
    cut_to_silence_ms=90.0,
    prompt_tokens=20,
    completion_tokens=5,
    spoke_ms=1_000.0,
    ended_ms=2_000.0,
    at_ms=5_000.0,
)
GREETING = TurnTimes(
    "resp_1", 0, False, first_clause_ms=0.0, first_audio_ms=1.0, first_sent_ms=2.0, ended_ms=900.0, at_ms=50.0
)


def call(*turns: TurnTimes, cause: str = "caller_hung_up") -> CallSnapshot:
    record = CallRecord(
        id="call_0_1",
        transport="sip",
        agent="sales",
        started_at=STARTED,
        parties=Parties("+15550001", "+15550002", "sip-call-id"),
    )
    record.answered(40.0)
    record.say("item_1", "user", "my card is 4111", at_ms=10.0)
    record.quality = {"lost": 3, "jitter_ms": None}
    for turn in turns:
        record.turn(turn)
    record.ended(cause, 8_000.0)
    return snapshot(record, TRACE)


def times(span: SpanPlan) -> tuple[float, float]:
    return (span.start_ns - BEGUN_NS) / NS_PER_MS, (span.end_ns - BEGUN_NS) / NS_PER_MS


def test_a_call_its_turns_and_their_stages() -> None:
    spans = list(spans_of(call(GREETING, SPOKEN)))
    shown = [(span.name, span.parent, *times(span)) for span in spans]
    assert shown == [
        ("call", None, 0, 8_000),
        ("setup", 0, 0, 40),
        ("turn", 0, 50, 950),
        ("first_clause", 2, 50, 50),
        ("first_audio", 2, 50, 51),
        ("first_sent", 2, 51, 52),
        ("agent_speaks", 2, 52, 950),
        ("turn", 0, 4_000, 7_000),
        ("caller_speaks", 7, 4_000, 5_000),
        ("end_of_turn", 7, 5_000, 5_400),
        ("transcript", 7, 5_000, 5_150),
        ("first_token", 7, 5_150, 5_300),
        ("first_clause", 7, 5_300, 5_350),
        ("first_audio", 7, 5_350, 5_380),
        ("first_sent", 7, 5_400, 5_410),
        ("agent_speaks", 7, 5_410, 7_000),
    ]
    assert spans[0].attributes == {
        "offhook.call.id": "call_0_1",
        "offhook.call.transport": "sip",
        "offhook.call.direction": "inbound",
        "offhook.call.agent": "sales",
        "offhook.call.turns_dropped": 0,
        "offhook.call.cause": "caller_hung_up",
        "offhook.call.turns": 2,
        "offhook.media.lost": 3,
    }
    assert spans[7].attributes == {
        "offhook.turn.number": 1,
        "offhook.turn.response_id": "resp_2",
        "offhook.turn.spoken": True,
        "offhook.turn.speculative": True,
        "offhook.turn.cut": True,
        "offhook.turn.first_sent_ms": 410.0,
        "offhook.turn.cut_to_silence_ms": 90.0,
    }
    assert spans[11].attributes["gen_ai.usage.input_tokens"] == 20


def test_nothing_that_people_say_or_are_called_by_is_in_a_trace() -> None:
    said = repr(list(spans_of(call(GREETING, SPOKEN))))
    assert not any(secret in said for secret in ("4111", "+1555", "sip-call-id", "item_1"))


def test_a_reply_that_was_not_speculative_waits_for_the_decision() -> None:
    turn = TurnTimes("r", 1, False, decision_ms=400.0, final_ms=150.0, first_token_ms=600.0, at_ms=0.0)
    assert {stage.name: (stage.from_ms, stage.to_ms) for stage in stages_of(turn)}["first_token"] == (400.0, 600.0)


def test_nothing_of_a_call_was_before_it() -> None:
    """The first frame may come at once, and holds what was said before it was sent."""
    spans = list(spans_of(call(TurnTimes("r", 1, False, decision_ms=300.0, spoke_ms=620.0, at_ms=610.0))))
    assert {times(span)[0] for span in spans if span.name in ("turn", "caller_speaks")} == {0.0}


def test_a_call_that_nobody_answered_is_all_setup() -> None:
    record = CallRecord(id="out_0_1", transport="sip", agent=None, started_at=STARTED, direction="outbound")
    record.ended("unreachable", 500.0)
    ended = snapshot(record, TRACE)
    assert [(span.name, *times(span)) for span in spans_of(ended)] == [("call", 0, 500), ("setup", 0, 500)]
    assert ended.fault == "unreachable"


def test_what_failed_is_told_of_the_turn_and_of_the_call() -> None:
    failed = TurnTimes("r", 1, False, decision_ms=400.0, ended_ms=500.0, failure="engine_failed", at_ms=0.0)
    spans = list(spans_of(call(SPOKEN, failed)))
    assert [span.fault for span in spans if span.name in ("call", "turn")] == ["engine_failed", None, "engine_failed"]
    assert call(SPOKEN).fault is None
    assert call(SPOKEN, cause="internal_error").fault == "internal_error"


ms = st.none() | st.floats(-200, 60_000)


@given(
    st.lists(
        st.builds(
            TurnTimes,
            st.text(min_size=1, max_size=3),
            st.integers(0, 3),
            st.booleans(),
            decision_ms=ms,
            final_ms=ms,
            first_token_ms=ms,
            first_clause_ms=ms,
            first_audio_ms=ms,
            first_sent_ms=ms,
            spoke_ms=st.none() | st.floats(0, 60_000),
            ended_ms=ms,
            at_ms=st.none() | st.floats(0, 3_600_000),
        ),
        max_size=4,
    )
)
def test_whatever_came_to_pass_spans_have_an_order_and_stages_lie_in_their_turn(turns: list[TurnTimes]) -> None:
    spans = list(spans_of(call(*turns)))
    assert all(spans[0].start_ns <= span.start_ns <= span.end_ns for span in spans)
    for index, span in enumerate(spans):
        assert span.parent is None or span.parent < index
        if span.parent:
            parent = spans[span.parent]
            assert parent.name == "turn"
            assert parent.start_ns <= span.start_ns
            assert span.end_ns <= parent.end_ns
    assert [span.name for span in itertools.islice(spans, 2)] == ["call", "setup"]
