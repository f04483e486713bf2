from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from loadtest.measure import Span, TurnMark, measure_turns, voiced_spans
from loadtest.script import TurnKind

Pcm16 = npt.NDArray[np.int16]
RATE_HZ = 24_000


def samples(ms: float) -> int:
    return round(ms * RATE_HZ / 1000)


def side(length_ms: float, *spoken_ms: tuple[float, float], noise: float = 0.0) -> Pcm16:
    """A recording with a 200 Hz tone in the given stretches, over white noise."""
    count = samples(length_ms)
    pcm = np.random.default_rng(1).normal(0.0, noise, count)
    tone = 8_000 * np.sin(2 * np.pi * 200 * np.arange(count) / RATE_HZ)
    for start, end in spoken_ms:
        pcm[samples(start) : samples(end)] += tone[samples(start) : samples(end)]
    return pcm.astype(np.int16)


def mark(start_ms: float, end_ms: float, kind: TurnKind = "say") -> TurnMark:
    return TurnMark(samples(start_ms), samples(end_ms), kind)


def test_silence_has_no_voice() -> None:
    assert voiced_spans(np.zeros(RATE_HZ, dtype=np.int16), RATE_HZ) == []
    assert voiced_spans(np.zeros(3, dtype=np.int16), RATE_HZ) == []
    assert voiced_spans(side(1_000, noise=30.0), RATE_HZ) == []


def test_short_pauses_join_and_long_ones_part() -> None:
    pcm = side(3_000, (100, 500), (650, 1_000), (1_250, 2_000))
    spans = voiced_spans(pcm, RATE_HZ)
    assert spans == [Span(samples(100), samples(1_000)), Span(samples(1_250), samples(2_000))]


def test_a_noise_floor_under_the_voice_is_not_voice() -> None:
    pcm = side(2_000, (500, 1_000), noise=50.0)  # -56 dBFS of noise alone
    assert voiced_spans(pcm, RATE_HZ) == [Span(samples(500), samples(1_000))]


def test_voice_to_voice_is_read_from_sound_not_from_the_marks() -> None:
    caller = side(4_000, (1_050, 1_900))
    agent = side(4_000, (2_700, 3_500))
    (timing,) = measure_turns(caller, agent, RATE_HZ, [mark(1_000, 2_000)])
    assert timing.voice_to_voice_ms == pytest.approx(800, abs=5)
    assert timing.stop_ms is None


def test_an_answer_to_the_next_turn_is_not_this_ones() -> None:
    caller = side(6_000, (1_000, 2_000), (3_000, 4_000))
    agent = side(6_000, (4_500, 5_000))
    timings = measure_turns(caller, agent, RATE_HZ, [mark(1_000, 2_000), mark(3_000, 4_000)])
    assert [timing.voice_to_voice_ms for timing in timings] == [None, pytest.approx(500, abs=5)]


def test_the_greeting_is_not_an_answer() -> None:
    caller = side(5_000, (2_000, 3_000))
    agent = side(5_000, (100, 1_500))
    (timing,) = measure_turns(caller, agent, RATE_HZ, [mark(2_000, 3_000)])
    assert timing.voice_to_voice_ms is None


def test_a_barge_in_stops_the_agent_and_the_rest_of_the_reply_is_the_cut_turns() -> None:
    caller = side(8_000, (1_000, 2_000), (4_050, 5_000))
    agent = side(8_000, (2_800, 4_270), (5_900, 7_000))
    first, second = measure_turns(caller, agent, RATE_HZ, [mark(1_000, 2_000), mark(4_000, 5_000, "interrupt")])
    assert second.stop_ms == pytest.approx(220, abs=5)
    assert second.voice_to_voice_ms == pytest.approx(900, abs=5)
    assert first.voice_to_voice_ms == pytest.approx(800, abs=5)
    assert first.agent.end == second.agent.start == pytest.approx(samples(4_270), abs=samples(5))


def test_an_agent_that_does_not_stop_has_a_long_stop_and_no_answer() -> None:
    caller = side(8_000, (1_000, 2_000))
    agent = side(8_000, (100, 5_000))
    (timing,) = measure_turns(caller, agent, RATE_HZ, [mark(1_000, 2_000, "interrupt")])
    assert timing.stop_ms == pytest.approx(4_000, abs=5)
    assert timing.voice_to_voice_ms is None


def test_nothing_to_stop() -> None:
    caller = side(8_000, (1_000, 2_000))
    agent = side(8_000, (100, 700), (3_000, 4_000))
    (timing,) = measure_turns(caller, agent, RATE_HZ, [mark(1_000, 2_000, "interrupt")])
    assert timing.stop_ms is None
    assert timing.agent == Span(samples(1_000), samples(8_000))


