"""What a microphone picks up beside the voice, frame by frame."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.caller_sound import CallerSound, Echo, Noise, Pcm16

RATE_HZ = 8_000
SAMPLES = 160


def level(value: int) -> Pcm16:
    return np.full(SAMPLES, value, dtype=np.int16)


SILENCE = level(0)


def test_without_noise_and_echo_the_line_goes_out_as_it_is() -> None:
    assert CallerSound(RATE_HZ).frame(level(5), level(7)) is None


def test_noise_goes_round_its_loop_and_under_the_voice() -> None:
    loop = np.arange(400, dtype=np.int16)
    sound = CallerSound(RATE_HZ, Noise(loop, start=300))
    picked = [sound.frame(None, SILENCE), sound.frame(level(1_000), SILENCE), sound.frame(None, SILENCE)]
    expected = np.concatenate((loop[300:], loop, loop))[: 3 * SAMPLES]
    expected[SAMPLES : 2 * SAMPLES] += 1_000
    assert np.array_equal(np.concatenate([frame for frame in picked if frame is not None]), expected)


def heard_back(echo: Echo, heard: list[Pcm16]) -> Pcm16:
    """What comes back of frames that were heard one after another, silence where nothing does."""
    sound = CallerSound(RATE_HZ, echo=echo)
    frames = [sound.frame(None, frame) for frame in heard]
    return np.concatenate([SILENCE if frame is None else frame for frame in frames])


@pytest.mark.parametrize("delay_ms", [20, 25, 40, 180])
def test_an_echo_is_late_and_soft(delay_ms: float) -> None:
    said = np.arange(1, 2 * SAMPLES + 1, dtype=np.int16) * 50
    heard = [said[:SAMPLES], said[SAMPLES:]] + [SILENCE] * 12
    back = heard_back(Echo(20, delay_ms), heard)
    # Frame n is sent in the slot after that in which frame n was heard: so much of the delay is in that.
    late = round((delay_ms - 20) * RATE_HZ / 1000)
    assert np.all(back[:late] == 0)
    assert np.allclose(back[late : late + len(said)], said * 0.1, atol=1)
    assert np.all(back[late + len(said) :] == 0)


def test_once_an_echo_has_died_away_nothing_is_mixed() -> None:
    sound = CallerSound(RATE_HZ, echo=Echo(6, 60))
    assert sound.frame(None, SILENCE) is None
    assert sound.frame(None, level(100)) is not None
    after = [sound.frame(None, SILENCE) is None for _ in range(10)]
    assert after == [False] * 2 + [True] * 8


def test_an_echo_and_the_voice_are_heard_together_and_do_not_wrap() -> None:
    sound = CallerSound(RATE_HZ, echo=Echo(0, 20))
    frame = sound.frame(level(30_000), level(30_000))
    assert frame is not None
    assert set(frame.tolist()) == {32_767}


def test_a_short_last_frame_of_a_line_is_filled_up() -> None:
    sound = CallerSound(RATE_HZ, Noise(level(3)))
    frame = sound.frame(level(5)[:10], SILENCE)
    assert frame is not None
    assert frame.tolist() == [8] * 10 + [3] * (SAMPLES - 10)


@pytest.mark.parametrize(("loss_db", "delay_ms"), [(-1, 100), (20, 19), (20, 2_001)])
def test_no_room_has_such_an_echo(loss_db: float, delay_ms: float) -> None:
    with pytest.raises(ValueError, match="an echo is"):
        Echo(loss_db, delay_ms)
