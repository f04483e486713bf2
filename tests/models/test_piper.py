"""The joe voice with real weights: read back by Whisper it must be as right with our phonemes as with espeak's.

Sentences are of the kind a phone agent says (names, numbers, addresses, times, prices), spelled out as the
normaliser leaves them.
"""

from __future__ import annotations

import asyncio
import difflib
import math
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
import pytest
import pytest_asyncio

from engines.api import Pcm16
from engines.fetch import ensure
from engines.lane import CpuLane
from engines.tts.g2p.english import EnglishPhonemes, SpokenWord
from engines.tts.g2p.letters import LetterToSound
from engines.tts.g2p.lexicon import Lexicon
from engines.tts.piper import RATE_HZ, PiperTts, spoken_pcm
from engines.tts.piper_voice import PiperVoice
from streaming.audio.resample import Resampler
from streaming.jobs import INPUT_RATE_HZ, Priority, Synthesis, SynthesisChunk, Synthesize

pytestmark = [pytest.mark.models, pytest.mark.timeout(300)]

SENTENCES = """
My name is James Robinson, and I live in Albuquerque.
This is Maria Garcia calling for Doctor Patel.
Please ask Jennifer Hernandez to call Michael Thompson back.
Kevin Rodriguez and Michelle Nguyen are in the meeting.
I would like to speak with Katherine Sullivan or Anthony Martinez.
Siobhan Kowalski lives in Worcester, Massachusetts.
The address is twelve forty five Washington Avenue, Suite three hundred.
We are at seven hundred twenty one North Lincoln Street, in Portland, Oregon.
Turn left onto Martin Luther King Boulevard, then right on Maple Drive.
It is the brick building at the corner of Fifth Avenue and Cedar Lane.
Our office is in Philadelphia, Pennsylvania, near the Delaware River.
Your appointment is on Wednesday, February twenty third, at two thirty in the afternoon.
We are open Monday through Friday, from eight a.m. to six p.m.
The technician will arrive between ten fifteen and eleven forty five.
Your total comes to forty two dollars and ninety five cents.
The monthly price is one hundred and nineteen dollars, plus tax.
My number is five five five, eight six seven, five three zero nine.
Your confirmation code is four seven two nine one six.
The account ends in three eight zero two.
It costs three thousand six hundred and fifty dollars a year.
I have read the record, and I will record your answer.
Could you spell your last name for me, please?
The PBX and the API were updated last night.
Thank you for holding, someone will be with you shortly.
I am sorry, we are closed on Thanksgiving and Christmas Day.
""".strip().splitlines()

MOST_WRONG = 0.12
"""Measured with tiny.en: 13 to 19 of 266 words (5 to 7 %), where espeak's phonemes had 14 to 22. Most are Whisper's own
(homophones, "Dr."), and the voice's noise moves it by a few words from one seed to another."""
MARGIN_WORDS = 8
SEED = 5


@dataclass(frozen=True, slots=True)
class _Reader:
    """Whisper, made to write words only, so that "forty two" is not scored against "42"."""

    model: Any
    suppressed: list[int]

    def words(self, pcm: Pcm16) -> list[Any]:
        resampler = Resampler(RATE_HZ, INPUT_RATE_HZ)
        narrow = np.concatenate((resampler.process(pcm), resampler.flush()))
        audio = narrow.astype(np.float32) / 32768
        # With the warmer tries that guard against repetition loops: at 0.0 alone, one run in four counted 94 wrong
        # words with espeak's phonemes, where every other counted under 23.
        segments, _ = self.model.transcribe(
            audio,
            language="en",
            beam_size=5,
            temperature=[0.0, 0.2, 0.4],
            suppress_tokens=self.suppressed,
            word_timestamps=True,
        )
        return [word for segment in segments for word in segment.words]


@pytest.fixture(scope="module")
def english() -> EnglishPhonemes:
    return EnglishPhonemes(Lexicon.load(ensure("misaki-en")), LetterToSound.load(ensure("g2p-en")))


@pytest.fixture(scope="module")
def voice() -> PiperVoice:
    onnxruntime.set_seed(SEED)  # for the sessions made from now on: it is the same noise each run
    return PiperVoice.load(ensure("piper-joe"))


@pytest.fixture(scope="module")
def whisper() -> _Reader:
    import ctranslate2
    import tqdm  # type: ignore[import-untyped]
    from faster_whisper import WhisperModel

    ctranslate2.set_random_seed(SEED)  # the warmer tries draw

    tqdm.tqdm.monitor_interval = 0  # its thread would outlive the test
    model = WhisperModel(str(ensure("whisper-tiny.en")), device="cpu", compute_type="int8", cpu_threads=1)
    decode = model.hf_tokenizer.decode
    tokens = range(model.hf_tokenizer.get_vocab_size())
    return _Reader(model, [-1, *(token for token in tokens if re.search(r"[0-9$%]", decode([token])))])


@pytest_asyncio.fixture(loop_scope="function")
async def tts() -> AsyncIterator[PiperTts]:
    onnxruntime.set_seed(SEED)
    lane = CpuLane(1)
    engine = PiperTts(ensure("piper-joe"), ensure("misaki-en"), ensure("g2p-en"), lane)
    await engine.start()
    yield engine
    await engine.close()
    await lane.close()


