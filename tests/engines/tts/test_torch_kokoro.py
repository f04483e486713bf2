"""The engine's life and its promises over a voice made of numbers: PyTorch is not needed."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engines.api import EngineError
from engines.lane import CpuLane
from engines.tts.g2p.english import SpokenWord
from engines.tts.kokoro_text import KokoroInput, KokoroText
from engines.tts.torch_kokoro import TorchKokoro, _Models
from streaming.jobs import SynthesisChunk
from tests.engines.tts.spoken import say

RATE = 24_000
FRAME = 600
VOCAB = {letter: index for index, letter in enumerate(" .abcdefghijklmnopqrstuvwxyz", start=1)}


class Phonemes:
    """A word is its letters."""

    def words(self, text: str) -> list[SpokenWord]:
        out, position = [], 0
        for word in text.split():
            position = text.index(word, position) + len(word)
            out.append(SpokenWord(word.strip("."), position, "." if word.endswith(".") else ""))
        return out


class Voice:
    """Four frames (100 ms) of tone a letter, silence for the rest. ``may_speak`` holds every inference."""

    frame_samples = FRAME

    def __init__(self) -> None:
        self.may_speak = threading.Event()
        self.may_speak.set()
        self.began = threading.Event()
        self.level = 0.5
        self.error: Exception | None = None
        self.spoken: list[tuple[int, str, float]] = []

    def speak(self, said: KokoroInput, voice: str, speed: float) -> tuple[npt.NDArray[np.float32], list[int]]:
        self.began.set()
        assert self.may_speak.wait(10)
        if self.error is not None:
            raise self.error
        self.spoken.append((len(said.ids), voice, speed))
        letters = [token > 2 for token in said.ids]
        frames = [4 if letter else 2 for letter in letters]
        loud = np.repeat(np.repeat(letters, frames), FRAME)
        return np.where(loud, self.level, 0.0).astype(np.float32), frames


class Engine(TorchKokoro):
    def __init__(self, lane: CpuLane, voice: Voice, **options: Any) -> None:
        super().__init__(Path(), Path(), Path(), lane, **{"voices": ("af_heart", "am_adam"), **options})
        self.voice = voice

    def _load(self) -> _Models:
        return _Models(KokoroText(Phonemes(), VOCAB, self._max_phonemes), self.voice)


@pytest.fixture
async def lane() -> AsyncIterator[CpuLane]:
    lane = CpuLane(1)
    yield lane
    await lane.close()


@pytest.fixture
def voice() -> Voice:
    return Voice()


@pytest.fixture
async def tts(lane: CpuLane, voice: Voice) -> AsyncIterator[Engine]:
    engine = Engine(lane, voice)
    await engine.start()
    yield engine
    voice.may_speak.set()
    await engine.close()


async def test_a_segment_in_chunks_with_the_models_own_word_times(tts: Engine, voice: Voice) -> None:
    spoken = await say(tts, "one two.", epoch=3, segment=7, voice="am_adam", speed=1.5).end()
    assert {(chunk.epoch, chunk.segment, chunk.rate_hz) for chunk in spoken.chunks} == {(3, 7, RATE)}
    sizes = [len(chunk.pcm) // 2 for chunk in spoken.chunks]
    assert sizes[:-1] == [4800] * (len(sizes) - 1)
    assert sizes[-1] <= 4800
    # 10 ms lead, three letters, a space of two frames, three letters, a full stop's tail
    assert sum(sizes) == RATE * (10 + 300 + 50 + 300 + 240) // 1000
    assert [(word.text_end, round(word.audio_end_ms)) for word in spoken.words] == [(3, 310), (8, 660)]
    assert [chunk.last for chunk in spoken.chunks] == [False] * (len(sizes) - 1) + [True]
    assert voice.spoken == [(len("one two.") + 2, "am_adam", 1.5)]


async def test_long_text_is_several_inferences_whose_words_go_on(lane: CpuLane, voice: Voice) -> None:
    engine = Engine(lane, voice, max_phonemes=12)
    await engine.start()
    spoken = await say(engine, "abcdefgh. abcdefgh. abcdefgh. abcdefgh.").end()
    assert len(voice.spoken) == 4
    ends = [word.audio_end_ms for word in spoken.words]
    assert [word.text_end for word in spoken.words] == [9, 19, 29, 39]
    assert np.diff(ends) == pytest.approx([1050] * 3)
    assert spoken.pcm.size == RATE * 4 * 1050 // 1000
    await engine.close()


async def test_nothing_sayable_closes_the_segment(tts: Engine, voice: Voice) -> None:
    spoken = await say(tts, " ... ").end()
    assert spoken.results == [SynthesisChunk(1, 0, b"", RATE, last=True)]
    assert not voice.spoken


async def test_speed_is_kept_in_bounds(tts: Engine, voice: Voice) -> None:
    for speed in (0.0, 100.0, math.nan):
        await say(tts, "one", speed=speed).end()
    assert [speed for _, _, speed in voice.spoken] == [0.5, 2.0, 1.0]


@pytest.mark.parametrize("level", [math.nan, math.inf, 0.0])
async def test_bad_audio_fails(tts: Engine, voice: Voice, level: float) -> None:
    voice.level = level
    assert (await say(tts, "one").end()).code == "bad_audio"


async def test_failures_have_codes_and_the_next_segment_is_spoken(tts: Engine, voice: Voice) -> None:
    assert (await say(tts, "one", voice="nobody").end()).code == "unknown_voice"
    assert (await say(tts, "one", language="de").end()).code == "unsupported_language"
    voice.error = RuntimeError("out of memory")
    assert (await say(tts, "one").end()).code == "synthesis_failed"
    voice.error = None
    assert (await say(tts, "one", language="en-GB").end()).pcm.any()


async def test_a_cancelled_epoch_says_no_more_and_what_waits_is_never_spoken(tts: Engine, voice: Voice) -> None:
    voice.may_speak.clear()
    speaking = say(tts, "one", epoch=1)
    waiting = say(tts, "two", epoch=1, segment=1)
    other = say(tts, "three", epoch=2)
    await asyncio.to_thread(voice.began.wait, 10)
    tts.cancel("a", 1)
    tts.cancel("a", 9)
    voice.may_speak.set()
    await other.end()
    assert not speaking.results
    assert not waiting.results
    assert [length for length, _, _ in voice.spoken] == [5, 7]


async def test_a_receiver_may_cancel_on_what_it_just_got(tts: Engine) -> None:
    spoken = say(tts, "abcdefgh abcdefgh")
    spoken.on_result = lambda _: tts.cancel("a", 1)
    await spoken.until(lambda: bool(spoken.results))
    await say(tts, "one", epoch=2).end()
    assert len(spoken.results) == 1


async def test_a_closed_lane_is_overload(tts: Engine, lane: CpuLane) -> None:
    await lane.close()
    assert (await say(tts, "one").end()).code == "overloaded"


async def test_before_the_start_and_after_the_end(lane: CpuLane, voice: Voice) -> None:
    engine = Engine(lane, voice)
    assert (await say(engine, "one").end()).code == "not_started"
    await engine.start()
    await engine.close()
    await engine.close()
    assert (await say(engine, "one").end()).code == "not_started"


async def test_a_folder_without_a_voice_does_not_start(lane: CpuLane, tmp_path: Path) -> None:
    empty = TorchKokoro(tmp_path, tmp_path, tmp_path, lane)
    with pytest.raises(EngineError) as caught:
        await empty.start()
    assert caught.value.code == "model_load_failed"
    (tmp_path / "voices").mkdir()
    for name in ("am_adam.pt", "af_heart.safetensors", "af_heart.pt", "xx_unknown.pt"):
        (tmp_path / "voices" / name).touch()
    engine = TorchKokoro(tmp_path, tmp_path, tmp_path, lane)
    assert engine.voices == ("af_heart", "am_adam")
    with pytest.raises(EngineError) as caught:
        await engine.start()
    assert caught.value.code == "model_load_failed"


@pytest.mark.parametrize("options", [{"device": "tpu"}, {"threads": 0}, {"max_phonemes": 511}])
def test_options_that_cannot_be_meant_are_refused(options: Any) -> None:
    with pytest.raises(EngineError) as caught:
        TorchKokoro(Path(), Path(), Path(), None, **options)  # type: ignore[arg-type]
    assert caught.value.code == "bad_options"
