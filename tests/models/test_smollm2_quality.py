"""What SmolLM2 thinks on each of its runtimes beside what its published weights say, and with a kept prompt beside
without one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import chain

import numpy as np
import pytest

from engines.executor.thread import MlxExecutor
from engines.fetch import ensure
from engines.lane import CpuLane
from engines.llm.convert import SmolLm2Source
from engines.llm.onnx_model import KeptPrompts, onnx_language_model
from scripts.bench_answers.reference import Llama
from scripts.bench_answers.runtimes import RUNTIMES, chat_of, folder_of
from scripts.bench_answers.scores import (
    Floats,
    Passage,
    dialogues,
    divergence,
    log_probabilities,
    passage,
    read,
    score,
)
from streaming.jobs import Generate, Generation, GenerationDone, Message, Priority, Token
from tests.engines.tiny_llama import needs_mlx

pytestmark = [pytest.mark.models, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def source() -> SmolLm2Source:
    return SmolLm2Source.open(ensure("smollm2-gguf"))


@pytest.fixture(scope="module")
def passages() -> list[Passage]:
    """A third of them: seconds, where all take half a minute."""
    chat = chat_of(folder_of("smollm2-onnx"))
    return [passage(chat, one) for one in dialogues()[::3]]


@pytest.fixture(scope="module")
def reference(source: SmolLm2Source, passages: list[Passage]) -> list[Floats]:
    return read(Llama(source), passages)


def found(name: str, source: SmolLm2Source, passages: list[Passage]) -> list[Floats]:
    return read(RUNTIMES[name](folder_of(name), source), passages)


def test_int8_costs_the_answers_nothing_on_onnxruntime_and_little_on_ctranslate2(
    source: SmolLm2Source, passages: list[Passage], reference: list[Floats]
) -> None:
    scores = {
        name: score(passages, reference, found(name, source, passages))
        for name in ("smollm2-onnx", "smollm2-ctranslate2")
    }
    print(scores)
    onnx, ctranslate2 = scores.values()
    assert onnx.tokens > 200
    # A wrong rope base, epsilon or template is tenths of a nat off.
    assert abs(onnx.worse) < 0.03
    assert onnx.same_first > 0.93
    assert onnx.kl < 0.01
    assert abs(ctranslate2.worse) < 0.12
    assert ctranslate2.kl < 0.08
    assert onnx.kl < ctranslate2.kl / 3, "what presets serve is the better one"


@needs_mlx
@pytest.mark.slow
@pytest.mark.asyncio
async def test_mlx_serves_the_published_weights_as_they_are(source: SmolLm2Source) -> None:
    chat = chat_of(folder_of("smollm2-onnx"))
    shortest = min((passage(chat, one) for one in dialogues()), key=lambda one: len(one.ids))
    executor = MlxExecutor()
    await executor.start()
    rows = await executor.run(partial(found, "smollm2-mlx", source, [shortest]))
    await executor.close()
    its = score([shortest], read(Llama(source), [shortest]), rows)
    assert its.kl < 1e-5
    assert abs(its.worse) < 1e-3


class Forced:
    """Chooses what it is told to, and keeps what it was to choose from."""

    def __init__(self) -> None:
        self.seen: list[Floats] = []
        self.says: Iterator[int] = iter(())

    def __call__(self, logits: Floats, *_: object) -> int:
        self.seen.append(logits.copy())
        return next(self.says, 0)  # what warms the engine says nothing


async def said(
    messages: tuple[Message, ...], answers: list[list[int]], forced: Forced
) -> tuple[list[Floats], list[int]]:
    """Every turn of a conversation with one engine: the logits of each answer's tokens, and how many tokens of each
    prompt were computed."""
    lane = CpuLane(1)
    engine = onnx_language_model(folder_of("smollm2-onnx"), lane)
    await engine.start()
    forced.seen.clear()
    loop = asyncio.get_running_loop()
    prefilled: list[int] = []
    for turn, answer in enumerate(answers):
        ended: asyncio.Future[Generation] = loop.create_future()

        def deliver(item: Generation, ended: asyncio.Future[Generation] = ended) -> None:
            if not isinstance(item, Token):
                ended.set_result(item)

        forced.says = iter(answer)
        asked = messages[: 2 + 2 * turn]
        engine.generate(Generate("a", turn, asked, Priority.DECODE, loop.time() + 5, len(answer)), deliver)
        end = await ended
        assert isinstance(end, GenerationDone), end
        prefilled.append(end.usage.prefilled_tokens)
    await engine.close()
    await lane.close()
    return list(forced.seen), prefilled


@pytest.mark.asyncio
async def test_a_kept_prompt_thinks_what_one_read_anew_does_also_where_old_turns_have_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A conversation that outgrows the history, so that its beginning is cut."""
    turns = list(chain.from_iterable(one[1:] for one in dialogues()))[:28]
    messages = (dialogues()[0][0], *turns)
    chat = chat_of(folder_of("smollm2-onnx"))
    answers = [passage(chat, [said]).answers for said in turns[1::2]]
    forced = Forced()
    monkeypatch.setattr("engines.llm.onnx_rows.chosen", forced)
    kept, prefilled = await said(messages, answers, forced)
    monkeypatch.setattr("engines.llm.onnx_model.KeptPrompts", lambda *_: KeptPrompts(0))
    anew, whole = await said(messages, answers, forced)
    print(prefilled, whole)
    cuts = [turn for turn in range(1, len(whole)) if whole[turn] < whole[turn - 1]]
    assert cuts, "no turn has left"
    for turn in range(1, len(whole)):
        if turn not in cuts:
            # The caller's words, the template around them, and the end of the last answer.
            assert prefilled[turn] < 40 < whole[turn]
    apart = divergence(log_probabilities(np.array(anew)), log_probabilities(np.array(kept)))
    print(apart.mean(), apart.max())
    # Several tokens at once are rounded otherwise than one alone: 0.003. One key of a wrong token is 0.016, and 0.7
    # at most.
    assert len(kept) == len(anew) == sum(len(answer) for answer in answers)
    assert apart.mean() < 0.008
    assert apart.max() < 0.2
