"""From Kokoro's samples to PCM: silence cut, levels kept, word times right."""

from __future__ import annotations

import numpy as np
import pytest

from engines.tts.kokoro_audio import spoken_pcm
from engines.tts.kokoro_text import KokoroInput, PlacedWord
from engines.tts.spoken_audio import BadAudioError

RATE = 24_000
SAID = KokoroInput((0, 5, 6, 7, 8, 0), 3, (PlacedWord(2, 3), PlacedWord(6, 5)), ".")
DURATIONS = np.array([8, 10, 10, 4, 20, 12], np.int32)
"""Frames of 25 ms: 0.2 s of silence, a word of 0.5 s, a space, a word to 1.3 s, silence to 1.6 s."""


def _samples(peak: float = 0.5) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    samples = np.zeros(64 * 600, np.float32)
    at = np.arange(int(0.2 * RATE), int(1.3 * RATE))
    samples[at] = peak * np.sin(at * 0.1)
    return samples


def test_the_models_silence_is_cut_and_words_end_where_they_did() -> None:
    pcm, ends_ms = spoken_pcm(_samples(), DURATIONS, SAID)
    assert pcm.size == pytest.approx((0.010 + 1.1 + 0.240) * RATE, abs=240)
    assert np.abs(pcm).max() == pytest.approx(0.5 * 32767, abs=10)
    assert not pcm[-int(0.22 * RATE) :].any()
    assert ends_ms == pytest.approx([510, 1110], abs=6)


def test_a_pause_suits_its_punctuation() -> None:
    sizes = [
        spoken_pcm(_samples(), DURATIONS, KokoroInput(SAID.ids, 3, SAID.words, pause))[0].size
        for pause in ("", ",", ".")
    ]
    assert np.diff(sizes).tolist() == [0.1 * RATE, 0.1 * RATE]


def test_only_what_would_clip_is_made_quieter() -> None:
    assert np.abs(spoken_pcm(_samples(1.6), DURATIONS, SAID)[0]).max() == pytest.approx(0.97 * 32767, abs=10)


@pytest.mark.parametrize("samples", [np.zeros(0), np.zeros(9600), np.full(9600, np.nan), np.full(9600, np.inf)])
def test_what_cannot_be_heard_is_no_audio(samples: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    with pytest.raises(BadAudioError):
        spoken_pcm(samples.astype(np.float32), DURATIONS, SAID)
