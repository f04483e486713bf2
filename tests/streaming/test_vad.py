from hypothesis import given
from hypothesis import strategies as st

from streaming.vad import WINDOW_SAMPLES, VoiceGate, VoiceStarted, VoiceStopped, ms_to_samples, samples_to_ms


def edges(probabilities: list[float], threshold: float = 0.5) -> list[tuple[int, VoiceStarted | VoiceStopped]]:
    gate = VoiceGate(threshold)
    found = []
    for index, probability in enumerate(probabilities):
        edge = gate.feed(probability, (index + 1) * WINDOW_SAMPLES)
        if edge is not None:
            found.append((index, edge))
    return found


def test_speech_begins_with_the_second_voiced_window_and_is_dated_to_the_first() -> None:
    assert edges([0.1, 0.9, 0.9]) == [(2, VoiceStarted(WINDOW_SAMPLES))]


def test_a_click_is_no_speech() -> None:
    assert edges([0.1, 0.99, 0.1, 0.99, 0.1, 0.1]) == []


def test_speech_pauses_after_two_silent_windows_and_is_dated_to_the_last_voiced() -> None:
    found = edges([0.9, 0.9, 0.9, 0.1, 0.1, 0.1])
    assert found[-1] == (4, VoiceStopped(3 * WINDOW_SAMPLES))


def test_a_plosive_inside_a_word_is_no_pause() -> None:
    assert edges([0.9, 0.9, 0.1, 0.9, 0.9]) == [(1, VoiceStarted(0))]


def test_once_speaking_a_weaker_window_is_still_voiced() -> None:
    assert edges([0.9, 0.9, 0.4, 0.4, 0.4, 0.4]) == [(1, VoiceStarted(0))]
    assert edges([0.4, 0.4, 0.4]) == []


def test_rising_tells_of_a_voiced_window_that_is_no_onset_yet() -> None:
    gate = VoiceGate(0.5)
    gate.feed(0.1, 512)
    assert not gate.rising
    gate.feed(0.9, 1024)
    assert gate.rising


@given(st.lists(st.floats(0, 1), max_size=200), st.floats(0.2, 0.9))
def test_edges_alternate_and_never_go_back_in_time(probabilities: list[float], threshold: float) -> None:
    found = edges(probabilities, threshold)
    assert [type(edge) for _, edge in found] == [
        VoiceStarted if index % 2 == 0 else VoiceStopped for index in range(len(found))
    ]
    positions = [edge.at_samples for _, edge in found]
    assert positions == sorted(positions)
    assert all(edge.at_samples <= (index + 1) * WINDOW_SAMPLES for index, edge in found)


def test_positions_and_milliseconds() -> None:
    assert samples_to_ms(16_000) == 1_000
    assert ms_to_samples(32) == 512
