"""Calls to an AudioSocket server that is none of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.call import CallPlan, CallTape, EndCause
from loadtest.measured_call import fate_of
from loadtest.outcome import Fate
from loadtest.placing import place_planned_call
from loadtest.script import Press, conversation
from tests.loadtest.honesty_rig import counts_add_up, judge, shown_by
from tests.loadtest.other_audiosocket import Manner, Seen, other_audiosocket
from tests.loadtest.test_sip_call import QUICK, RATE_HZ, line

SCENARIO = """
name: quick
about: Ask, press a key, and ask again.
transports: [audiosocket]
length_s: 3
arrivals: {pattern: burst, calls: 3, every_s: 10, ramp_s: 0, for_s: 1}
patience: {greeting_ms: 300, answer_ms: 2500, agent_turn_ms: 6000, stalled_ms: 2000, pause_ms: 300}
expect: {answer_within_ms: 2500, setup_within_ms: 2000, max_late_share: 0.05, refused_ok: true}
steps:
  - wait_agent
  - say: "Hello, can you hear me?"
  - wait_agent
  - press: {keys: "1#", answer: false}
  - say: "Stop."
  - wait_agent
"""


async def call(manner: Manner) -> tuple[CallTape, Seen]:
    with other_audiosocket(manner) as (url, seen):
        plan = CallPlan(url, conversation([line(), Press("5")]), patience=QUICK, rate_hz=RATE_HZ)
        tape = await place_planned_call(plan)
    return tape, seen


@pytest.mark.e2e
@pytest.mark.timeout(60)
async def test_a_load_test_tells_calls_that_were_served_from_one_that_was_not_taken(tmp_path: Path) -> None:
    with other_audiosocket(Manner(room=2)) as (url, seen):
        judged = await judge(tmp_path / "run", SCENARIO, url, metrics=None, codes=None)
    report = judged.report
    assert counts_add_up(judged)
    with shown_by(judged):
        assert report.faults == {}
        assert report.latency_ms.voice_to_voice.count == 4
    assert (report.calls.accepted, report.calls.completed, report.calls.refused) == (2, 2, 1)
    assert report.latency_ms.refusal.count == 1
    assert report.end_causes == {"hangup": 2, "busy": 1}
    assert sorted(seen.keys) == ["#", "#", "1", "1"]
    assert (len(seen.calls), len(set(seen.calls)), seen.strange) == (3, 3, [])


@pytest.mark.parametrize("frame_bytes", [(66, 1_000, 2, 640), (160,), (480,), (6_400,)])
async def test_frames_of_any_length_are_heard_whole(frame_bytes: tuple[int, ...]) -> None:
    tape, seen = await call(Manner(frame_bytes=frame_bytes))
    assert (tape.end_cause, tape.log.errors, tape.log.malformed) == (EndCause.HANGUP, [], 0)
    assert tape.heard.frames_due == pytest.approx(900 // 20, abs=2)
    assert seen.keys == "5"


@pytest.mark.parametrize(
    ("manner", "cause", "fate", "words"),
    [
        (Manner(room=0), EndCause.BUSY, Fate.REFUSED, "there is no room"),
        (Manner(room=0, politely=False), EndCause.BUSY, Fate.REFUSED, "there is no room"),
        (Manner(breaks="error", breaks_after=0), EndCause.CONNECTION_LOST, Fate.FAILED, "error 02"),
        (Manner(breaks="error"), EndCause.CONNECTION_LOST, Fate.DROPPED, "error 02"),
        (Manner(breaks="reset"), EndCause.CONNECTION_LOST, Fate.DROPPED, "connection was lost"),
    ],
)
async def test_how_it_ends_is_named_rightly(manner: Manner, cause: EndCause, fate: Fate, words: str) -> None:
    """Once there was a sound of it, a call that ends was up."""
    tape, _ = await call(manner)
    assert tape.end_cause is cause
    assert fate_of(tape.end_cause, up=tape.setup_ms is not None, agent_may_end=False) is fate
    assert words in (tape.problem or "")
