"""When agents talk, and with what."""

import numpy as np
import pytest

from scripts.bench_media.talk import AGENT_FRAME, Pattern, Speech


def test_without_silence_the_agent_talks_all_the_time() -> None:
    assert all(Pattern(3000, 0).talking(at_ms, 1) for at_ms in range(0, 10_000, 500))


@pytest.mark.parametrize("call", [1, 2, 7])
def test_half_the_time_is_half_of_every_call(call: int) -> None:
    times = range(0, 6000, 20)
    assert abs(sum(Pattern(3000, 3000).talking(at_ms, call) for at_ms in times) - len(times) / 2) <= 1


def test_at_any_moment_about_half_of_the_calls_talk() -> None:
    pattern = Pattern(3000, 3000)
    for at_ms in range(0, 6000, 100):
        assert 3 <= sum(pattern.talking(at_ms, call) for call in range(1, 11)) <= 7


def test_speech_is_cut_into_frames_and_starts_again() -> None:
    speech = Speech(np.arange(2 * AGENT_FRAME + 5, dtype=np.int16))
    assert speech.frame(0)[0] == speech.frame(2)[0] == 0
    assert speech.frame(1)[0] == AGENT_FRAME
    assert len(speech.frames(1, 3)) == 3 * AGENT_FRAME
    assert speech.frames(1, 3)[AGENT_FRAME] == 0
