"""The fake speaks exactly as scripted."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from engines.api import TextToSpeech
from engines.tts.scripted import NEVER, ScriptedTts, word_tone_hz
from streaming.audio.code_words import WORD_MS, code_word, find
from streaming.jobs import Priority, Synthesis, SynthesisChunk, SynthesisFailed, Synthesize, WordEnd
from tests.virtual_time import virtual


def _request(text: str, *, epoch: int = 1, segment: int = 0, voice: str = "tone") -> Synthesize:
    return Synthesize("call", epoch, segment, text, voice, Priority.FIRST_AUDIO, math.inf)


async def _all(tts: TextToSpeech, request: Synthesize) -> list[Synthesis]:
    queue: asyncio.Queue[Synthesis] = asyncio.Queue()
    tts.synthesize(request, queue.put_nowait)
    answers: list[Synthesis] = []
    while not answers or (isinstance(answers[-1], SynthesisChunk) and not answers[-1].last):
        answers.append(await queue.get())
    return answers


def _chunks(answers: list[Synthesis]) -> list[SynthesisChunk]:
    return [answer for answer in answers if isinstance(answer, SynthesisChunk)]


async def test_a_tone_a_word_and_exact_ends() -> None:
    answers = _chunks(await _all(ScriptedTts(), _request("Hello, big world.")))
    pcm = np.frombuffer(b"".join(answer.pcm for answer in answers), "<i2")
    assert pcm.size == 750 * 24
    assert [len(answer.pcm) for answer in answers] == [9600, 9600, 9600, 7200]
    assert [answer.last for answer in answers] == [False, False, False, True]
    assert [answer.words for answer in answers] == [
        (),
        (WordEnd(6, 250.0),),
        (WordEnd(10, 500.0),),
        (WordEnd(17, 750.0),),
    ]
    for index, word in enumerate(("hello", "big", "world")):
        spectrum = np.abs(np.fft.rfft(pcm[index * 6000 : (index + 1) * 6000]))
        assert np.argmax(spectrum) * 4 == pytest.approx(word_tone_hz(word), abs=4)


async def test_text_without_words_closes_the_segment_empty() -> None:
    assert await _all(ScriptedTts(), _request(" ")) == [SynthesisChunk(1, 0, b"", 24_000, last=True)]


@virtual
async def test_chunks_come_on_their_times() -> None:
    loop = asyncio.get_running_loop()
    asked = loop.time()
    times: list[float] = []
    tts = ScriptedTts(first_chunk_delay_s=30.0, realtime_factor=0.5)
    tts.synthesize(_request("one two three"), lambda _answer: times.append(loop.time() - asked))
    await asyncio.sleep(30.15)
    assert tts.open_segments == 1
    await asyncio.sleep(1.0)
    assert times == pytest.approx([30.0, 30.1, 30.2, 30.3])
    assert tts.open_segments == 0


@virtual
async def test_close_stops_what_is_to_come() -> None:
    tts = ScriptedTts(first_chunk_delay_s=1.0)
    heard: list[Synthesis] = []
    tts.synthesize(_request("one two three"), heard.append)
    await tts.close()
    await asyncio.sleep(5.0)
    assert heard == []
    assert tts.open_segments == 0


@virtual
async def test_cancel_stops_its_epoch_only() -> None:
    tts = ScriptedTts()
    heard: list[Synthesis] = []
    tts.synthesize(_request("one two", epoch=1), heard.append)
    tts.synthesize(_request("one two", epoch=2), heard.append)
    tts.cancel("call", 1)
    tts.cancel("call", 9)
    await asyncio.sleep(10.0)
    assert {answer.epoch for answer in heard} == {2}
    assert tts.open_segments == 0
    assert tts.cancelled == [("call", 1), ("call", 9)]


@virtual
async def test_stale_audio_can_be_scripted() -> None:
    tts = ScriptedTts(ignores_cancel=True)
    heard: list[Synthesis] = []
    tts.synthesize(_request("one two"), heard.append)
    tts.cancel("call", 1)
    await asyncio.sleep(10.0)
    assert len(heard) == 3


async def test_failures_can_be_scripted() -> None:
    tts = ScriptedTts(fail_segments={0: "bad_audio"}, failing_after_chunks=1)
    first, second = await _all(tts, _request("one two three"))
    assert isinstance(first, SynthesisChunk)
    assert isinstance(second, SynthesisFailed)
    assert second.code == "bad_audio"
    assert len(await _all(tts, _request("one", segment=1))) == 2


@virtual
async def test_silence_can_be_scripted() -> None:
    tts = ScriptedTts(fail_segments={0: NEVER})
    heard: list[Synthesis] = []
    tts.synthesize(_request("one"), heard.append)
    await asyncio.sleep(10.0)
    assert heard == []
    assert tts.open_segments == 1
    tts.cancel("call", 1)
    assert tts.open_segments == 0


async def test_unknown_voice_fails() -> None:
    (answer,) = await _all(ScriptedTts(), _request("one", voice="joe"))
    assert isinstance(answer, SynthesisFailed)
    assert answer.code == "unknown_voice"


def test_words_must_be_whole_samples() -> None:
    with pytest.raises(ValueError, match="whole number"):
        ScriptedTts(word_ms=1, rate_hz=22_050)


async def test_a_code_word_is_sung_among_tones_and_its_end_is_told() -> None:
    word = code_word(1234)
    answers = _chunks(await _all(ScriptedTts(), _request(f"I heard {word.capitalize()}. Bye.")))
    pcm = np.frombuffer(b"".join(answer.pcm for answer in answers), "<i2")
    assert pcm.size == (3 * 250 + WORD_MS) * 24
    assert [end for answer in answers for end in answer.words] == [
        WordEnd(1, 250.0),
        WordEnd(7, 500.0),
        WordEnd(21, 1_300.0),
        WordEnd(26, 1_550.0),
    ]
    (found,) = find(pcm, 24_000)
    assert found.word == word


@virtual
async def test_without_records_nothing_is_kept() -> None:
    tts = ScriptedTts(records=False)
    await _all(tts, _request("one"))
    tts.cancel("call", 1)
    assert (list(tts.requests), list(tts.cancelled)) == ([], [])
