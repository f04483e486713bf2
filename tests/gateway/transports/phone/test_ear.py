"""Caller audio to 16 kHz: transparent, without clicks, with the holes that media times tell of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.api import Pcm16
from gateway.transports.phone.ear import AHEAD_MS, FILL_MS, Ear

RATE = 8_000
FRAME = 160


def tone(samples: int, hz: float = 440.0, rate_hz: int = RATE) -> Pcm16:
    return np.round(np.sin(2 * np.pi * hz * np.arange(samples) / rate_hz) * 8_000).astype(np.int16)


def joined(blocks: list[Pcm16]) -> Pcm16:
    return np.concatenate(blocks or [np.zeros(0, np.int16)])


def heard_ms(blocks: list[Pcm16]) -> float:
    return sum(len(block) for block in blocks) / 16


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000, 48_000])
def test_a_tone_comes_through_whole_in_frames_as_in_one(rate_hz: int) -> None:
    ear, whole = Ear(), tone(rate_hz * 3, rate_hz=rate_hz)
    size = rate_hz // 50
    got = joined(
        [
            block
            for number in range(150)
            for block in ear.hear(whole[number * size :][:size], rate_hz, number * 20.0, number * 0.02)
        ]
    )
    like = tone(len(got), rate_hz=16_000)
    assert len(got) >= 16_000 * 3 - 64
    assert np.corrcoef(got, like)[0, 1] > 0.9999
    assert np.abs(np.diff(got[100:].astype(int))).max() < 1_600, "a click"
    assert not ear.gaps


def test_a_jump_of_the_media_time_is_silence_of_that_length() -> None:
    ear = Ear()
    assert heard_ms(ear.hear(tone(FRAME), RATE, 1_000.0, 10.0)) == pytest.approx(20, abs=4)
    blocks = ear.hear(tone(FRAME), RATE, 1_320.0, 10.32)
    assert heard_ms(blocks) == pytest.approx(320, abs=1)
    assert not blocks[0][1_000:].any()
    assert ear.gaps == 1
    assert heard_ms(ear.hear(tone(FRAME), RATE, 1_340.0, 10.34)) == pytest.approx(20, abs=1)


def test_times_that_wobble_are_no_hole() -> None:
    ear = Ear()
    total = sum(heard_ms(ear.hear(tone(FRAME), RATE, n * 20.0 + (-1) ** n * 15, n * 0.02)) for n in range(500))
    assert total == pytest.approx(500 * 20, abs=4)
    assert not ear.gaps


def test_what_is_late_by_its_time_is_heard_and_times_that_began_anew_are_believed() -> None:
    ear = Ear()
    ear.hear(tone(FRAME), RATE, 5_000.0, 0.0)
    assert heard_ms(ear.hear(tone(FRAME), RATE, 4_900.0, 0.02)) == pytest.approx(20, abs=1)
    assert heard_ms(ear.hear(tone(FRAME), RATE, 0.0, 0.04)) == pytest.approx(20, abs=1)
    assert heard_ms(ear.hear(tone(FRAME), RATE, 100.0, 0.12)) == pytest.approx(100, abs=1)
    assert ear.gaps == 1


def test_audio_without_a_time_is_taken_as_it_comes_and_the_next_time_is_a_new_beginning() -> None:
    ear = Ear()
    ear.hear(tone(FRAME), RATE, 0.0, 0.0)
    ear.hear(tone(FRAME), RATE, None, 0.02)
    assert heard_ms(ear.hear(tone(FRAME), RATE, 9_000.0, 0.04)) == pytest.approx(20, abs=1)
    assert not ear.gaps


def test_a_long_hole_is_filled_for_a_second_only() -> None:
    ear = Ear()
    ear.hear(tone(FRAME), RATE, 0.0, 0.0)
    assert heard_ms(ear.hear(tone(FRAME), RATE, 60_000.0, 60.0)) == pytest.approx(FILL_MS + 20, abs=1)
    assert heard_ms(ear.hear(tone(FRAME), RATE, 60_020.0, 60.02)) == pytest.approx(20, abs=1)


def test_times_that_run_do_not_make_silence_faster_than_the_clock() -> None:
    ear, total = Ear(), 0.0
    for number in range(500):
        total += heard_ms(ear.hear(tone(FRAME), RATE, number * 1_020.0, number * 0.02))
    assert total <= 500 * 20 + AHEAD_MS


def test_another_rate_goes_on_where_the_last_one_ended() -> None:
    ear = Ear()
    first = joined(ear.hear(tone(RATE), RATE, 0.0, 0.0))
    second = joined(ear.hear(tone(16_000, rate_hz=16_000), 16_000, 1_000.0, 1.0))
    assert len(first) + len(second) == 32_000


def test_a_rate_that_cannot_be_resampled_takes_nothing() -> None:
    ear = Ear()
    with pytest.raises(ValueError, match="cannot resample"):
        ear.hear(tone(FRAME), 7, None, 0.0)
    assert heard_ms(ear.hear(np.zeros(16_000 * 3, np.int16), 16_000, None, 0.0)) == 3_000


@given(
    st.lists(
        st.tuples(st.integers(0, 1_000), st.one_of(st.none(), st.floats(-1e12, 1e12, allow_nan=False))), max_size=30
    ),
    st.sampled_from([8_000, 16_000, 48_000]),
)
def test_no_times_lose_or_invent_audio(frames: list[tuple[int, float | None]], rate_hz: int) -> None:
    ear = Ear()
    total = sum(heard_ms(ear.hear(np.ones(n, np.int16), rate_hz, at, k * 0.02)) for k, (n, at) in enumerate(frames))
    sent_ms = sum(n for n, _ in frames) * 1000 / rate_hz
    assert sent_ms - 5 <= total <= max(sent_ms, len(frames) * 20.0) + AHEAD_MS + 5 + sent_ms
