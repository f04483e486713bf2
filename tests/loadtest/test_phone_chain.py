"""What a telephone does to a voice."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.phone_chain import Pcm16, PhoneChain, band_limited, levelled, speech_dbfs, through_phone
from loadtest.voice import say_line
from streaming.audio.level import rms_dbfs


def tone(frequency_hz: float, dbfs: float, rate_hz: int, ms: int = 1_000) -> Pcm16:
    n = np.arange(rate_hz * ms // 1000)
    return np.rint(32768 * 2**0.5 * 10 ** (dbfs / 20) * np.sin(2 * np.pi * frequency_hz * n / rate_hz)).astype(np.int16)


def middle(pcm: Pcm16) -> Pcm16:
    return pcm[len(pcm) // 4 : -len(pcm) // 4]


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000])
def test_a_telephone_passes_300_to_3400_hz(rate_hz: int) -> None:
    def lost_db(frequency_hz: float) -> float:
        return -20 - rms_dbfs(middle(band_limited(tone(frequency_hz, -20, rate_hz), rate_hz)))

    assert lost_db(60) > 30
    assert lost_db(150) > 10
    assert abs(lost_db(500)) < 0.5
    assert abs(lost_db(3_000)) < 0.5
    if rate_hz > 8_000:
        assert lost_db(4_000) > 30


def test_the_band_costs_no_delay() -> None:
    click = np.zeros(1_000, dtype=np.int16)
    click[500] = 20_000
    assert int(np.argmax(np.abs(band_limited(click, 8_000)))) == 500


@pytest.mark.parametrize(("dbfs", "becomes"), [(-40, -30), (-20, -20), (-10, -15)])
def test_soft_voices_are_raised_and_loud_ones_lowered_by_half(dbfs: float, becomes: float) -> None:
    assert rms_dbfs(middle(levelled(tone(500, dbfs, 8_000), 8_000))) == pytest.approx(becomes, abs=1)


def test_pauses_are_not_pumped_up() -> None:
    hiss = tone(500, -60, 8_000)
    line = np.concatenate((tone(500, -26, 8_000), hiss))
    assert rms_dbfs(middle(levelled(line, 8_000)[len(hiss) :])) < -56


def test_what_is_shorter_than_a_block_is_left_alone() -> None:
    assert levelled(tone(500, -30, 8_000)[:79], 8_000).tolist() == tone(500, -30, 8_000)[:79].tolist()


@pytest.mark.parametrize("chain", [PhoneChain(), PhoneChain(False, False, False), PhoneChain(mulaw=False)])
def test_a_line_keeps_its_length_and_place(chain: PhoneChain) -> None:
    line = say_line("What are your opening hours?", 24_000)
    phoned = through_phone(line, 24_000, chain)
    assert len(phoned) == len(line)
    lag = int(np.argmax(np.correlate(phoned.astype(float), line[2_000:20_000].astype(float)))) - 2_000
    assert abs(lag) <= 24  # a millisecond


def test_the_level_of_speech_leaves_its_pauses_out() -> None:
    spoken = tone(500, -20, 8_000)
    line = np.concatenate((np.zeros(16_000, dtype=np.int16), spoken, np.zeros(16_000, dtype=np.int16)))
    assert speech_dbfs(line, 8_000) == pytest.approx(-20, abs=0.2)
    assert rms_dbfs(line) < -26


@pytest.mark.parametrize("samples", [0, 100, 8_000])
def test_silence_has_no_level_of_speech(samples: int) -> None:
    assert speech_dbfs(np.zeros(samples, dtype=np.int16), 8_000) is None
