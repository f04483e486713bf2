"""Calls to a Realtime server that is none of ours, and shares nothing with it but OpenAI's protocol."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.call import CallPlan, CallTape, EndCause
from loadtest.measured_call import fate_of
from loadtest.outcome import Fate
from loadtest.placing import place_planned_call
from loadtest.script import Patience, conversation
from tests.loadtest.honesty_rig import counts_add_up, judge, shown_by
from tests.loadtest.other_realtime import KEY, Manner, Seen, other_realtime
from tests.loadtest.test_websocket_call import line

QUICK = Patience(greeting_ms=300, answer_ms=800, pause_ms=100, agent_turn_ms=5_000)

SCENARIO = """
name: quick
about: Ask, interrupt, and ask again.
length_s: 3
arrivals: {pattern: burst, calls: 2, every_s: 10, ramp_s: 0, for_s: 1}
patience: {greeting_ms: 300, answer_ms: 2500, agent_turn_ms: 6000, stalled_ms: 2000, pause_ms: 300}
expect: {answer_within_ms: 2500, stop_within_ms: 700, setup_within_ms: 2000, max_late_share: 0.05}
steps:
  - wait_agent
  - say: "Hello, can you hear me?"
  - interrupt: {say: "Stop.", after_ms: 500}
  - wait_agent
"""


async def call(manner: Manner, key: str = KEY) -> tuple[CallTape, Seen]:
    async with other_realtime(manner) as (url, seen):
        tape = await place_planned_call(CallPlan(url, conversation([line("hello")]), key=key, patience=QUICK))
    return tape, seen


@pytest.mark.e2e
@pytest.mark.timeout(60)
async def test_a_load_test_of_it_is_good_and_asks_it_for_nothing_that_it_has_not(tmp_path: Path) -> None:
    async with other_realtime(Manner(greeting_ms=400)) as (url, seen):
        judged = await judge(tmp_path / "run", SCENARIO, url, metrics=None, codes=None, key=KEY)
    report = judged.report
    assert counts_add_up(judged)
    with shown_by(judged):
        assert judged.is_good, judged.said
        assert [report.latency_ms.voice_to_voice.count, report.latency_ms.stop.count] == [4, 2]
    assert [event["type"] for event in seen.events] == ["session.update"] * 2 + ["conversation.item.truncate"] * 2
    assert (seen.errors, report.problems) == ([], {})
    assert set(seen.asked) == {"/metrics"}
    assert len(seen.asked) == 2  # before, for the code words; and as the run begins
    assert "status 404" in " ".join(report.notes)
    assert (report.fake_engines, report.cross_talk.turns_checked) == (None, 0)


async def test_a_call_is_understood_whatever_else_is_said_in_it() -> None:
    tape, seen = await call(Manner(greeting_ms=200, reply_ms=1_500))
    assert (tape.end_cause, tape.problem, tape.log.errors, tape.log.malformed) == (EndCause.HANGUP, None, [], 0)
    assert tape.log.call_id == "sess_CBFk"
    assert (tape.log.heard_text(0), tape.log.agent_transcript(0)) == ("What?", "la la la")
    assert tape.heard.frames_due == pytest.approx((200 + 1_500) // 20, abs=2)
    assert seen.errors == []


@pytest.mark.parametrize(
    ("manner", "key", "cause", "fate", "words"),
    [
        (Manner(room=0), KEY, EndCause.BUSY, Fate.REFUSED, "429"),
        (Manner(full="rate_limit_exceeded"), KEY, EndCause.BUSY, Fate.REFUSED, "too many sessions"),
        (Manner(full="model_not_found"), KEY, EndCause.NO_SESSION, Fate.FAILED, "model_not_found"),
        (Manner(), "sk-wrong", EndCause.UNAUTHORIZED, Fate.FAILED, "Incorrect API key"),
        (Manner(drop_after_s=0.2), KEY, EndCause.CONNECTION_LOST, Fate.DROPPED, "lost"),
        (Manner(goodbye_after_s=0.2), KEY, EndCause.AGENT_HANGUP, Fate.DROPPED, ""),
    ],
)
async def test_how_it_ends_is_named_rightly(manner: Manner, key: str, cause: EndCause, fate: Fate, words: str) -> None:
    tape, _ = await call(manner, key)
    assert tape.end_cause is cause
    assert fate_of(tape.end_cause, up=tape.setup_ms is not None, agent_may_end=False) is fate
    assert words in (tape.problem or "")


async def test_a_server_of_the_beta_is_told_from_one_that_is_silent() -> None:
    tape, _ = await call(Manner(beta=True))
    assert tape.heard.frames_due == 0
    assert tape.log.errors == [
        "the server speaks the beta protocol (response.audio.delta): only GA's is understood",
    ]
