"""The log-mel picture, against a slow and plain computation of the same definition."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from engines.api import Pcm16
from engines.turn.features import BANDS, FRAMES, INPUT_SAMPLES, log_mel


def hz_of_mel(mel: float) -> float:
    return mel * 200 / 3 if mel < 15 else 1000.0 * 6.4 ** ((mel - 15) / 27)


def plain(pcm: Pcm16) -> npt.NDArray[np.float64]:
    """Every one of the 800 frames by itself, a triangle at a time."""
    audio = np.concatenate([np.zeros(INPUT_SAMPLES), pcm.astype(float) / 32768])[-INPUT_SAMPLES:]
    audio = (audio - audio.mean()) / np.sqrt(audio.var() + 1e-7)
    edged = np.concatenate([audio[200:0:-1], audio, audio[-2:-202:-1]])
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    top = 15 + 27 * np.log(8) / np.log(6.4)
    corners = [hz_of_mel(top * n / (BANDS + 1)) for n in range(BANDS + 2)]
    bins = np.arange(201) * 40.0
    filters = np.zeros((BANDS, 201))
    for n, (low, middle, high) in enumerate(zip(corners, corners[1:], corners[2:], strict=False)):
        shape = np.interp(bins, [low, middle, high], [0.0, 1.0, 0.0], left=0.0, right=0.0)
        filters[n] = shape * 2 / (high - low)
    columns = [filters @ np.abs(np.fft.rfft(edged[t * 160 : t * 160 + 400] * window)) ** 2 for t in range(FRAMES)]
    bands = np.log10(np.maximum(np.array(columns).T, 1e-10))
    picture: npt.NDArray[np.float64] = (np.maximum(bands, bands.max() - 8) + 4) / 4
    return picture


@pytest.mark.parametrize("samples", [1, 200, 359, 16_000, 127_799, 127_801, 128_000, 150_000])
def test_it_is_the_definition_at_every_amount_of_padding(samples: int) -> None:
    noise = np.random.default_rng(samples).standard_normal(samples)
    pcm = (noise * 3000).clip(-32768, 32767).astype(np.int16)
    picture = log_mel(pcm)
    assert picture.shape == (BANDS, FRAMES)
    assert picture.dtype == np.float32
    np.testing.assert_allclose(picture, plain(pcm), atol=2e-4)


def test_no_audio_and_silence_are_finite() -> None:
    for pcm in (np.zeros(0, np.int16), np.zeros(INPUT_SAMPLES, np.int16)):
        assert np.isfinite(log_mel(pcm)).all()