def test_a_silent_line_measures_nothing() -> None:
    agent = side(4_000, (2_000, 3_000))
    (timing,) = measure_turns(side(4_000), agent, RATE_HZ, [mark(500, 1_000, "interrupt")])
    assert (timing.voice_to_voice_ms, timing.stop_ms) == (None, None)


def test_no_turns() -> None:
    assert measure_turns(side(100), side(100), RATE_HZ, []) == []


def test_what_is_said_after_the_silence_of_a_cut_reply_is_talking_on() -> None:
    caller = side(9_000, (4_000, 5_200))
    agent = side(9_000, (1_000, 4_250), (4_500, 4_700), (4_950, 5_150), (6_200, 7_000))
    (timing,) = measure_turns(caller, agent, RATE_HZ, [mark(4_000, 5_200, "interrupt")])
    assert timing.stop_ms == pytest.approx(250, abs=5)
    assert timing.talked_on_ms == pytest.approx(400, abs=10)
    assert timing.voice_to_voice_ms == pytest.approx(1_000, abs=5)


def test_nobody_answers_within_200_ms_of_an_interruption_but_to_keys() -> None:
    agent = side(9_000, (1_000, 4_250), (5_300, 6_000))
    (spoken,) = measure_turns(side(9_000, (4_000, 5_200)), agent, RATE_HZ, [mark(4_000, 5_200, "interrupt")])
    assert spoken.voice_to_voice_ms is None
    assert spoken.talked_on_ms == pytest.approx(700, abs=5)
    keys = TurnMark(samples(4_000), samples(5_200), "interrupt", keys=True)
    (pressed,) = measure_turns(side(9_000), agent, RATE_HZ, [keys])
    assert pressed.voice_to_voice_ms == pytest.approx(100, abs=5)
    assert pressed.talked_on_ms == 0


def test_an_agent_that_begins_in_the_callers_line_cuts_in() -> None:
    caller = side(9_000, (1_000, 1_500), (1_900, 3_000))
    agent = side(9_000, (1_100, 1_150), (1_700, 2_000), (3_800, 5_000))
    (timing,) = measure_turns(caller, agent, RATE_HZ, [mark(1_000, 3_000)])
    assert (timing.cut_ins, round(timing.cut_in_ms or 0)) == (2, 350)
    assert timing.voice_to_voice_ms == pytest.approx(800, abs=5)
    (greeted,) = measure_turns(caller, side(9_000, (100, 2_000)), RATE_HZ, [mark(1_000, 3_000)])
    assert (greeted.cut_ins, greeted.cut_in_ms) == (0, None), "it spoke before the caller did"


def test_a_backchannel_ends_no_turn() -> None:
    caller = side(12_000, (1_000, 2_000), (4_000, 4_400))
    agent = side(12_000, (4_100, 4_200), (4_900, 9_000))
    timings = measure_turns(caller, agent, RATE_HZ, [mark(1_000, 2_000), mark(4_000, 4_400, "backchannel")])
    assert timings[0].voice_to_voice_ms == pytest.approx(2_100, abs=5)
    assert timings[0].agent == Span(samples(1_000), samples(12_000))
    assert (timings[1].voice_to_voice_ms, timings[1].stop_ms) == (None, None), "the agent had not begun"


@pytest.mark.parametrize(
    ("agent", "stop_ms"),
    [
        ([(2_600, 9_000)], None),
        ([(2_600, 4_300), (5_700, 9_000)], None),
        ([(2_600, 4_300), (6_000, 9_000)], 300),
        ([(2_600, 4_300)], 300),
        ([(2_600, 5_950)], None),
        ([(2_600, 3_700)], 0),
        ([(2_600, 3_700), (4_100, 9_000)], None),
        ([(2_600, 2_900)], None),
    ],
    ids=[
        "went on",
        "held its breath",
        "began anew",
        "stopped",
        "ended later",
        "paused",
        "went on from a pause",
        "over",
    ],
)
def test_what_a_backchannel_does_to_the_agent(agent: list[tuple[float, float]], stop_ms: float | None) -> None:
    marks = [mark(1_000, 2_000), mark(4_000, 4_400, "backchannel")]
    timings = measure_turns(side(12_000, (1_000, 2_000), (4_000, 4_400)), side(12_000, *agent), RATE_HZ, marks)
    assert timings[1].stop_ms == (None if stop_ms is None else pytest.approx(stop_ms, abs=5))


def test_a_long_recording_is_measured_in_pieces_as_if_in_one() -> None:
    pcm = side(100_000, (40_900, 41_100), (81_800, 82_000))
    spans = [Span(samples(40_900), samples(41_100)), Span(samples(81_800), samples(82_000))]
    assert voiced_spans(pcm, RATE_HZ) == spans
