"""Cancels, failures and threads of the mlx-lm engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engines.api import EngineError
from engines.executor.thread import ExecutorUnavailableError, MlxExecutor, WrongThreadError
from engines.llm.mlx_lm import MlxLanguageModel
from streaming.jobs import Generate, Message, Priority
from tests.engines.llm.mlx_bench import SYSTEM, Bench, Reply, bench, said, user
from tests.engines.tiny_llama import WORDS, needs_mlx

pytestmark = needs_mlx


async def test_cancel_stops_results_at_once(endless: Bench) -> None:
    epoch, reply = endless.ask([user("ma")], max_tokens=2000)
    await reply.tokens(3)
    endless.model.cancel("a", epoch)
    endless.model.cancel("a", epoch)
    endless.model.cancel("a", 999)
    endless.model.prioritize("a", 999)
    count = len(reply.results)
    await endless.answer([user("ta")], "b")
    assert len(reply.results) == count
    assert await endless.executor.run(lambda: len(endless.rows._loaded.batch)) == 0


async def test_live_calls_are_served_before_a_speculation_until_it_is_promoted(b: Bench) -> None:
    order: list[str] = []
    gate = threading.Event()
    held = asyncio.create_task(b.executor.run(lambda: gate.wait(20)))
    await asyncio.sleep(0)
    real = b.rows._prepare

    def prepare(loaded: Any, row: Any) -> None:
        order.append(row.request.call)
        real(loaded, row)

    b.rows._prepare = prepare
    asked = [
        b.ask([user("ma")], "guess", Priority.SPECULATIVE),
        b.ask([user("me")], "promoted", Priority.SPECULATIVE),
        b.ask([user("mi")], "live", Priority.PLAYOUT),
    ]
    b.model.prioritize("promoted", asked[1][0])
    gate.set()
    await held
    for _, reply in asked:
        await reply.end()
    assert order == ["promoted", "live", "guess"]


async def test_a_failing_step_fails_the_rows_of_the_batch_and_no_more(endless: Bench) -> None:
    _, first = endless.ask([user("ma")], "a", max_tokens=2000)
    _, second = endless.ask([user("me")], "b", max_tokens=2000)
    await first.tokens(2)
    await second.tokens(2)

    def break_next_step() -> None:
        def failing(*_: Any, **__: Any) -> None:
            del batch._model
            batch._model = real
            raise RuntimeError("kernel")

        batch = endless.rows._loaded.batch
        real, batch._model = batch._model, failing

    await endless.executor.run(break_next_step)
    assert [(await reply.end()).code for reply in (first, second)] == ["engine_error", "engine_error"]
    messages = [SYSTEM, user("ma")]
    assert (await endless.answer(messages)).text == await endless.alone(messages)


async def test_a_prompt_whose_beginning_rested_in_a_batch_that_failed_is_computed_anew(endless: Bench) -> None:
    """Its place in the batch is another call's by the time it is read."""
    _, other = endless.ask([user("me")], "b", max_tokens=4000)
    await other.tokens(2)
    history = [user("ma", "ta", "ba", "da")]
    history += [said((await endless.answer(history, "a", max_tokens=10)).text), user("ti")]
    stranger = [user(*WORDS[:11])]
    truths = [await endless.alone(messages, 10) for messages in (history, stranger)]
    replies = Reply(), Reply()
    endless.model._live |= {("a", 100): replies[0].deliver, ("c", 101): replies[1].deliver}

    def fail_between() -> None:
        rows = endless.rows
        rows.insert(Generate("a", 100, tuple(history), Priority.SPECULATIVE, 0.0, 10))
        row = rows._rows[rows._key("a", 100)]
        rows._begin(rows._loaded, row)
        assert row.prompt.cache.layers[0].slot is not None
        rows._fail_batch("kernel")
        rows.insert(Generate("c", 101, tuple(stranger), Priority.FIRST_AUDIO, 0.0, 10))

    await endless.executor.run(fail_between)
    assert (await other.end()).code == "engine_error"
    assert [(await reply.end()).text for reply in replies] == truths
    assert replies[0].usage.prefilled_tokens == replies[0].usage.prompt_tokens


