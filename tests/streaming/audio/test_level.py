import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.audio.level import SILENCE_DBFS, quietest_dip, rms_dbfs


def test_levels() -> None:
    assert rms_dbfs(np.full(100, -32768, dtype=np.int16)) == pytest.approx(0.0)
    assert rms_dbfs(np.full(100, 16384, dtype=np.int16)) == pytest.approx(-6.02, abs=0.01)
    sine = np.rint(np.sin(np.arange(16_000) * 2 * np.pi / 16) * 32767).astype(np.int16)
    assert rms_dbfs(sine) == pytest.approx(-3.01, abs=0.01)


def test_silence_has_a_number() -> None:
    assert rms_dbfs(np.zeros(0, dtype=np.int16)) == SILENCE_DBFS
    assert rms_dbfs(np.zeros(160, dtype=np.int16)) == SILENCE_DBFS
    one = np.zeros(320_000, dtype=np.int16)
    one[0] = 1
    assert rms_dbfs(one) == SILENCE_DBFS


def test_the_dip_between_two_words() -> None:
    noise = np.random.default_rng(1).integers(-8_000, 8_000, 16_000).astype(np.int16)
    noise[6_000:6_600] //= 50
    assert 6_160 <= quietest_dip(noise, 16_000) <= 6_440


def test_the_middle_of_digital_silence() -> None:
    pcm = np.full(16_000, 5_000, dtype=np.int16)
    pcm[4_000:8_000] = 0
    assert quietest_dip(pcm, 16_000) == 6_000
    assert quietest_dip(np.zeros(1_000, dtype=np.int16), 16_000) == 500


def test_loud_blocks_do_not_overflow() -> None:
    pcm = np.full(200_000, -32768, dtype=np.int16)
    pcm[150_000:150_400] = 100
    assert quietest_dip(pcm, 16_000) == 150_200


@given(length=st.integers(0, 2_000), window_ms=st.integers(0, 60))
def test_the_dip_is_inside(length: int, window_ms: int) -> None:
    pcm = (np.arange(length) * 7_919 % 65_536 - 32_768).astype(np.int16)
    assert 0 <= quietest_dip(pcm, 8_000, window_ms) <= max(0, length - 1)
