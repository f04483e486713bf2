"""Whisper tiny.en with real weights: what is spoken is heard, what is not is not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio

from engines.api import Pcm16
from engines.fetch import ensure
from engines.lane import CpuLane
from engines.stt.faster_whisper import FasterWhisper
from engines.stt.whisper_decoder import FINAL, WhisperDecoder
from streaming.audio import g711
from streaming.jobs import (
    INPUT_RATE_HZ,
    FinalizeTranscription,
    FinalTranscript,
    OpenTranscription,
    PartialTranscript,
    Priority,
    Transcript,
)
from tests.models.speech import noise, resampled, say

pytestmark = [pytest.mark.models, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

SENTENCES = (
    "What are your opening hours?",
    "I would like to book a table for two people on Friday evening.",
    "Can you tell me the price of a large chocolate cake?",
    "Is there any parking near your shop?",
    "Please cancel my appointment for tomorrow morning.",
    "I need to speak to the manager about my order.",
    "How long does delivery usually take?",
    "The package arrived yesterday but it was damaged.",
    "Thank you very much, that is all I need.",
    "Could you repeat that a little more slowly, please?",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whisper() -> AsyncIterator[FasterWhisper]:
    lane = CpuLane(1)
    engine = FasterWhisper(await asyncio.to_thread(ensure, "whisper-tiny.en"), lane)
    await engine.start()
    await hear(engine, noise(0.5, 3000))  # the lane starts its threads when it first has work
    yield engine
    await engine.close()
    await lane.close()


async def hear(
    whisper: FasterWhisper, pcm: Pcm16, *, partials: bool = False, pause_s: float = 0.02
) -> tuple[str, list[str]]:
    """The final and the partials of an utterance fed in blocks of 100 ms, ``pause_s`` apart if there are partials."""
    loop = asyncio.get_running_loop()
    final = loop.create_future()
    shown: list[str] = []

    def deliver(transcript: Transcript) -> None:
        if isinstance(transcript, PartialTranscript):
            shown.append(transcript.text)
        else:
            final.set_result(transcript)

    stream = whisper.open(OpenTranscription("c", 1, 0, partials=partials), deliver)
    for start in range(0, pcm.size, INPUT_RATE_HZ // 10):
        stream.feed(pcm[start : start + INPUT_RATE_HZ // 10])
        if partials:
            await asyncio.sleep(pause_s)
    stream.finalize(FinalizeTranscription(1, 1, Priority.FINAL, loop.time()))
    result = await final
    stream.close()
    assert isinstance(result, FinalTranscript), result
    return result.text, shown


def by_phone(pcm: Pcm16) -> Pcm16:
    """Through 8 kHz mu-law and back."""
    narrow = resampled(pcm, INPUT_RATE_HZ, 8000)
    return resampled(g711.decode_mulaw(g711.encode_mulaw(narrow)), 8000, INPUT_RATE_HZ)


def padded(pcm: Pcm16) -> Pcm16:
    return np.concatenate([np.zeros(4800, np.int16), pcm, np.zeros(4800, np.int16)])


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())


def word_errors(said: str, heard: str) -> int:
    """Edit distance in words."""
    a, b = words(said), words(heard)
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        above, row = row, [i]
        for j, other in enumerate(b, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (word != other)))
    return row[-1]


@pytest.mark.parametrize("line", ["wide", "phone"])
async def test_sentences_are_heard(whisper: FasterWhisper, line: str) -> None:
    errors = 0
    for sentence in SENTENCES:
        pcm = say(sentence)
        text, _ = await hear(whisper, by_phone(pcm) if line == "phone" else pcm)
        errors += word_errors(sentence, text)
    share = errors / sum(len(words(sentence)) for sentence in SENTENCES)
    assert share <= (0.05 if line == "wide" else 0.10), share


@pytest.mark.parametrize("answer", ["Yes.", "No.", "Bye.", "Thank you.", "Okay.", "Stop.", "No thanks."])
async def test_short_answers_survive(whisper: FasterWhisper, answer: str) -> None:
    text, _ = await hear(whisper, padded(say(answer)))
    assert words(text) == words(answer)


async def test_partials_grow_towards_the_sentence(whisper: FasterWhisper) -> None:
    text, shown = await hear(whisper, say(SENTENCES[1]), partials=True, pause_s=0.1)
    assert text == SENTENCES[1]
    assert len(shown) >= 3
    assert word_errors(SENTENCES[1], shown[-1]) < word_errors(SENTENCES[1], shown[0])


async def test_base_hears_too_and_knows_other_languages() -> None:
    folder = await asyncio.to_thread(ensure, "whisper-base")
    decoder = await asyncio.to_thread(WhisperDecoder, folder, 1)
    try:
        for sentence in SENTENCES[:3]:
            heard = await asyncio.to_thread(decoder.decode, say(sentence), FINAL)
            assert words(heard.text) == words(sentence)
        assert [decoder.supports(language) for language in ("en", "de", "zh", "tlh")] == [True, True, True, False]
    finally:
        decoder.close()


async def test_a_monologue_loses_nothing_at_its_cuts(whisper: FasterWhisper) -> None:
    pause = np.zeros(INPUT_RATE_HZ // 2, np.int16)
    said = SENTENCES[:8]
    pcm = np.concatenate([part for sentence in said for part in (say(sentence), pause)])
    assert pcm.size > 20 * INPUT_RATE_HZ
    text, _ = await hear(whisper, pcm)
    assert word_errors(" ".join(said), text) <= 3


def _burst(seconds: float, seed: int) -> Pcm16:
    """A cough or a breath: noise that swells and dies away."""
    hiss = noise(seconds, 6000, seed)
    shape = np.minimum(np.linspace(0, 8, hiss.size), 1) * np.exp(-np.linspace(0, 4, hiss.size))
    swelling: Pcm16 = (hiss * shape).astype(np.int16)
    return swelling


def _tones(seconds: float, *hertz: float) -> Pcm16:
    t = np.arange(int(seconds * INPUT_RATE_HZ)) / INPUT_RATE_HZ
    wave = sum(np.sin(2 * np.pi * hz * t) * np.exp(-(t % 1.0)) for hz in hertz)
    return (np.asarray(wave) * 4000).astype(np.int16)


def _gap(seconds: float) -> Pcm16:
    return np.zeros(int(seconds * INPUT_RATE_HZ), np.int16)


WORDLESS = {
    "silence": _gap(3),
    "room": noise(4, 30),
    "hiss": noise(3, 1500),
    "long hiss": noise(10, 800),
    "cough": np.concatenate([_gap(0.3), _burst(0.3, 1), _gap(0.2), _burst(0.25, 2), _gap(0.6)]),
    "breath": np.concatenate([_gap(0.2), noise(0.8, 300), _gap(0.6)]),
    "click": np.concatenate([_gap(0.4), np.full(80, 20000, np.int16), _gap(0.8)]),
    "hold music": np.concatenate([_tones(2, 196, 247, 294), _tones(2, 131, 330, 392), _tones(4, 392, 494, 587)]),
    "hum": _tones(3, 50, 150),
    "ringing": _tones(3, 440, 480),
    "key": np.concatenate([_gap(0.2), _tones(0.3, 697, 1209), _gap(0.5)]),
}


@pytest.mark.parametrize("sound", WORDLESS)
@pytest.mark.parametrize("line", ["wide", "phone"])
async def test_no_words_are_heard_in_what_has_none(whisper: FasterWhisper, sound: str, line: str) -> None:
    pcm = WORDLESS[sound]
    text, shown = await hear(whisper, by_phone(pcm) if line == "phone" else pcm, partials=True)
    assert (text, shown) == ("", [])