async def test_a_prompt_of_no_tokens_is_refused(endless: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endless.rows._loaded.words, "encode", lambda messages: [])
    assert (await endless.ask([user("ma")])[1].end()).code == "engine_error"
    assert await endless.executor.run(lambda: (len(endless.executor.agenda), endless.rows.open_streams)) == (0, 0)


async def test_a_failing_preparation_fails_only_its_own_epoch(endless: Bench) -> None:
    _, running = endless.ask([user("ma")], "a", max_tokens=40)
    real = endless.rows._loaded.words.encode

    def encode(messages: Sequence[Message]) -> list[int]:
        if "bad" in messages[-1].content:
            raise ValueError("the template refuses this")
        return list(real(messages))

    endless.rows._loaded.words.encode = encode
    _, bad = endless.ask([user("bad")], "b")
    assert (await bad.end()).code == "engine_error"
    assert (await running.end()).usage.prompt_tokens == 6


@pytest.mark.parametrize("limit", [1, 2000])
async def test_text_that_cannot_be_made_fails_only_its_own_row(endless: Bench, limit: int) -> None:
    _, other = endless.ask([user("me")], "b", max_tokens=30)
    words = endless.rows._loaded.words
    real, broken = words.text, []

    def text(detokenizer: Any, token: int, *, last: bool) -> str:
        rows = [row for row in endless.rows._rows.values() if row.request.call == "a"]
        if any(row.detokenizer is detokenizer for row in rows):
            broken.append(token)
            raise KeyError("no such byte")
        return str(real(detokenizer, token, last=last))

    words.text = text
    assert (await endless.ask([user("ma")], "a", max_tokens=limit)[1].end()).code == "engine_error"
    assert (await other.end()).usage.completion_tokens == 30
    assert await endless.executor.run(lambda: endless.rows.open_streams) == 0


async def test_a_model_that_cannot_be_freed_still_ends_its_thread(checkpoint: Path) -> None:
    made = await bench(checkpoint)

    def close() -> None:
        raise RuntimeError("no stream")

    made.rows.close = close
    await made.close()
    with pytest.raises(ExecutorUnavailableError):
        made.executor.post(lambda: None)


async def test_a_failing_compaction_fails_the_batch_not_the_thread(endless: Bench) -> None:
    epoch, gone = endless.ask([user("ma")], "a", max_tokens=2000)
    _, other = endless.ask([user("me")], "b", max_tokens=2000)
    await gone.tokens(1)
    await other.tokens(1)

    def leave(uids: Any) -> None:
        raise RuntimeError("no room")

    endless.rows._loaded.batch.leave = leave
    endless.model.cancel("a", epoch)
    assert (await other.end()).code == "engine_error"
    del endless.rows._loaded.batch.leave
    assert (await endless.answer([user("ma")], "a")).usage.prefilled_tokens == 6


async def test_a_cancelled_prompt_that_cannot_be_kept_fails_the_batch_not_the_thread(endless: Bench) -> None:
    """A prompt and a row of the batch leave together."""
    epoch, gone = endless.ask([user("ma")], "a", max_tokens=4000)
    _, other = endless.ask([user("me")], "b", max_tokens=4000)
    await gone.tokens(1)
    await other.tokens(1)
    rows = endless.rows

    def own(cache: Any) -> None:
        raise RuntimeError("no room")

    def cancel_both() -> None:
        rows.insert(Generate("c", 100, (user("mo", "ma", "na"),), Priority.SPECULATIVE, 0.0, 10))
        rows._begin(rows._loaded, rows._rows[rows._key("c", 100)])
        rows._loaded.batch.own = own
        rows.cancel("c", 100)
        rows.cancel("a", epoch)

    await endless.executor.run(cancel_both)
    assert (await other.end()).code == "engine_error"
    del rows._loaded.batch.own
    assert await endless.executor.run(lambda: (len(rows._rows), len(rows._by_uid), len(rows._leaving))) == (0, 0, 0)
    messages = [SYSTEM, user("ma")]
    assert (await endless.answer(messages)).text == await endless.alone(messages)


