"""Streaming voices as an engine: the real executor's thread and library, tiny checkpoints of random weights."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.api import EngineError
from engines.executor.policy import Choice, Key
from engines.executor.thread import MlxExecutor, WrongThreadError
from engines.tts import mlx_stream_rows
from engines.tts.mlx_streaming import MlxStreamingTts
from streaming.jobs import SynthesisChunk
from tests.engines.tiny_llama import needs_mlx
from tests.engines.tts.spoken import Spoken, say
from tests.engines.tts.tiny_voices import patch_qwen_shapes, write_recording, write_tiny_pocket, write_tiny_qwen

pytestmark = [needs_mlx, pytest.mark.timeout(120)]

YES, DAY = "Yes, we are open.", "Saturday from nine to five."


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights never come to an end by themselves."""
    monkeypatch.setattr(mlx_stream_rows, "_LEAST_S", 1.0)
    monkeypatch.setattr(mlx_stream_rows, "_LEAST_S_A_LETTER", 0.0)


class Bench:
    def __init__(self, tts: MlxStreamingTts, executor: MlxExecutor) -> None:
        self.tts = tts
        self.executor = executor
        self.rows: Any = tts._rows
        self.quanta: list[tuple[str, str, int]] = []
        inner = self.rows.quantum

        def quantum(choice: Choice) -> None:
            self.quanta.append((choice.kind.name, choice.keys[0].call, choice.keys[0].part))
            inner(choice)

        self.rows.quantum = quantum  # type: ignore[method-assign]

    async def free(self) -> int:
        return await self.executor.run(lambda: len(self.rows._free))

    async def hold(self) -> Callable[[], None]:
        """Keep the thread busy until the returned function is called."""
        release, held = threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def wait() -> None:
            loop.call_soon_threadsafe(held.set)
            release.wait(20)

        self.executor.post(wait)
        await held.wait()
        return release.set


@pytest.fixture
async def executor() -> AsyncIterator[MlxExecutor]:
    executor = MlxExecutor()
    await executor.start()
    yield executor
    await executor.close()


async def pocket(folder: Path, executor: MlxExecutor, **options: Any) -> MlxStreamingTts:
    await executor.run(lambda: write_tiny_pocket(folder) and None)
    voices = {"bob": {"ref_audio": str(write_recording(folder / "bob.wav"))}}
    return MlxStreamingTts(folder, executor, **{"voices": voices, "temperature": 0.0, "warm": False, **options})


async def qwen(folder: Path, executor: MlxExecutor, **options: Any) -> MlxStreamingTts:
    await executor.run(lambda: write_tiny_qwen(folder) and None)
    return MlxStreamingTts(folder, executor, **{"temperature": 0.0, "warm": False, **options})


