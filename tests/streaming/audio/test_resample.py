import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.audio.resample import Resampler

Pcm16 = npt.NDArray[np.int16]

RATES_HZ = (8_000, 16_000, 22_050, 24_000, 44_100, 48_000)
RATE_PAIRS = [(a, b) for a in RATES_HZ for b in RATES_HZ]
AMPLITUDE = 10_000.0


def tone(rate_hz: int, frequency_hz: float = 1_000.0, seconds: float = 0.5) -> Pcm16:
    time_s = np.arange(int(rate_hz * seconds)) / rate_hz
    return np.rint(np.sin(2 * np.pi * frequency_hz * time_s) * AMPLITUDE).astype(np.int16)


def in_blocks(resampler: Resampler, pcm: Pcm16, block: int) -> list[Pcm16]:
    return [resampler.process(pcm[at : at + block]) for at in range(0, len(pcm), block)] + [resampler.flush()]


def level_db(pcm: Pcm16, rate_hz: int) -> float:
    """Relative to the tone that went in, the edges left out."""
    middle = pcm[rate_hz // 50 : -rate_hz // 50].astype(np.float64)
    return 20 * math.log10(math.sqrt(float(np.mean(middle**2))) / (AMPLITUDE / math.sqrt(2)) + 1e-9)


@pytest.mark.parametrize(("from_hz", "to_hz"), RATE_PAIRS)
def test_a_tone_in_blocks_of_any_length_keeps_level_length_and_seams(from_hz: int, to_hz: int) -> None:
    """CASES.md, clocks and rates: 10/20/30/odd frames."""
    pcm = tone(from_hz)
    resampler = Resampler(from_hz, to_hz)
    whole = np.concatenate((resampler.process(pcm), resampler.flush()))
    assert len(whole) == math.ceil(len(pcm) * to_hz / from_hz)
    assert abs(level_db(whole, to_hz)) < 0.2
    want = np.sin(2 * np.pi * 1_000 * np.arange(len(whole)) / to_hz) * AMPLITUDE
    edge = to_hz // 50
    assert np.max(np.abs(whole - want)[edge:-edge]) < 10  # in place, and no clicks
    for block in (from_hz // 100, from_hz // 50, 3 * from_hz // 100, 317):
        assert np.array_equal(np.concatenate(in_blocks(resampler, pcm, block)), whole)


@pytest.mark.parametrize(("from_hz", "to_hz"), [pair for pair in RATE_PAIRS if pair[0] != pair[1]])
def test_output_is_never_held_back_longer_than_three_milliseconds(from_hz: int, to_hz: int) -> None:
    resampler = Resampler(from_hz, to_hz)
    fed = came = 0
    for _ in range(20):
        fed += from_hz // 50
        came += len(resampler.process(np.zeros(from_hz // 50, dtype=np.int16)))
        assert 0 <= fed / from_hz - came / to_hz <= 0.0031


@pytest.mark.parametrize(("from_hz", "to_hz"), [(24_000, 16_000), (24_000, 8_000), (48_000, 16_000), (22_050, 8_000)])
def test_what_would_alias_is_gone(from_hz: int, to_hz: int) -> None:
    resampler = Resampler(from_hz, to_hz)
    passes = np.concatenate(in_blocks(resampler, tone(from_hz, 0.42 * to_hz), 480))
    stops = np.concatenate(in_blocks(resampler, tone(from_hz, 0.52 * to_hz), 480))
    assert level_db(passes, to_hz) > -1.0
    assert level_db(stops, to_hz) < -55.0


def test_a_steady_level_and_full_scale_stay_exact() -> None:
    for value in (0, 1, -32768, 32767):
        out = np.concatenate(in_blocks(Resampler(22_050, 24_000), np.full(4_410, value, dtype=np.int16), 441))
        assert set(out[100:-100].tolist()) == {value}


def test_a_full_scale_square_clips_and_does_not_wrap() -> None:
    square = np.tile(np.repeat(np.array([32767, -32768], dtype=np.int16), 40), 30)
    out = np.concatenate(in_blocks(Resampler(8_000, 16_000), square, 160))
    assert np.all(out[np.arange(40, 2_400, 160)] > 0)
    assert np.max(out) == 32767
    assert np.min(out) == -32768


def test_equal_rates_pass_through() -> None:
    resampler = Resampler(16_000, 16_000)
    pcm = tone(16_000)
    assert np.array_equal(resampler.process(pcm), pcm)
    assert len(resampler.flush()) == 0


def test_reset_and_flush_mean_as_fresh() -> None:
    pcm = tone(24_000)
    fresh = Resampler(24_000, 16_000).process(pcm)
    used = Resampler(24_000, 16_000)
    used.process(tone(24_000, 333.0)[:1_001])
    used.reset()
    assert np.array_equal(used.process(pcm), fresh)
    used.flush()
    assert np.array_equal(used.process(pcm), fresh)


def test_a_long_block_equals_short_ones_and_keeps_no_hold_of_it() -> None:
    pcm = tone(8_000, seconds=3.0)
    resampler = Resampler(8_000, 16_000)
    whole = resampler.process(pcm)
    assert resampler._history.base is None
    again = Resampler(8_000, 16_000)
    assert np.array_equal(whole, np.concatenate([again.process(pcm[at : at + 160]) for at in range(0, len(pcm), 160)]))


@settings(max_examples=60, deadline=None)
@given(
    pair=st.sampled_from([(8_000, 16_000), (24_000, 16_000), (22_050, 24_000), (48_000, 8_000)]),
    cuts=st.lists(st.integers(0, 700), max_size=12),
    seed=st.integers(0, 2**32 - 1),
)
def test_blocks_never_change_a_bit(pair: tuple[int, int], cuts: list[int], seed: int) -> None:
    noise = np.random.default_rng(seed).integers(-32768, 32768, sum(cuts)).astype(np.int16)
    one = Resampler(*pair)
    whole = np.concatenate((one.process(noise), one.flush()))
    many = Resampler(*pair)
    parts = [many.process(block) for block in np.split(noise, np.cumsum(cuts)[:-1])] if cuts else []
    assert np.array_equal(np.concatenate((*parts, many.flush())), whole)
    assert all(part.dtype == np.int16 for part in parts)


@pytest.mark.parametrize(("from_hz", "to_hz"), [(0, 16_000), (16_000, -1), (1_000, 48_000), (44_101, 48_000)])
def test_unusable_rates_are_refused(from_hz: int, to_hz: int) -> None:
    with pytest.raises(ValueError, match="cannot resample"):
        Resampler(from_hz, to_hz)


class ByOutput(Resampler):
    """One output after the other."""

    def _by_phase(self, samples: npt.NDArray[np.float64], first: int, count: int) -> npt.NDArray[np.float64]:
        return self._by_output(samples, first, count)


@pytest.mark.parametrize(("from_hz", "to_hz"), [(8_000, 16_000), (24_000, 8_000), (24_000, 16_000), (16_000, 24_000)])
def test_the_short_way_gives_the_same_bits(from_hz: int, to_hz: int) -> None:
    random = np.random.default_rng(7)
    fast, plain = Resampler(from_hz, to_hz), ByOutput(from_hz, to_hz)
    for length in (0, 1, 7, 160, 480, 1, 4_801, 2):
        block = random.integers(-32_768, 32_768, length).astype(np.int16)
        assert np.array_equal(fast.process(block), plain.process(block))
    assert np.array_equal(fast.flush(), plain.flush())