def _espeak(sentence: str) -> list[SpokenWord]:
    command = ["espeak-ng", "-q", "--ipa", "-v", "en-us"]
    words: list[SpokenWord] = []
    for clause, pause in re.findall(r"((?:[^.,?!]|\.(?=\w))+)([.,?!]?)", sentence):
        if not clause.strip():
            continue
        said = subprocess.run([*command, clause.strip()], capture_output=True, text=True, check=True).stdout
        words.append(SpokenWord(" ".join(said.split()), 0, pause))
    return words


def _plain(text: str) -> list[str]:
    return re.sub(r"[^a-z ]+", "", text.lower().replace("-", " ").replace(".", " ")).split()


_WORDS = sum(len(_plain(sentence)) for sentence in SENTENCES)


def _edits(expected: list[str], heard: list[str]) -> int:
    row = list(range(len(heard) + 1))
    for i, word in enumerate(expected, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(heard, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1]


@dataclass(frozen=True, slots=True)
class _ReadBack:
    """One sentence spoken and transcribed. ``ends_ms`` is one a word of the sentence, or empty."""

    sentence: str
    ends_ms: list[float]
    heard: list[Any]

    @property
    def wrong_words(self) -> int:
        """At most all: what a looping transcriber adds says nothing about the voice."""
        spoken = _plain(self.sentence)
        return min(len(spoken), _edits(spoken, _plain(self.text)))

    @property
    def text(self) -> str:
        return "".join(word.word for word in self.heard)


def _read_back(whisper: _Reader, voice: PiperVoice, sentence: str, words: list[SpokenWord]) -> _ReadBack:
    pcm, ends_ms = spoken_pcm(voice.speak(words, 1.0), words[-1].pause)
    return _ReadBack(sentence, ends_ms, whisper.words(pcm))


@pytest.fixture(scope="module")
def ours(english: EnglishPhonemes, voice: PiperVoice, whisper: _Reader) -> list[_ReadBack]:
    return [_read_back(whisper, voice, sentence, english.words(sentence)) for sentence in SENTENCES]


def _wrong_words(name: str, read_back: list[_ReadBack]) -> int:
    wrong = sum(one.wrong_words for one in read_back)
    print(
        f"{name}: {wrong} of {_WORDS} words wrong; worst:",
        *sorted((one.wrong_words, one.text) for one in read_back)[-3:],
    )
    return wrong


def test_read_back_it_is_right(ours: list[_ReadBack]) -> None:
    assert _wrong_words("ours", ours) / _WORDS <= MOST_WRONG


@pytest.mark.skipif(not shutil.which("espeak-ng"), reason="espeak-ng is not installed")
def test_read_back_it_is_as_right_as_espeak(ours: list[_ReadBack], voice: PiperVoice, whisper: _Reader) -> None:
    theirs = [_read_back(whisper, voice, sentence, _espeak(sentence)) for sentence in SENTENCES]
    assert _wrong_words("ours", ours) <= _wrong_words("espeak", theirs) + MARGIN_WORDS


def test_word_ends_are_within_a_word(ours: list[_ReadBack]) -> None:
    errors_ms: list[float] = []
    for one in ours:
        spoken = [" ".join(_plain(word)) for word in one.sentence.split()]
        heard = [" ".join(_plain(word.word)) for word in one.heard]
        for block in difflib.SequenceMatcher(None, spoken, heard).get_matching_blocks():
            errors_ms += [
                one.ends_ms[block.a + offset] - one.heard[block.b + offset].end * 1000 for offset in range(block.size)
            ]
    print(f"word ends: median error {np.median(np.abs(errors_ms)):.0f} ms over {len(errors_ms)} words")
    assert len(errors_ms) >= 150
    assert np.percentile(np.abs(errors_ms), 90) < 300  # a word lasts 310 ms on average


def test_the_network_sounds_out_names(english: EnglishPhonemes) -> None:
    said = {word: english.words(word)[0].ipa for word in ("Thompson", "Kowalski", "Schmidt", "Patel")}
    assert said["Thompson"] == "tˈɑːmpsən"
    assert said["Schmidt"] == "ʃmˈɪt"
    assert said["Patel"] == "pətˈɛl"
    assert said["Kowalski"].endswith("ski")


def test_every_phoneme_of_the_lexicons_is_in_the_voice(english: EnglishPhonemes, voice: PiperVoice) -> None:
    lexicon = Lexicon.load(ensure("misaki-en"))
    known = set(voice._config.ids)
    for table in lexicon._tables:
        for index in range(0, len(table), 97):
            for word in english.words(table[index]):
                assert set(word.ipa) <= known, table[index]


async def test_the_engine_speaks(tts: PiperTts) -> None:
    queue: asyncio.Queue[Synthesis] = asyncio.Queue()
    text = "Yes, we are open on Saturday from nine to five."
    tts.synthesize(Synthesize("call", 1, 0, text, "joe", Priority.FIRST_AUDIO, math.inf), queue.put_nowait)
    chunks: list[SynthesisChunk] = []
    while not chunks or not chunks[-1].last:
        answer = await asyncio.wait_for(queue.get(), 60)
        assert isinstance(answer, SynthesisChunk)
        chunks.append(answer)
    pcm = np.frombuffer(b"".join(chunk.pcm for chunk in chunks), "<i2")
    assert 2.0 < pcm.size / RATE_HZ < 5.0
    assert 8_000 < np.abs(pcm).max() < 32_767
    assert np.abs(pcm[: RATE_HZ // 25]).max() > 300  # speech begins within 40 ms
    ends = [word.audio_end_ms for chunk in chunks for word in chunk.words]
    assert len(ends) == len(text.split())
    assert ends == sorted(ends)
    assert ends[-1] <= pcm.size / RATE_HZ * 1000
