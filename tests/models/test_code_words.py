"""Silero takes code words for speech: a run with real voice activity needs no other voice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from engines import fetch
from engines.api import Pcm16
from engines.vad.silero import WINDOW_SAMPLES, SileroVad
from streaming.audio.code_words import WORD_MS, WORDS, code_word, speak
from streaming.audio.g711 import decode_mulaw, encode_mulaw
from streaming.audio.resample import Resampler
from streaming.vad import VoiceGate, VoiceStarted, VoiceStopped
from tests.models.speech import noise
from tests.models.test_silero import scores_of

pytestmark = pytest.mark.models

RATE_HZ = 16_000
NUMBERS = range(0, WORDS, 97)
SILENT_S = 0.5


def over_a_telephone(pcm: Pcm16) -> Pcm16:
    down, up = Resampler(RATE_HZ, 8_000), Resampler(8_000, RATE_HZ)
    narrow = decode_mulaw(encode_mulaw(np.concatenate([down.process(pcm), down.flush()])))
    return np.concatenate([up.process(narrow), up.flush()])


def with_noise(pcm: Pcm16) -> Pcm16:
    return pcm + noise(len(pcm) / RATE_HZ, 460)[: len(pcm)]  # 15 dB below the word


@pytest.mark.parametrize("chain", [np.asarray, over_a_telephone, with_noise])
async def test_silero_hears_code_words_from_their_first_note_to_their_last(chain: Callable[[Pcm16], Pcm16]) -> None:
    vad = SileroVad(await asyncio.to_thread(fetch.ensure, "silero-vad"))
    await vad.start()
    silence = np.zeros(int(SILENT_S * RATE_HZ), np.int16)
    voiced, onsets_ms, ends_ms = [], [], []
    try:
        for number in NUMBERS:
            sound = chain(np.concatenate([silence, speak(code_word(number), RATE_HZ), silence]))
            scores = np.array(await scores_of(vad, sound))
            first, end = len(silence) // WINDOW_SAMPLES + 1, (len(sound) - len(silence)) // WINDOW_SAMPLES
            voiced.append(np.mean(scores[first:end] > 0.5))
            gate = VoiceGate(0.5)
            edges = [gate.feed(float(score), at * WINDOW_SAMPLES) for at, score in enumerate(scores, start=1)]
            started, stopped = filter(None, edges)
            assert isinstance(started, VoiceStarted)
            assert isinstance(stopped, VoiceStopped)
            onsets_ms.append(started.at_samples / 16 - SILENT_S * 1000)
            ends_ms.append(stopped.at_samples / 16 - SILENT_S * 1000 - WORD_MS)
    finally:
        await vad.close()
    assert np.mean(voiced) > 0.97
    assert min(voiced) > 0.85
    assert max(onsets_ms) < 100
    assert max(np.abs(ends_ms)) < 200


async def test_silero_never_misses_so_much_inside_a_word_that_a_turn_ends_there() -> None:
    """Whatever came before: words between silences of several lengths, in its windows at several places."""
    vad = SileroVad(await asyncio.to_thread(fetch.ensure, "silero-vad"))
    await vad.start()
    worst_ms = 0
    try:
        for number in (27, 36, 41, 66, 72, 80, 108, 500, 2222, 4000):
            word = speak(code_word(number), RATE_HZ)
            for silence_samples in (35_000, 48_090, 57_333):
                gap = np.zeros(silence_samples, np.int16)
                low = np.array(await scores_of(vad, np.concatenate([gap, word, gap, word, gap]))) < 0.5
                for begins in (len(gap), 2 * len(gap) + len(word)):
                    inside = low[begins // WINDOW_SAMPLES + 1 : (begins + len(word)) // WINDOW_SAMPLES - 1]
                    runs = np.diff(np.flatnonzero(np.concatenate(([True], ~inside, [True])))) - 1
                    worst_ms = max(worst_ms, int(runs.max()) * WINDOW_SAMPLES * 1000 // RATE_HZ)
    finally:
        await vad.close()
    assert worst_ms <= 200  # agents end a turn at 300
