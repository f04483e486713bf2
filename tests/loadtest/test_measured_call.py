"""The honest half of the instrument: servers that are late, mix calls up, lose samples or talk on are caught."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadtest.call import CallOver, CallTape, EndCause, Transport, no_call
from loadtest.ear import HeardMedia
from loadtest.measured_call import badness, fate_of, measure_call
from loadtest.outcome import CallOutcome, Fate
from loadtest.wire import CallLog
from streaming.audio.code_words import code_word
from tests.loadtest.recordings import (
    RATE_HZ,
    Expect,
    Pcm16,
    Tracks,
    conversation,
    offered,
    outcome,
    samples,
    sung,
    tone,
)


def measured(tape: CallTape, expect: Expect | None = None) -> CallOutcome:
    return measure_call(tape, offered(), expect or Expect())


def test_a_good_call_has_no_fault_and_its_times_are_true() -> None:
    call = measured(conversation(7).tape())
    assert call.good
    assert call.fate is Fate.COMPLETED
    assert [turn.voice_to_voice_ms for turn in call.turns] == pytest.approx([700] * 3, abs=10)
    assert [turn.at_s for turn in call.turns] == pytest.approx([10.55, 15.55, 20.55])
    assert (call.answered_s, call.setup_ms, call.call_id) == (10.05, 50.0, "call-1")
    assert all(turn.heard_codes == (code_word(7),) for turn in call.turns)
    assert (call.foreign_codes, call.damaged_codes, call.false_stops, call.replies) == ((), 0, 0, 3)


def test_a_server_that_is_30_ms_late_is_30_ms_slower() -> None:
    prompt = measured(conversation(7).tape())
    late = measured(conversation(7, [730.0] * 3).tape())
    for before, after in zip(prompt.turns, late.turns, strict=True):
        assert before.voice_to_voice_ms is not None
        assert after.voice_to_voice_ms == pytest.approx(before.voice_to_voice_ms + 30, abs=5.1)


def test_a_server_that_swaps_two_calls_is_caught_in_both() -> None:
    one, other = conversation(7), conversation(8)
    one.agent, other.agent = other.agent, one.agent
    for tracks, heard in ((one, code_word(8)), (other, code_word(7))):
        call = measured(tracks.tape())
        assert call.foreign_codes == (heard,)
        assert {"foreign_code", "lost_code"} <= set(call.faults)
        assert badness(call) > badness(outcome(fate=Fate.DROPPED, faults=("dropped",)))


def test_who_has_said_no_code_word_hears_no_other_either() -> None:
    """Parked, or still silent: another's reply is as wrong there."""
    tracks = Tracks(6_000.0)
    tracks.answers(500.0, tone(300), sung(8), tone(400))
    found = measure_call(tracks.tape(), replace(offered(), codes=True), Expect())
    assert found.foreign_codes == (code_word(8),)
    assert "foreign_code" in found.faults
    assert measure_call(tracks.tape(), offered(), Expect()).foreign_codes == (), (
        "a run without code words looks for none"
    )


def test_one_swapped_answer_among_many_is_caught() -> None:
    tracks = conversation(7)
    tracks.answers(5_500 + 800 + 700, tone(300), sung(99))
    call = measured(tracks.tape(), Expect(codes=False))
    assert call.foreign_codes == (code_word(99),)
    assert call.faults == ("foreign_code",)