@pytest.fixture(params=["pocket", "qwen"])
async def bench(
    request: pytest.FixtureRequest, tmp_path: Path, executor: MlxExecutor, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    if request.param == "qwen":
        patch_qwen_shapes(monkeypatch)
        tts = await qwen(tmp_path, executor)
    else:
        tts = await pocket(tmp_path, executor)
    await tts.start()
    yield Bench(tts, executor)
    await tts.close()


@pytest.fixture
async def pocket_bench(tmp_path: Path, executor: MlxExecutor) -> AsyncIterator[Bench]:
    tts = await pocket(tmp_path, executor)
    await tts.start()
    yield Bench(tts, executor)
    await tts.close()


def same(one: Spoken, other: Spoken) -> bool:
    return np.array_equal(one.pcm, other.pcm)


async def test_a_segment_streams_in_small_chunks(bench: Bench) -> None:
    spoken = say(bench.tts, YES)
    await spoken.until(lambda: bool(spoken.results))
    assert not spoken.ended, "the first chunk came before the whole"
    chunks = (await spoken.end()).chunks
    assert all(chunk.rate_hz == 24_000 and len(chunk.pcm) <= 2 * 4_800 for chunk in chunks)
    assert [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert np.abs(spoken.pcm).max() > 300
    assert [kind for kind, _, _ in bench.quanta] == ["start"] + ["chunk"] * (len(bench.quanta) - 1)
    assert len(bench.quanta) >= 6
    assert await bench.free() == 2


async def test_it_is_what_the_library_makes(pocket_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlx_stream_rows, "_LEAST_S", 9.0)

    def generate() -> Any:
        import mlx.core as mx

        from engines.tts.reference_voice import read_references

        model = pocket_bench.rows._free[0].model
        [reference] = read_references(pocket_bench.tts._cloned, 24_000)
        results = model.generate("Yes.", ref_audio=mx.array(reference.samples), stream=True, streaming_interval=0.5)
        return np.concatenate([np.array(result.audio) for result in results])

    expected = await pocket_bench.executor.run(generate)
    spoken = await say(pocket_bench.tts, "Yes.").end()
    skipped = expected.size - spoken.pcm.size
    assert 0 <= skipped < 2_400, "only silence at the start may go"
    assert np.abs(spoken.pcm - np.clip(expected[skipped:], -1, 1) * 32767).max() <= 1


async def test_streams_side_by_side_sound_as_they_do_alone(bench: Bench) -> None:
    alone = [await say(bench.tts, text).end() for text in (YES, DAY)]
    bench.quanta.clear()
    release = await bench.hold()
    together = [say(bench.tts, text, call=call) for text, call in ((YES, "a"), (DAY, "b"), (YES, "c"))]
    release()
    for spoken in together:
        await spoken.end()
    assert same(together[0], alone[0])
    assert same(together[1], alone[1])
    assert same(together[2], alone[0])
    order = [call for _, call, _ in bench.quanta]
    assert order.index("b") < len(order) - 1 - order[::-1].index("a"), "the two took turns"
    assert order.index("c") > min(len(order) - 1 - order[::-1].index(call) for call in "ab"), "c waited for an instance"
    assert await bench.free() == 2


async def test_a_cancel_frees_the_instance_at_once_and_leaves_no_trace(bench: Bench) -> None:
    fresh = await say(bench.tts, YES).end()
    cut = [say(bench.tts, DAY, call=call) for call in "xy"]
    for spoken in cut:
        await spoken.until(lambda spoken=spoken: bool(spoken.results))  # type: ignore[misc]
    counts = []
    for spoken, call in zip(cut, "xy", strict=True):
        bench.tts.cancel(call, 1)
        counts.append(len(spoken.results))
    held = await bench.executor.run(lambda: dict(bench.executor.agenda.held()))
    assert held == {f"{bench.rows.name}-instances": 0}
    assert await bench.free() == 2
    again = [say(bench.tts, YES, call=call, epoch=2) for call in "ab"]
    for spoken in again:
        assert same(await spoken.end(), fresh)
    assert [len(spoken.results) for spoken in cut] == counts, "nothing came after the cancel"


async def test_a_receiver_may_cancel_on_what_it_got(bench: Bench) -> None:
    spoken = say(bench.tts, YES)
    spoken.on_result = lambda result: bench.tts.cancel("a", 1)
    await spoken.until(lambda: bool(spoken.results))
    await say(bench.tts, DAY, epoch=2).end()
    assert len(spoken.results) == 1


async def test_the_cache_is_not_cleared_under_an_open_stream(pocket_bench: Bench) -> None:
    executor = pocket_bench.executor

    def ask() -> None:
        import mlx.core as mx

        mx.clear_cache()

    spoken = say(pocket_bench.tts, YES)
    await spoken.until(lambda: bool(spoken.results))
    served = executor.clear_cache_served
    await executor.run(ask)
    assert await executor.run(lambda: (pocket_bench.rows.open_streams, executor.clear_cache_served)) == (1, served)
    await spoken.end()
    await executor.run(lambda: None)
    assert executor.clear_cache_served == served + 1
    assert pocket_bench.rows.open_streams == 0


async def test_all_instances_have_one_copy_of_the_weights(bench: Bench) -> None:
    def sizes() -> tuple[int, int]:
        from engines.tts.mlx_speakers import shared_bytes

        return shared_bytes([speaker.model for speaker in bench.rows._free])

    weights, more = await bench.executor.run(sizes)
    assert weights > 100_000
    assert more == 0


async def test_a_bad_stream_fails_its_segment_and_the_instance_goes_on(pocket_bench: Bench) -> None:
    fresh = await say(pocket_bench.tts, YES).end()

    def spoil(pieces: Callable[[], Any]) -> Callable[[], None]:
        def replace() -> None:
            for speaker in pocket_bench.rows._free:
                speaker.stream = lambda *arguments: pieces()

        return replace

    def heal() -> None:
        for speaker in pocket_bench.rows._free:
            del speaker.stream

    def broken() -> Any:
        yield np.ones(2000, np.float32) * 0.5
        raise RuntimeError("out of memory")

    for pieces, code in (
        (lambda: iter([np.full(2000, np.nan, np.float32)]), "bad_audio"),
        (lambda: iter([np.zeros(2000, np.float32)]), "bad_audio"),
        (lambda: iter([]), "bad_audio"),
        (broken, "synthesis_failed"),
    ):
        await pocket_bench.executor.run(spoil(pieces))
        assert (await say(pocket_bench.tts, YES).end()).code == code
        assert await pocket_bench.free() == 2
        await pocket_bench.executor.run(heal)
    assert same(await say(pocket_bench.tts, YES).end(), fresh)


async def test_hesitation_is_skipped_and_babble_cut(pocket_bench: Bench) -> None:
    def endless() -> Any:
        yield np.zeros(4800, np.float32)
        yield np.concatenate((np.zeros(4000, np.float32), np.full(800, 0.5, np.float32)))
        while True:
            yield np.full(4800, 0.5, np.float32)

    def replace() -> None:
        for speaker in pocket_bench.rows._free:
            speaker.stream = lambda *arguments: endless()

    await pocket_bench.executor.run(replace)
    spoken = await say(pocket_bench.tts, YES).end()
    assert spoken.pcm.size == 240 + 800 + 3 * 4800
    assert np.abs(spoken.pcm[:240]).max() == 0
    assert spoken.pcm[240] == round(0.5 * 32767)


async def test_what_cannot_be_served_fails_with_a_code(bench: Bench) -> None:
    assert (await say(bench.tts, YES, voice="nobody").end()).code == "unknown_voice"
    assert (await say(bench.tts, YES, language="xx").end()).code == "unsupported_language"
    silence = await say(bench.tts, " … ").end()
    assert silence.results == [SynthesisChunk(1, 0, b"", 24_000, last=True)]
    first, second = say(bench.tts, YES, language="en-GB"), say(bench.tts, YES)
    assert (await second.end()).code == "invalid_request"
    assert (await first.end()).chunks


async def test_its_life(tmp_path: Path, executor: MlxExecutor) -> None:
    tts = await pocket(tmp_path, executor, warm=True, max_segments=1, instances=1)
    assert tts.voices == ("bob",)
    assert (await say(tts, YES).end()).code == "not_started"
    await tts.start()
    costs = executor.agenda.costs
    rows: Any = tts._rows
    assert min(costs.estimate(rows._start), costs.estimate(rows._chunk)) > 0
    first, second = say(tts, YES), say(tts, YES, segment=1)
    assert (await second.end()).code == "overloaded"
    assert (await first.end()).chunks
    await tts.close()
    await tts.close()
    assert (await say(tts, YES).end()).code == "not_started"


async def test_the_death_of_the_thread_fails_what_is_open(pocket_bench: Bench) -> None:
    spoken = say(pocket_bench.tts, YES)
    await spoken.until(lambda: bool(spoken.results))

    def die() -> None:
        raise SystemExit("dead")

    release = await pocket_bench.hold()
    waiting = say(pocket_bench.tts, YES, segment=1)
    dying = asyncio.ensure_future(pocket_bench.executor.run(die))
    await asyncio.sleep(0)
    release()
    await asyncio.gather(dying, return_exceptions=True)
    await waiting.until(lambda: waiting.ended)
    assert waiting.code == "executor_dead"
    assert (await say(pocket_bench.tts, YES, epoch=2).end()).code == "executor_dead"


async def test_errors_at_the_start_say_what_is_wrong(tmp_path: Path, executor: MlxExecutor) -> None:
    with pytest.raises(EngineError, match="no model folder"):
        await MlxStreamingTts(tmp_path / "nowhere", executor).start()
    with pytest.raises(EngineError, match="no voice of its own"):
        await (await pocket(tmp_path, executor, voices={})).start()
    with pytest.raises(EngineError) as caught:
        await (await pocket(tmp_path, executor, voices={"eve": {"ref_audio": str(tmp_path / "eve.wav")}})).start()
    assert caught.value.code == "bad_voice"
    assert "eve.wav" in str(caught.value)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    broken = MlxStreamingTts(tmp_path, executor, voices={"bob": {"ref_audio": str(tmp_path / "bob.wav")}})
    with pytest.raises(EngineError) as caught:
        await broken.start()
    assert caught.value.code == "load_failed"
    with pytest.raises(ValueError, match="instances"):
        MlxStreamingTts(tmp_path, executor, instances=0)


async def test_only_a_model_that_clones_takes_recordings(tmp_path: Path, executor: MlxExecutor) -> None:
    voices = {"bob": {"ref_audio": str(write_recording(tmp_path / "bob.wav"))}}
    with pytest.raises(EngineError, match="can't clone"):
        await (await qwen(tmp_path, executor, voices=voices)).start()


async def test_only_the_thread_may_run_it(pocket_bench: Bench) -> None:
    with pytest.raises(WrongThreadError):
        pocket_bench.rows.quantum(Choice(pocket_bench.rows._start, (Key("", "", 0),)))
