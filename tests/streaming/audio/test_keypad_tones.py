"""Each key sounds as its two frequencies, and as nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from streaming.audio.keypad_tones import PAUSE_MS, TONE_MS, keypad_tones

ROWS = (697, 770, 852, 941)
COLUMNS = (1209, 1336, 1477, 1633)
KEYS = ("123A", "456B", "789C", "*0#D")


def strongest(pcm: np.ndarray, rate_hz: int, among: tuple[int, ...]) -> int:
    times = np.arange(len(pcm)) / rate_hz
    return max(among, key=lambda hz: abs(np.sum(pcm * np.exp(-2j * np.pi * hz * times))))


@pytest.mark.parametrize("rate_hz", [8_000, 16_000])
def test_every_key(rate_hz: int) -> None:
    for row, keys in enumerate(KEYS):
        for column, key in enumerate(keys):
            tone = keypad_tones(key, rate_hz)[: rate_hz * TONE_MS // 1000].astype(float)
            assert strongest(tone, rate_hz, ROWS) == ROWS[row]
            assert strongest(tone, rate_hz, COLUMNS) == COLUMNS[column]
            assert 12_000 < np.max(np.abs(tone)) <= 15_000


def test_keys_are_told_apart_by_silence() -> None:
    pcm = keypad_tones("11", 8_000)
    assert len(pcm) == 2 * 8 * (TONE_MS + PAUSE_MS)
    assert not pcm[8 * TONE_MS : 8 * (TONE_MS + PAUSE_MS)].any()
    assert len(keypad_tones("", 8_000)) == 0
    with pytest.raises(ValueError, match="substring"):
        keypad_tones("x", 8_000)