def without_frames(pcm: Pcm16, share: float, seed: int) -> Pcm16:
    """What is left when a share of the frames never comes and nobody notices: the rest moves up."""
    frames = pcm[: len(pcm) // samples(20) * samples(20)].reshape(-1, samples(20))
    kept = np.random.default_rng(seed).random(len(frames)) >= share
    rest = frames[kept].reshape(-1)
    return np.concatenate((rest, np.zeros(len(pcm) - len(rest), dtype=np.int16)))


def test_a_server_that_loses_one_frame_in_a_hundred_is_caught() -> None:
    """Where the wire has no sequence numbers, nothing but the sound tells: of 25 short calls few pass for whole."""
    whole = [measured(conversation(number).tape()) for number in range(25)]
    assert not any(call.damaged_codes for call in whole)
    damaged = 0
    for number in range(25):
        tracks = conversation(number)
        tracks.agent = without_frames(tracks.agent, 0.01, seed=number)
        damaged += "damaged" in measured(tracks.tape()).faults
    assert damaged >= 10


def test_lost_and_late_frames_are_counted_against_what_was_due() -> None:
    tracks = conversation(7)
    late = measured(tracks.tape(heard=HeardMedia(frames_due=500, frames_late=5, underruns=2, gaps=1)))
    assert late.faults == ("late_frames",)
    assert (late.frames_late, late.underruns, late.gaps) == (5, 2, 1)
    lost = measured(tracks.tape(heard=HeardMedia(frames_due=500, frames_lost=5)))
    assert lost.faults == ("lost_frames",)
    fine = measured(tracks.tape())
    assert fine.mos is not None
    assert lost.mos is not None
    assert late.mos is not None
    assert fine.mos > lost.mos > late.mos, "silence is worse than what is concealed"


def interrupted(*agent: tuple[float, float], line_ms: float = 1_200.0) -> Tracks:
    """The agent is to fall silent at an interruption that begins at 4000 ms; it answers at 6500."""
    tracks = Tracks(9_000)
    tracks.says(500, tone(1_000))
    for start_ms, end_ms in agent:
        tracks.answers(start_ms, tone(end_ms - start_ms))
    tracks.says(4_000, tone(line_ms), "interrupt")
    tracks.answers(6_500, tone(1_000))
    return tracks


def test_an_agent_that_yields_is_good() -> None:
    call = measured(interrupted((2_000, 4_250)).tape())
    assert call.good
    assert call.turns[1].stop_ms == pytest.approx(250, abs=5)
    assert call.turns[1].talked_on_ms == 0.0


def test_an_agent_that_keeps_talking_400_ms_after_a_barge_in_is_caught() -> None:
    """Either it goes on at once for 400 ms more than it should, or it falls silent first and then goes on."""
    longer = measured(interrupted((2_000, 4_650)).tape())
    assert longer.faults == ("slow_stop",)
    assert longer.turns[1].stop_ms == pytest.approx(650, abs=5)
    again = measured(interrupted((2_000, 4_250), (4_500, 4_900)).tape())
    assert again.faults == ("talked_on",)
    assert again.turns[1].talked_on_ms == pytest.approx(400, abs=10)
    tail = measured(interrupted((2_000, 4_250), (5_300, 5_700)).tape())
    assert tail.faults == ("talked_on",), "nobody answers 100 ms after the last word"
    assert tail.turns[1].voice_to_voice_ms == pytest.approx(1_300, abs=10)


def test_an_agent_that_never_stops_is_caught() -> None:
    call = measured(interrupted((2_000, 9_000)).tape())
    assert call.turns[1].stop_ms == pytest.approx(5_000, abs=5)
    assert {"slow_stop", "no_answer"} <= set(call.faults)


def test_no_answer_and_a_slow_one() -> None:
    tracks = conversation(7, [700, 1_900, 700])
    assert measured(tracks.tape()).faults == ("slow_answer",)
    tracks.agent[samples(10_000) :] = 0
    assert measured(tracks.tape()).faults == ("slow_answer", "no_answer")
    cut_short = replace(tracks.tape(EndCause.CONNECTION_LOST), agent=tracks.agent[: samples(12_000)])
    assert measured(cut_short).faults == ("dropped", "slow_answer"), "it was dropped before the answer was due"


def test_an_answer_without_its_code_word_has_lost_it() -> None:
    tracks = conversation(7)
    tracks.answers(5_500 + 800 + 700, tone(1_500))
    assert measured(tracks.tape()).faults == ("lost_code",)
    assert measured(tracks.tape(), Expect(codes=False)).good


def test_a_code_word_that_the_caller_cut_is_neither_lost_nor_damaged() -> None:
    tracks = Tracks(9_000)
    tracks.says(500, sung(7), code=code_word(7))
    tracks.answers(2_000, tone(1_700), sung(7)[: samples(500)])
    tracks.says(4_000, sung(7), "interrupt", code=code_word(7))
    tracks.answers(5_600, tone(200), sung(7))
    assert measured(tracks.tape()).good


def test_an_agent_that_talks_into_the_line_is_caught() -> None:
    tracks = Tracks(9_000)
    tracks.says(500, tone(2_000))
    tracks.answers(2_100, tone(1_000))
    call = measured(tracks.tape())
    assert call.faults == ("cut_in",)
    assert call.turns[0].cut_ins == 1
    assert call.turns[0].cut_in_ms == pytest.approx(400, abs=5)


def murmured(agent_until_ms: float, *more: tuple[float, float]) -> Tracks:
    tracks = Tracks(14_000)
    tracks.says(500, tone(1_000), text="Tell me more.")
    tracks.answers(2_000, tone(agent_until_ms - 2_000))
    for start_ms, end_ms in more:
        tracks.answers(start_ms, tone(end_ms - start_ms))
    tracks.says(4_000, tone(400), "backchannel")
    return tracks


def test_an_agent_that_goes_on_at_a_murmur_is_good() -> None:
    assert measured(murmured(10_000).tape()).good
    held = measured(murmured(4_300, (5_200, 10_000)).tape())
    assert held.good, "it held its breath"
    assert held.turns[1].stop_ms is None


def test_an_agent_that_stops_for_a_murmur_is_caught() -> None:
    call = measured(murmured(4_300).tape())
    assert call.faults == ("false_stop",)
    assert call.false_stops == 1
    assert call.turns[1].stop_ms == pytest.approx(300, abs=5)


def test_a_long_reply_that_a_murmur_stopped_is_one_false_stop() -> None:
    tracks = murmured(4_300)
    tracks.marks[0] = replace(tracks.marks[0], code=code_word(7))
    tracks.answers(2_000, tone(1_400), sung(7), tone(100))
    call = measured(tracks.tape())
    assert (call.false_stops, call.turns[1].kind) == (1, "backchannel")
    assert call.turns[1].stop_ms == pytest.approx(300, abs=5), "its first word, which ended just then, ends no reply"


class Responses(CallLog):
    """Of a wire that tells of responses, here of one that began in turn 1."""

    def agent_transcript(self, turn: int) -> str | None:
        return "You said: okay." if turn == 1 else None


def test_a_murmur_that_was_answered_stopped_the_agent_however_soon_it_spoke_again() -> None:
    quick = murmured(4_300, (5_200, 7_000))
    assert measured(quick.tape()).good, "by sound alone it held its breath"
    told = measured(replace(quick.tape(), log=Responses()))
    assert told.faults == ("false_stop",)
    quick.marks[0] = replace(quick.marks[0], code=code_word(7))
    quick.answers(2_000, tone(300), sung(7))
    unended = measured(quick.tape())
    assert unended.faults == ("false_stop",)
    assert unended.turns[1].stop_ms == pytest.approx(300, abs=5)


def test_a_reply_that_was_over_was_not_stopped_by_a_murmur() -> None:
    tracks = murmured(4_300)
    tracks.marks[0] = replace(tracks.marks[0], code=code_word(7))
    tracks.answers(2_000, tone(300), sung(7), tone(900), sung(7), np.zeros(samples(600), dtype=np.int16))
    assert measured(tracks.tape()).false_stops == 0


def test_a_long_reply_that_noise_broke_off_lacks_its_second_code_word() -> None:
    tracks = Tracks(14_000)
    tracks.says(500, sung(7), code=code_word(7), text=f"Tell me more, {code_word(7)}.")
    tracks.answers(2_000, tone(300), sung(7), tone(4_000))
    assert measured(tracks.tape()).faults == ("false_stop",)
    tracks.answers(2_000, tone(300), sung(7), tone(4_000), sung(7))
    assert measured(tracks.tape()).good


def test_a_long_reply_that_the_end_of_the_call_or_the_caller_cut_was_not_broken_off() -> None:
    tracks = Tracks(9_000)
    tracks.says(500, sung(7), code=code_word(7), text="tell me more")
    tracks.answers(2_000, tone(300), sung(7), tone(8_000))
    assert measured(tracks.tape(EndCause.CONNECTION_LOST)).faults == ("dropped",)
    tracks.answers(6_200, np.zeros(samples(2_800), dtype=np.int16))
    tracks.says(6_000, tone(800))
    assert measured(tracks.tape()).false_stops == 0, "it was talked over"


@pytest.mark.parametrize(
    ("cause", "up", "fate"),
    [
        (EndCause.HANGUP, True, Fate.COMPLETED),
        (EndCause.VANISHED, True, Fate.LEFT),
        (EndCause.TIME_LIMIT, True, Fate.ABANDONED),
        (EndCause.ABANDONED, True, Fate.ABANDONED),
        (EndCause.ABANDONED, False, Fate.ABANDONED),
        (EndCause.AGENT_HANGUP, True, Fate.DROPPED),
        (EndCause.STALLED, True, Fate.DROPPED),
        (EndCause.CONNECTION_LOST, True, Fate.DROPPED),
        (EndCause.BUSY, False, Fate.REFUSED),
        (EndCause.REFUSED, False, Fate.FAILED),
        (EndCause.UNAUTHORIZED, False, Fate.FAILED),
        (EndCause.CONNECTION_LOST, False, Fate.FAILED),
    ],
)
def test_what_an_end_means(cause: EndCause, up: bool, fate: Fate) -> None:
    assert fate_of(cause, up=up, agent_may_end=False) is fate


def test_an_agent_that_should_end_the_call_may() -> None:
    expect = Expect(agent_ends=True)
    assert measured(conversation(7).tape(EndCause.AGENT_HANGUP), expect).good
    assert measured(conversation(7).tape(), expect).faults == ("agent_stayed",)
    assert measured(conversation(7).tape(EndCause.AGENT_HANGUP)).faults == ("dropped",)


def test_what_a_server_garbles_is_a_fault_and_what_it_complains_of_is_told() -> None:
    tape = conversation(7).tape()
    tape.log.note_error("input_audio_buffer_commit_empty: nothing there")
    complained = measured(tape)
    assert (complained.good, complained.errors) == (True, ("input_audio_buffer_commit_empty: nothing there",))
    for number in range(20):
        tape.log.note_malformed("malformed event: " + "x" * 500 + f"{number % 2}")
    garbled = measured(tape)
    assert (garbled.faults, garbled.malformed) == (("garbled",), 20)
    assert len(garbled.errors) == 2
    assert max(map(len, garbled.errors)) == 200


def test_a_script_that_was_not_over_in_time_is_a_fault() -> None:
    assert measured(conversation(7).tape(EndCause.TIME_LIMIT)).faults == ("overstayed",)


def test_refusals_are_good_only_where_they_may_be_and_are_quick() -> None:
    tape = no_call(CallOver(EndCause.BUSY, "busy"), RATE_HZ)
    quick = replace(offered(), ended_s=10.2)
    assert measure_call(tape, quick, Expect()).faults == ("refused",)
    refused = measure_call(tape, quick, Expect(refused_ok=True))
    assert refused.good
    assert refused.setup_ms == pytest.approx(200)
    assert (refused.answered_s, refused.turns, refused.mos) == (None, (), None)
    assert measure_call(tape, offered(), Expect(refused_ok=True)).faults == ("slow_refusal",)


def test_a_call_that_failed_or_was_slow_to_come_up() -> None:
    failed = measured(no_call(CallOver(EndCause.NO_SESSION), RATE_HZ))
    assert (failed.faults, failed.setup_ms) == (("failed",), None)
    slow = measured(replace(conversation(7).tape(), setup_ms=1_500.0))
    assert slow.faults == ("slow_setup",)


def test_without_expectations_nothing_but_what_must_never_be_is_a_fault() -> None:
    nothing = Expect(None, None, None, None, codes=False)
    tape = interrupted((2_000, 4_900)).tape(heard=HeardMedia(frames_due=10, frames_late=10))
    assert measured(tape, nothing).good
    assert measured(tape, nothing).mos == pytest.approx(1.0, abs=0.2)


def test_the_worst_calls_are_those_that_must_never_be() -> None:
    order = [
        outcome(foreign_codes=("someone",), faults=("foreign_code",)),
        outcome(fate=Fate.DROPPED, faults=("dropped",)),
        outcome(fate=Fate.FAILED, faults=("failed",)),
        outcome(damaged_codes=1, faults=("damaged",)),
        outcome(frames_late=20, faults=("late_frames",)),
        outcome(),
    ]
    assert sorted(order, key=badness, reverse=True) == order


def test_the_transport_decides_codec_and_buffer() -> None:
    tape = conversation(7).tape(heard=HeardMedia(frames_due=100, frames_lost=3))
    moses = {measure_call(tape, offered(transport=transport), Expect()).mos for transport in Transport}
    assert None not in moses
