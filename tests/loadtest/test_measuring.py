from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from loadtest.call import CallTape, EndCause, Transport
from loadtest.measure import TurnMark
from loadtest.measured_call import OfferedCall, badness, measure_call
from loadtest.measuring import Measuring, MeasuringError, WorstCalls
from loadtest.outcome import CallOutcome, Fate
from loadtest.scenario import Expect
from loadtest.wire import CallLog
from streaming.audio.wav import read_wav

RATE_HZ = 8_000
EXPECT = Expect(answer_within_ms=1_000.0)


def tone(ms: int) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    wave = 6_000 * np.sin(2 * np.pi * 300 * np.arange(RATE_HZ * ms // 1000) / RATE_HZ)
    return wave.astype(np.int16)


def tape(answer_after_ms: int) -> CallTape:
    """Half a second of words at 1 s, and an answer some time after them."""
    caller, agent = (np.zeros(4 * RATE_HZ, dtype=np.int16) for _ in range(2))
    caller[RATE_HZ : RATE_HZ + RATE_HZ // 2] = tone(500)
    answer = RATE_HZ * 3 // 2 + RATE_HZ * answer_after_ms // 1000
    agent[answer : answer + RATE_HZ // 2] = tone(500)
    mark = TurnMark(RATE_HZ, RATE_HZ * 3 // 2, kind="say")
    log = CallLog("call")
    return CallTape(EndCause.HANGUP, None, 5.0, caller, agent, (mark,), (), 0.0, log, RATE_HZ)


def offered(number: int) -> OfferedCall:
    return OfferedCall(number, Transport.SIP, 0.0, 4.0)


@pytest.fixture
def measuring(tmp_path: Path) -> Iterator[Measuring]:
    process = Measuring(EXPECT, tmp_path, 2)
    yield process
    process.close()


def test_what_is_measured_beside_is_what_would_be_measured_here(measuring: Measuring) -> None:
    outcome = measuring.measure(offered(7), tape(400))
    assert outcome == measure_call(tape(400), offered(7), EXPECT)
    assert outcome.fate is Fate.COMPLETED
    assert outcome.turns[0].voice_to_voice_ms == pytest.approx(400, abs=6)


def test_the_audio_of_the_worst_calls_is_kept_and_no_other(measuring: Measuring, tmp_path: Path) -> None:
    for number, after_ms in enumerate((900, 300, 1_400, 600, 1_200)):
        measuring.measure(offered(number), tape(after_ms))
    assert measuring.kept() == ({2: "call-2.wav", 4: "call-4.wav"}, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["call-2.wav", "call-4.wav"]
    pcm, rate_hz = read_wav((tmp_path / "call-2.wav").read_bytes())
    assert rate_hz == RATE_HZ
    assert len(pcm) == 4 * RATE_HZ


def test_a_process_that_is_gone_is_an_error_and_no_wait(tmp_path: Path) -> None:
    with pytest.raises(MeasuringError):
        Measuring(EXPECT, tmp_path, 2, command=(sys.executable, "-c", "raise SystemExit(1)"))


def test_calls_without_sound_are_not_kept_and_of_equals_the_first_is(tmp_path: Path) -> None:
    worst = WorstCalls(tmp_path, 1)
    same = tape(500)
    outcomes = [measure_call(same, offered(number), EXPECT) for number in range(3)]
    assert len({badness(outcome) for outcome in outcomes}) == 1
    for outcome in outcomes:
        worst.offer(outcome, same)
    assert worst.kept() == {0: "call-0.wav"}
    empty = CallTape(EndCause.REFUSED, None, None, tone(0), tone(0), (), (), 0.0, CallLog(), RATE_HZ)
    failed = measure_call(empty, offered(9), EXPECT)
    assert badness(failed) > badness(outcomes[0])
    worst.offer(failed, empty)
    assert worst.kept() == {0: "call-0.wav"}


def test_a_folder_that_takes_no_more_costs_the_audio_and_not_the_measures(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    process = Measuring(EXPECT, gone, 2)
    try:
        assert process.measure(offered(0), tape(400)) == measure_call(tape(400), offered(0), EXPECT)
        assert process.kept() == ({}, "No such file or directory")
        gone.mkdir()
        process.measure(offered(1), tape(400))
        assert process.kept()[0] == {1: "call-1.wav"}
    finally:
        process.close()


def test_nothing_is_kept_where_nothing_is_asked_for(tmp_path: Path) -> None:
    worst = WorstCalls(tmp_path, 0)
    outcome: CallOutcome = measure_call(tape(500), offered(0), EXPECT)
    worst.offer(outcome, tape(500))
    assert worst.kept() == {}
    assert list(tmp_path.iterdir()) == []