async def test_the_library_cannot_clear_the_cache_under_a_running_row(endless: Bench) -> None:
    """mlx-lm's own generator clears after its prefill; a row of ours is decoding meanwhile."""
    epoch, reply = endless.ask([user("ma")], max_tokens=4000)
    await reply.tokens(2)
    before = endless.executor.clear_cache_served
    await endless.alone([user("ta")])
    await reply.tokens(len(reply.results) + 2)
    assert endless.executor.clear_cache_requests > 0
    assert endless.executor.clear_cache_served == before
    endless.model.cancel("a", epoch)
    await endless.executor.run(lambda: None)
    await endless.executor.run(lambda: None)
    assert endless.executor.clear_cache_served == before + 1


async def test_using_the_model_from_another_thread_raises(b: Bench) -> None:
    with pytest.raises(WrongThreadError):
        b.rows.insert(Generate("a", 1, (user("ma"),), Priority.FINAL, 0.0))
    with pytest.raises(WrongThreadError):
        b.rows.load(Path(), lambda folder: (None, None))
    with pytest.raises(WrongThreadError):
        b.rows.close()


async def test_when_the_thread_dies_every_generation_fails_and_the_process_lives(endless_checkpoint: Path) -> None:
    made = await bench(endless_checkpoint)
    _, running = made.ask([user("ma")], max_tokens=4000)
    await running.tokens(1)

    def die() -> None:
        raise SystemExit("gone")

    with pytest.raises(Exception, match="gone"):
        await made.executor.run(die)
    assert (await running.end()).code == "executor_dead"
    assert (await made.ask([user("ma")])[1].end()).code == "executor_dead"
    made.model.cancel("a", 1)
    made.model.forget("a")
    await made.close()
    await made.close()


async def test_bad_folders_fail_the_start_with_a_code(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "absent", tmp_path / "empty"):
        with pytest.raises(EngineError) as caught:
            await bench(folder)
        assert caught.value.code == "load_failed"
    made = await bench(checkpoint)
    await made.close()
    assert (await made.ask([user("ma")])[1].end()).code == "executor_closed"
    with pytest.raises(EngineError) as again:
        await made.model.start()
    assert again.value.code == "executor_closed"


async def test_two_models_live_on_one_executor(checkpoint: Path) -> None:
    executor = MlxExecutor()
    models = [MlxLanguageModel(checkpoint, executor) for _ in range(2)]
    for model in models:
        await model.start()
    benches = [Bench(model, executor) for model in models]
    messages = [SYSTEM, user("ma", "me")]
    replies = await asyncio.gather(*(made.answer(messages) for made in benches))
    assert replies[0].text == replies[1].text == await benches[0].alone(messages)
    await models[0].close()
    assert executor.healthy
    assert (await benches[1].answer(messages)).usage.prefilled_tokens == 1
    await models[1].close()
    await executor.close()


async def test_a_model_that_was_not_loaded_answers_with_a_code(b: Bench) -> None:
    second = MlxLanguageModel(Path("absent"), b.executor)
    reply = Reply()
    second.generate(Generate("a", 1, (user("ma"),), Priority.FINAL, 0.0), reply.deliver)
    assert (await reply.end()).code == "engine_error"
    second.forget("a")
    await second.close()


async def test_remembered_cuts_are_bounded(b: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.llm.mlx_contexts._MAX_REMEMBERED_CUTS", 2)
    contexts = b.rows._loaded.contexts
    long = [SYSTEM, *(message for word in WORDS[:40] for message in (user(word), said("ba " * 60)))]

    def fit() -> list[str]:
        for call, messages in (("a", long), ("b", long), ("b", long), ("c", long), ("d", [user("ma")])):
            contexts.fit(call, [*messages, user("ma")])
        return list(contexts._cuts)

    assert await b.executor.run(fit) == ["b", "c"]
