"""Real speech for tests: spoken when the test runs, by whichever small synthesiser is installed."""

from __future__ import annotations

import functools
import io
import shutil
import subprocess
import wave

import numpy as np
import pytest

from engines.api import Pcm16
from streaming.audio.resample import Resampler
from streaming.jobs import INPUT_RATE_HZ


@functools.cache
def say(text: str) -> Pcm16:
    """``text`` spoken, 16 kHz; skips the test where nothing can speak."""
    if shutil.which("flite"):
        command = ["flite", "-voice", "slt", "-t", text, "-o", "/dev/stdout"]
    elif shutil.which("espeak-ng"):
        command = ["espeak-ng", "-v", "en-us", "--stdout", text]
    else:
        pytest.skip("neither flite nor espeak-ng is installed")
    spoken = subprocess.run(command, check=True, capture_output=True).stdout
    with wave.open(io.BytesIO(spoken)) as file:
        rate_hz = file.getframerate()
        # espeak-ng cannot know the length when it begins to write, so take all there is.
        pcm = np.frombuffer(file.readframes(len(spoken)), np.int16)
    if rate_hz != INPUT_RATE_HZ:
        pcm = resampled(pcm, rate_hz, INPUT_RATE_HZ)
    return pcm


def resampled(pcm: Pcm16, from_hz: int, to_hz: int) -> Pcm16:
    resampler = Resampler(from_hz, to_hz)
    return np.concatenate((resampler.process(pcm), resampler.flush()))


def noise(seconds: float, rms: float, seed: int = 0) -> Pcm16:
    """White noise at 16 kHz, ``rms`` in sample values."""
    samples = np.random.default_rng(seed).standard_normal(int(seconds * INPUT_RATE_HZ)) * rms
    return samples.clip(-32768, 32767).astype(np.int16)
