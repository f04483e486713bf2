"""Whisper tiny.en on MLX with real weights: short windows hear what is spoken, on the phone too, two calls at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

import numpy as np
import pytest
import pytest_asyncio

from engines import fetch
from engines.api import Pcm16
from engines.executor.thread import MlxExecutor
from engines.stt.convert import whisper_mlx
from engines.stt.mlx_whisper import MlxWhisper
from engines.stt.mlx_whisper_model import window_frames
from engines.stt.whisper_decoder import FINAL_PAD_FRAMES, FULL_WINDOW_FRAMES
from streaming.jobs import (
    INPUT_RATE_HZ,
    FinalizeTranscription,
    FinalTranscript,
    OpenTranscription,
    PartialTranscript,
    Priority,
    Transcript,
)
from tests.engines.stt.tiny_whisper import needs_mlx_whisper
from tests.models.speech import noise, say
from tests.models.test_whisper import SENTENCES, by_phone, padded, word_errors, words

pytestmark = [
    needs_mlx_whisper,
    pytest.mark.models,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def executor() -> AsyncIterator[MlxExecutor]:
    made = MlxExecutor()
    yield made
    await made.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whisper(executor: MlxExecutor) -> AsyncIterator[MlxWhisper]:
    source = await asyncio.to_thread(fetch.ensure, "whisper-tiny.en")
    folder = await asyncio.to_thread(fetch.derived, "whisper-tiny.en-mlx-1", lambda into: whisper_mlx(source, into))
    made = MlxWhisper(folder, executor)
    await made.start()
    yield made
    await made.close()


class Caller:
    """One utterance: what is fed and what is told of it."""

    def __init__(self, whisper: MlxWhisper, call: str, *, partials: bool = False) -> None:
        self.shown: list[str] = []
        self._more = asyncio.Event()
        self.final: asyncio.Future[Transcript] = asyncio.get_running_loop().create_future()
        self.stream = whisper.open(OpenTranscription(call, 1, 0, partials=partials), self._deliver)

    async def hear(self, pcm: Pcm16, *, pace_s: float = 0.0) -> str:
        await self.speak(pcm, pace_s=pace_s)
        return await self.end()

    async def speak(self, pcm: Pcm16, *, pace_s: float = 0.0) -> None:
        for start in range(0, pcm.size, INPUT_RATE_HZ // 10):
            self.stream.feed(pcm[start : start + INPUT_RATE_HZ // 10])
            await asyncio.sleep(pace_s)

    async def partial(self, wanted: Callable[[str], bool]) -> str:
        """One that was shown or will be, however busy the machine is; the test's own timeout bounds it."""
        while not (found := [text for text in self.shown if wanted(text)]):
            self._more.clear()
            await self._more.wait()
        return found[0]

    async def end(self) -> str:
        self.stream.finalize(FinalizeTranscription(1, 1, Priority.FINAL, asyncio.get_running_loop().time() + 0.3))
        result = await self.final
        self.stream.close()
        assert isinstance(result, FinalTranscript), result
        return result.text

    def _deliver(self, transcript: Transcript) -> None:
        if isinstance(transcript, PartialTranscript):
            assert not self.final.done(), "a partial after its final"
            self.shown.append(transcript.text)
            self._more.set()
        else:
            self.final.set_result(transcript)


@pytest.mark.parametrize("line", ["wide", "phone"])
async def test_sentences_are_heard(whisper: MlxWhisper, line: str) -> None:
    errors = 0
    for number, sentence in enumerate(SENTENCES):
        pcm = say(sentence)
        text = await Caller(whisper, f"{line} {number}").hear(by_phone(pcm) if line == "phone" else pcm)
        errors += word_errors(sentence, text)
    share = errors / sum(len(words(sentence)) for sentence in SENTENCES)
    print(f"{line}: word error rate {share:.1%}")
    assert share <= (0.05 if line == "wide" else 0.10), share


@pytest.mark.parametrize("answer", ["Yes.", "No.", "Stop.", "Thank you."])
async def test_short_answers_survive(whisper: MlxWhisper, answer: str) -> None:
    assert words(await Caller(whisper, answer).hear(padded(say(answer)))) == words(answer)


@pytest.mark.parametrize(
    "sound", [np.zeros(3 * INPUT_RATE_HZ, np.int16), noise(4, 30), noise(3, 1500)], ids=["silence", "room", "hiss"]
)
async def test_no_words_are_heard_in_what_has_none(whisper: MlxWhisper, sound: Pcm16) -> None:
    caller = Caller(whisper, "a", partials=True)
    assert (await caller.hear(sound, pace_s=0.02), caller.shown) == ("", [])


async def test_two_calls_at_once_are_heard_apart(whisper: MlxWhisper) -> None:
    callers = [(Caller(whisper, sentence), say(sentence), sentence) for sentence in SENTENCES[1:3]]
    texts = await asyncio.gather(*(caller.hear(pcm) for caller, pcm, _ in callers))
    assert texts == [sentence for _, _, sentence in callers]


async def test_partials_come_while_the_caller_speaks_and_the_final_replaces_them(whisper: MlxWhisper) -> None:
    caller = Caller(whisper, "a", partials=True)
    pcm = say(SENTENCES[1])
    await caller.speak(pcm[: pcm.size // 2])
    first = await caller.partial(bool)
    await caller.speak(pcm[pcm.size // 2 :])
    await caller.partial(lambda text: word_errors(SENTENCES[1], text) < word_errors(SENTENCES[1], first))
    assert await caller.end() == SENTENCES[1]


async def test_a_caller_who_is_gone_costs_the_other_nothing(whisper: MlxWhisper, executor: MlxExecutor) -> None:
    gone, stays = Caller(whisper, "gone"), Caller(whisper, "stays")
    task = asyncio.create_task(gone.hear(say(SENTENCES[2])))
    await asyncio.sleep(0.3)
    gone.stream.close()
    assert await stays.hear(say(SENTENCES[3])) == SENTENCES[3]
    assert not gone.final.done()
    task.cancel()
    assert whisper._clips.open_streams == 0


async def test_a_monologue_loses_nothing_at_its_cuts(whisper: MlxWhisper) -> None:
    pause = np.zeros(INPUT_RATE_HZ // 2, np.int16)
    said = SENTENCES[:8]
    pcm = np.concatenate([part for sentence in said for part in (say(sentence), pause)])
    assert word_errors(" ".join(said), await Caller(whisper, "a").hear(pcm)) <= 3


async def test_a_short_window_is_encoded_as_short_as_it_is(whisper: MlxWhisper, executor: MlxExecutor) -> None:
    pcm = say(SENTENCES[0])

    def encode(frames: int) -> tuple[int, float]:
        """Positions there are to attend to, and the seconds it took to make them."""
        assert whisper._clips._loaded is not None
        began = time.perf_counter()
        heard = whisper._clips._loaded.model.encode(pcm, frames)
        return heard[0][0].shape[2], time.perf_counter() - began

    short_frames = window_frames(pcm.size, FINAL_PAD_FRAMES, whisper._clips._limits.buckets)
    assert short_frames <= 1400
    for frames in (short_frames, FULL_WINDOW_FRAMES):
        results = [await executor.run(partial(encode, frames)) for _ in range(3)]
        assert results[0][0] == frames // 2
        print(f"window of {frames / 100:.0f} s: {min(seconds for _, seconds in results):.3f} s")
