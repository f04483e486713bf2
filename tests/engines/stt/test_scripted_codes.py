"""The ears of the null preset."""

from __future__ import annotations

import asyncio

import numpy as np

from engines.api import Pcm16
from engines.stt.scripted_codes import MAX_HEARD_S, CodeWordStt, CodeWordUtterance, understood
from streaming.audio.code_words import code_word, find, phrase_word, speak
from streaming.jobs import (
    FinalizeTranscription,
    FinalTranscript,
    OpenTranscription,
    PartialTranscript,
    Priority,
    Transcript,
)
from tests.virtual_time import virtual

RATE_HZ = 16_000
WORD, OTHER = code_word(7), code_word(2_009)


def sung(*words: str) -> Pcm16:
    pause = np.zeros(RATE_HZ // 10, np.int16)
    return np.concatenate([part for word in words for part in (speak(word, RATE_HZ), pause)])


def hum(ms: int) -> Pcm16:
    times = np.arange(ms * RATE_HZ // 1000) / RATE_HZ
    pcm: Pcm16 = np.rint(4_000 * np.sin(2 * np.pi * 200 * times)).astype(np.int16)
    return pcm


def final(revision: int = 1) -> FinalizeTranscription:
    return FinalizeTranscription(1, revision, Priority.FINAL, 0.0)


def opened(heard: list[Transcript], *, partials: bool = True, **options: float) -> CodeWordUtterance:
    return CodeWordStt(**options).open(OpenTranscription("a", 1, 0, partials=partials), heard.append)


def feed(stream: CodeWordUtterance, pcm: Pcm16) -> None:
    for at in range(0, len(pcm), RATE_HZ // 10):
        stream.feed(pcm[at : at + RATE_HZ // 10])


def says(pcm: Pcm16, voiced_ms: float) -> str:
    return understood(find(pcm, RATE_HZ), voiced_ms)


def test_what_a_sound_says() -> None:
    broken = sung(WORD)
    broken[RATE_HZ // 2 : RATE_HZ * 7 // 10] = np.random.default_rng(1).integers(-3_000, 3_000, RATE_HZ // 5)
    assert says(sung(WORD), 900.0) == f"my code word is {WORD}"
    assert says(sung(WORD, phrase_word("tell me more")), 1_700.0) == f"my code word is {WORD}, tell me more"
    assert says(sung(phrase_word("goodbye")), 900.0) == "goodbye"
    assert says(sung(WORD, OTHER), 1_700.0) == f"my code word is {WORD} {OTHER}"
    assert says(broken, 900.0) == "my code word is broken"
    assert says(hum(500), 500.0) == "mm-hm"
    assert says(hum(700), 700.0) == "hello there"
    assert says(np.zeros(RATE_HZ, np.int16), 0.0) == ""


@virtual
async def test_a_final_comes_after_its_delay_and_again_for_more_audio() -> None:
    heard: list[Transcript] = []
    stream = opened(heard, partials=False, final_delay_s=0.2)
    feed(stream, sung(WORD))
    stream.finalize(final(1))
    await asyncio.sleep(0.19)
    assert heard == []
    await asyncio.sleep(0.02)
    feed(stream, np.zeros(RATE_HZ // 2, np.int16))
    stream.finalize(final(2))
    feed(stream, sung(OTHER))
    stream.finalize(final(3))
    await asyncio.sleep(1)
    assert heard == [
        FinalTranscript(1, 1, f"my code word is {WORD}"),
        FinalTranscript(1, 2, f"my code word is {WORD}"),
        FinalTranscript(1, 3, f"my code word is {WORD} {OTHER}"),
    ]


@virtual
async def test_what_was_fed_may_be_written_over() -> None:
    heard: list[Transcript] = []
    stream = opened(heard, partials=False)
    block = sung(WORD)
    stream.feed(block)
    block[:] = 0
    stream.finalize(final())
    await asyncio.sleep(0.1)
    assert heard == [FinalTranscript(1, 1, f"my code word is {WORD}")]


@virtual
async def test_partials_come_word_by_word_once_it_is_no_murmur() -> None:
    heard: list[Transcript] = []
    stream = opened(heard)
    feed(stream, hum(500))
    await asyncio.sleep(0)
    assert heard == []
    feed(stream, hum(1_700))
    await asyncio.sleep(0)
    feed(stream, np.zeros(RATE_HZ, np.int16))
    await asyncio.sleep(0)
    texts = ["my", "my code", "my code word", "my code word is"]
    assert heard == [PartialTranscript(1, text) for text in texts]


@virtual
async def test_the_silence_that_an_utterance_begins_with_is_no_voice() -> None:
    heard: list[Transcript] = []
    stream = opened(heard, partials=False)
    stream.feed(np.concatenate([np.zeros(RATE_HZ // 2, np.int16), hum(200)]))
    feed(stream, hum(200))
    stream.finalize(final())
    await asyncio.sleep(0.1)
    assert heard == [FinalTranscript(1, 1, "mm-hm")]


@virtual
async def test_nothing_is_said_after_close() -> None:
    heard: list[Transcript] = []
    stt = CodeWordStt(final_delay_s=0.1)
    await stt.start()
    stream = stt.open(OpenTranscription("a", 1, 0), heard.append)
    feed(stream, sung(WORD))
    stream.finalize(final(1))
    stream.close()
    feed(stream, sung(WORD))
    stream.finalize(final(2))
    await asyncio.sleep(1)
    assert heard == []
    await stt.close()


@virtual
async def test_only_the_end_of_a_long_utterance_is_kept() -> None:
    heard: list[Transcript] = []
    stream = opened(heard, partials=False)
    feed(stream, sung(WORD))
    for _ in range(MAX_HEARD_S):
        feed(stream, hum(1_000))
    feed(stream, sung(OTHER))
    stream.finalize(final())
    await asyncio.sleep(0.1)
    assert heard == [FinalTranscript(1, 1, f"my code word is {OTHER}")]
