"""The engine's life and its promises (order, cancel, failure codes, bounds), over a voice made of numbers."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from engines.api import EngineError, TextToSpeech
from engines.lane import CpuLane
from engines.tts import piper
from engines.tts.g2p.english import SpokenWord
from engines.tts.g2p.letters import LetterToSound
from engines.tts.g2p.lexicon import Lexicon
from engines.tts.piper import PiperTts, spoken_pcm
from engines.tts.piper_voice import Speech
from engines.tts.spoken_audio import MAX_PEAK, BadAudioError
from streaming.jobs import Priority, Synthesis, SynthesisChunk, SynthesisFailed, Synthesize

_RATE = 22_050
_PAD = _RATE // 10  # silence the model puts around its speech
_WORD = _RATE // 5


class _Phonemes:
    def words(self, text: str) -> list[SpokenWord]:
        out, position = [], 0
        for word in text.split():
            position = text.index(word, position) + len(word)
            out.append(SpokenWord(word, position, "." if word.endswith(".") else ""))
        return out


class _Voice:
    """200 ms of tone a word between 100 ms of silence. ``may_speak`` holds every inference until it is set."""

    def __init__(self) -> None:
        self.rate_hz = _RATE
        self.may_speak = threading.Event()
        self.may_speak.set()
        self.began = threading.Event()
        self.level = 0.5
        self.error: Exception | None = None
        self.spoken: list[list[str]] = []
        self.speeds: list[float] = []

    def speak(self, words: Sequence[SpokenWord], speed: float) -> Speech:
        self.began.set()
        assert self.may_speak.wait(10)
        if self.error:
            raise self.error
        self.spoken.append([word.ipa for word in words])
        self.speeds.append(speed)
        tone = np.full(_WORD * len(words), self.level, np.float32)
        silence = np.zeros(_PAD, np.float32)
        ends = tuple(_PAD + _WORD * (index + 1) for index in range(len(words)))
        return Speech(np.concatenate([silence, tone, silence]), ends)


class _Piper(PiperTts):
    def __init__(self, voice: _Voice, lane: CpuLane) -> None:
        super().__init__(Path(), Path(), Path(), lane)
        self.voice = voice

    def _load(self) -> piper._Models:
        return piper._Models(_Phonemes(), self.voice)


@pytest_asyncio.fixture
async def lane() -> AsyncIterator[CpuLane]:
    lane = CpuLane(1)
    yield lane
    await lane.close()


@pytest.fixture
def voice() -> _Voice:
    return _Voice()


@pytest_asyncio.fixture
async def tts(lane: CpuLane, voice: _Voice) -> AsyncIterator[_Piper]:
    engine = _Piper(voice, lane)
    await engine.start()
    yield engine
    voice.may_speak.set()
    await engine.close()


def _request(text: str, *, epoch: int = 1, segment: int = 0, **fields: object) -> Synthesize:
    values = {"voice": "joe", "priority": Priority.FIRST_AUDIO, "deadline": math.inf, **fields}
    return Synthesize(call="call", epoch=epoch, segment=segment, text=text, **values)  # type: ignore[arg-type]


async def _all(tts: TextToSpeech, request: Synthesize) -> list[Synthesis]:
    queue: asyncio.Queue[Synthesis] = asyncio.Queue()
    tts.synthesize(request, queue.put_nowait)
    answers: list[Synthesis] = []
    while not answers or (isinstance(answers[-1], SynthesisChunk) and not answers[-1].last):
        answers.append(await asyncio.wait_for(queue.get(), 10))
    return answers


async def _code(tts: TextToSpeech, request: Synthesize) -> str:
    (answer,) = await _all(tts, request)
    assert isinstance(answer, SynthesisFailed)
    assert (answer.epoch, answer.segment) == (request.epoch, request.segment)
    return answer.code


async def test_a_segment_in_chunks_with_its_words(tts: _Piper) -> None:
    chunks = await _all(tts, _request("one two.", epoch=3, segment=7))
    assert all(isinstance(chunk, SynthesisChunk) for chunk in chunks)
    assert {(chunk.epoch, chunk.segment) for chunk in chunks} == {(3, 7)}
    sizes = [len(chunk.pcm) // 2 for chunk in chunks if isinstance(chunk, SynthesisChunk)]
    assert sizes == [4410, 4410, 4410, sum(sizes) - 3 * 4410]
    assert sum(sizes) == pytest.approx(_RATE * (0.010 + 0.4 + 0.24), abs=_RATE * 0.006)
    first = chunks[0]
    assert isinstance(first, SynthesisChunk)
    assert [word.text_end for word in first.words] == [3, 8]
    assert [word.audio_end_ms for word in first.words] == pytest.approx([210, 410], abs=6)


async def test_nothing_sayable_closes_the_segment(tts: _Piper) -> None:
    assert await _all(tts, _request("  ")) == [SynthesisChunk(1, 0, b"", _RATE, last=True)]


async def test_speed_is_kept_in_bounds(tts: _Piper, voice: _Voice) -> None:
    for speed in (1.5, 0.0, 100.0, math.nan):
        await _all(tts, _request("one", speed=speed))
    assert voice.speeds == [1.5, 0.5, 2.0, 1.0]


@pytest.mark.parametrize(
    ("fields", "code"), [({"voice": "amy"}, "unknown_voice"), ({"language": "de"}, "unsupported_language")]
)
async def test_what_it_cannot_speak_fails(tts: _Piper, fields: dict[str, object], code: str) -> None:
    assert await _code(tts, _request("one", **fields)) == code  # type: ignore[arg-type]
    assert await _all(tts, _request("one", language="en-US"))


@pytest.mark.parametrize("level", [math.nan, math.inf, 0.0])
async def test_bad_audio_fails(tts: _Piper, voice: _Voice, level: float) -> None:
    voice.level = level
    assert await _code(tts, _request("one")) == "bad_audio"


async def test_a_models_exception_is_a_failure_of_its_segment_only(tts: _Piper, voice: _Voice) -> None:
    voice.error = RuntimeError("shape mismatch")
    assert await _code(tts, _request("one")) == "synthesis_failed"
    voice.error = None
    assert len(await _all(tts, _request("one", segment=1))) == 2


async def test_before_start_and_after_close_it_fails(voice: _Voice, lane: CpuLane) -> None:
    engine = _Piper(voice, lane)
    assert await _code(engine, _request("one")) == "not_started"
    await engine.start()
    await engine.close()
    await engine.close()
    assert await _code(engine, _request("one")) == "not_started"


async def test_a_full_lane_is_overload(tts: _Piper, lane: CpuLane) -> None:
    await lane.close()
    assert await _code(tts, _request("one")) == "overloaded"


async def test_cancelled_before_it_began_is_never_spoken(tts: _Piper, voice: _Voice) -> None:
    voice.may_speak.clear()
    heard: list[Synthesis] = []
    tts.synthesize(_request("one", epoch=1), heard.append)
    await asyncio.to_thread(voice.began.wait, 10)
    tts.synthesize(_request("two", epoch=2), heard.append)
    tts.cancel("call", 2)
    voice.may_speak.set()
    await _all(tts, _request("three", epoch=3))
    assert voice.spoken == [["one"], ["three"]]
    assert {answer.epoch for answer in heard} == {1}


async def test_nothing_is_kept_of_a_finished_segment(tts: _Piper, voice: _Voice) -> None:
    await _all(tts, _request("one"))
    voice.level = math.nan
    await _all(tts, _request("two", segment=1))
    assert len(tts._segments) == 0


async def test_cancelled_in_flight_delivers_nothing(tts: _Piper, voice: _Voice) -> None:
    voice.may_speak.clear()
    heard: list[Synthesis] = []
    tts.synthesize(_request("one"), heard.append)
    await asyncio.to_thread(voice.began.wait, 10)
    tts.cancel("call", 1)
    voice.may_speak.set()
    await _all(tts, _request("two", epoch=2))
    assert heard == []


async def test_a_receiver_may_cancel_on_the_first_chunk(tts: _Piper) -> None:
    heard: list[Synthesis] = []

    def deliver(answer: Synthesis) -> None:
        heard.append(answer)
        tts.cancel("call", 1)

    tts.synthesize(_request("one two three"), deliver)
    await _all(tts, _request("four", epoch=2))
    assert len(heard) == 1


async def test_cancel_of_a_failure_to_come_delivers_nothing(tts: _Piper) -> None:
    heard: list[Synthesis] = []
    tts.synthesize(_request("one", voice="amy"), heard.append)
    tts.cancel("call", 1)
    tts.cancel("call", 1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert heard == []


async def test_a_long_text_is_several_inferences_of_one_segment(
    tts: _Piper, voice: _Voice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piper, "MAX_PHONEMES", 8)
    chunks = await _all(tts, _request("one two. three four"))
    assert voice.spoken == [["one", "two."], ["three"], ["four"]]
    assert [chunk.last for chunk in chunks if isinstance(chunk, SynthesisChunk)].count(True) == 1
    words = [word for chunk in chunks if isinstance(chunk, SynthesisChunk) for word in chunk.words]
    assert [word.text_end for word in words] == [3, 8, 14, 19]
    total_ms = sum(len(chunk.pcm) for chunk in chunks if isinstance(chunk, SynthesisChunk)) / 2 / _RATE * 1000
    ends = [word.audio_end_ms for word in words]
    assert ends == sorted(ends)
    assert ends[-1] == pytest.approx(total_ms - 40, abs=6)


async def test_cancel_between_inferences_stops_the_rest(
    tts: _Piper, voice: _Voice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piper, "MAX_PHONEMES", 3)
    heard: list[Synthesis] = []

    def deliver(answer: Synthesis) -> None:
        heard.append(answer)
        tts.cancel("call", 1)

    tts.synthesize(_request("one two six"), deliver)
    await _all(tts, _request("ten", epoch=2))
    assert len(heard) == 1
    assert ["six"] not in voice.spoken


async def test_missing_weights_are_an_engine_error(tmp_path: Path, lane: CpuLane) -> None:
    with pytest.raises(EngineError) as caught:
        await PiperTts(tmp_path, tmp_path, tmp_path, lane).start()
    assert caught.value.code == "model_load_failed"


async def test_a_damaged_voice_is_an_engine_error(
    tmp_path: Path, lane: CpuLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: dict[str, object] = {"audio": {"sample_rate": 22_050}, "phoneme_id_map": {}}
    config["inference"] = {"noise_scale": 0, "length_scale": 1, "noise_w": 0}
    (tmp_path / "voice.onnx.json").write_text(json.dumps(config))
    (tmp_path / "voice.onnx").write_bytes(bytes(10_000))
    monkeypatch.setattr(Lexicon, "load", lambda folder: None)
    monkeypatch.setattr(LetterToSound, "load", lambda folder: None)
    with pytest.raises(EngineError, match="INVALID_PROTOBUF") as caught:
        await PiperTts(tmp_path, tmp_path, tmp_path, lane).start()
    assert caught.value.code == "model_load_failed"


async def test_a_voice_of_another_rate_is_refused(voice: _Voice, lane: CpuLane) -> None:
    voice.rate_hz = 16_000
    with pytest.raises(EngineError):
        await _Piper(voice, lane).start()


def test_the_padding_is_trimmed_and_there_is_one_gain() -> None:
    quiet = np.concatenate([np.zeros(3000), np.full(5000, 0.25), np.zeros(9000)]).astype(np.float32)
    pcm, _ = spoken_pcm(Speech(quiet, ()), ",")
    assert pcm.size == pytest.approx(220 + 5000 + 3087, abs=2 * 110)
    assert np.abs(pcm).max() == round(0.25 * piper.GAIN * 32767)
    loud, _ = spoken_pcm(Speech(quiet * 4, ()), ",")
    assert np.abs(loud).max() == round(MAX_PEAK * 32767)


def test_a_tail_the_model_did_not_make_is_padded() -> None:
    samples = np.full(5000, 0.5, np.float32)
    pcm, ends = spoken_pcm(Speech(samples, (2500, 9999)), ".")
    assert pcm.size == pytest.approx(5000 + 5292, abs=110)
    assert not pcm[-5000:].any()
    assert ends == pytest.approx([2500 / 22.05, 5000 / 22.05], abs=6)


def test_an_empty_result_is_no_audio() -> None:
    with pytest.raises(BadAudioError):
        spoken_pcm(Speech(np.zeros(0, np.float32), ()), "")


def test_it_is_a_text_to_speech(lane: CpuLane, voice: _Voice) -> None:
    engine: TextToSpeech = _Piper(voice, lane)
    assert engine.rate_hz == _RATE
    assert engine.voices == ("joe",)
