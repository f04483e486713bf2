"""Kokoro as an engine: the real executor's thread, the library's loader, a tiny checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.api import EngineError
from engines.executor.policy import Choice
from engines.executor.thread import MlxExecutor, WrongThreadError
from engines.tts.g2p.english import SpokenWord
from engines.tts.kokoro_text import KokoroText
from engines.tts.mlx_kokoro import MlxKokoro
from engines.tts.mlx_kokoro_rows import FRAME_BUCKETS, Buckets
from streaming.jobs import SynthesisChunk
from tests.engines.tiny_llama import needs_mlx
from tests.engines.tts.spoken import Spoken, say
from tests.engines.tts.tiny_kokoro import CONFIG, patch_decoder, write_tiny_kokoro

pytestmark = [needs_mlx, pytest.mark.timeout(120)]

IDS, FRAMES = (16, 32), (48, 96, 192)


class _Spelled:
    """Each word is its own letters; a trailing mark is its pause."""

    def words(self, text: str) -> list[SpokenWord]:
        if "BROKEN" in text:
            raise ValueError("no such phonemes")
        words, at = [], 0
        for token in text.split(" "):
            at += len(token)
            pause = token[-1] if token and token[-1] in ".,!?;:" else ""
            if token.removesuffix(pause):
                words.append(SpokenWord(token.removesuffix(pause), at, pause))
            at += 1
        return words


class Bench:
    def __init__(self, tts: MlxKokoro, executor: MlxExecutor) -> None:
        self.tts = tts
        self.executor = executor
        self.rows: Any = tts._rows
        self.quanta: list[tuple[str, int]] = []
        inner = self.rows.quantum

        def quantum(choice: Choice) -> None:
            self.quanta.append((choice.kind.name, len(choice.keys)))
            inner(choice)

        self.rows.quantum = quantum  # type: ignore[method-assign]

    @property
    def net(self) -> Any:
        return self.rows._loaded.net

    async def hold(self) -> Callable[[], None]:
        """Keep the thread busy until the returned function is called."""
        import threading

        release, held = threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def wait() -> None:
            loop.call_soon_threadsafe(held.set)
            release.wait(20)

        self.executor.post(wait)
        await held.wait()
        return release.set

    async def settled(self) -> None:
        """All text is with the thread."""
        for _ in range(50):
            await asyncio.sleep(0.002)

    async def fix_source(self) -> None:
        """The source's phases jump with the rounding of its pitch: without them, rows can be compared to the bit."""

        def fix() -> None:
            import mlx.core as mx

            vocoder = self.net._decoder.vocoder
            numbers = mx.array(np.random.default_rng(3).standard_normal(1 << 16).astype(np.float32) * 0.3)
            mx.eval(numbers)
            vocoder._source = lambda pitch: mx.broadcast_to(
                numbers[None, : pitch.shape[1] * vocoder.samples_a_pitch],
                (pitch.shape[0], pitch.shape[1] * vocoder.samples_a_pitch),
            )

        await self.executor.run(fix)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def load(model_dir: Path, lexicon_dir: Path, g2p_dir: Path, max_phonemes: int) -> KokoroText:
        return KokoroText(_Spelled(), CONFIG["vocab"], max_phonemes)

    monkeypatch.setattr(KokoroText, "load", load)
    (tmp_path / "voices").mkdir()
    for voice in ("af_heart", "am_adam"):
        (tmp_path / "voices" / f"{voice}.safetensors").touch()
    patch_decoder(monkeypatch)
    return tmp_path


def make(folder: Path, executor: MlxExecutor, **options: Any) -> MlxKokoro:
    options = {"id_buckets": IDS, "frame_buckets": FRAMES, "max_batch": 4, "warm": False, **options}
    return MlxKokoro(folder, folder, folder, executor, **options)


@pytest.fixture
async def executor() -> AsyncIterator[MlxExecutor]:
    executor = MlxExecutor()
    await executor.start()
    yield executor
    await executor.close()


@pytest.fixture
async def bench(folder: Path, executor: MlxExecutor) -> AsyncIterator[Bench]:
    await executor.run(lambda: write_tiny_kokoro(folder) and None)
    tts = make(folder, executor)
    await tts.start()
    yield Bench(tts, executor)
    await tts.close()


async def test_a_segment_is_spoken_in_chunks_with_its_words(bench: Bench) -> None:
    spoken = await say(bench.tts, "hɛlO ðɛɹ, gudbaɪ.").end()
    chunks = spoken.chunks
    assert all(chunk.rate_hz == 24_000 and len(chunk.pcm) <= 2 * 4_800 for chunk in chunks)
    assert [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert np.abs(spoken.pcm).max() > 300
    assert [word.text_end for word in spoken.words] == [4, 9, 17]
    ends = [word.audio_end_ms for word in spoken.words]
    assert ends == sorted(ends)
    assert ends[0] > 0
    assert ends[-1] <= spoken.pcm.size / 24
    assert bench.quanta == [("encode", 1), ("speak", 1)]
    assert bench.tts.voices == ("af_heart", "am_adam")


async def test_alike_segments_of_all_calls_share_their_quanta_and_sound_as_they_do_alone(bench: Bench) -> None:
    await bench.fix_source()
    texts = ["hɛlO ðɛɹ.", "aɪ æm.", "ɐ lOŋ wʌn, sO lOŋ."]
    alone = [await say(bench.tts, text, voice="am_adam").end() for text in texts]
    bench.quanta.clear()
    release = await bench.hold()
    together = [say(bench.tts, text, call=f"c{at}", voice="am_adam") for at, text in enumerate(texts)]
    await bench.settled()
    release()
    for one, other in zip(alone, together, strict=True):
        await other.end()
        assert other.pcm.size == one.pcm.size
        assert np.abs(other.pcm.astype(int) - one.pcm).max() <= 2
        assert other.words == one.words
    assert sum(jobs for kind, jobs in bench.quanta if kind == "encode") == 3
    assert ("encode", 2) in bench.quanta, "the two short ones are in one bucket"


async def test_a_batch_is_no_wider_than_its_bucket_allows(bench: Bench) -> None:
    release = await bench.hold()
    spoken = [say(bench.tts, "ɐ", call=f"c{at}") for at in range(6)]
    await bench.settled()
    release()
    for one in spoken:
        await one.end()
    assert max(jobs for _, jobs in bench.quanta) == 4


async def test_a_long_text_goes_on_in_parts(bench: Bench) -> None:
    text = "wʌn tu θɹi fɔɹ, faɪv sɪks sɛvən eɪt naɪn tɛn."
    spoken = await say(bench.tts, text).end()
    assert [kind for kind, _ in bench.quanta] == ["encode", "speak", "encode", "speak"]
    assert [word.text_end for word in spoken.words] == [3, 6, 10, 15, 20, 25, 31, 35, 40, 45]
    ends = [word.audio_end_ms for word in spoken.words]
    assert ends == sorted(ends)
    assert ends[-1] <= spoken.pcm.size / 24


async def test_speed_and_voice_change_the_speech(bench: Bench) -> None:
    plain = await say(bench.tts, "hɛlO ðɛɹ.").end()
    slow = await say(bench.tts, "hɛlO ðɛɹ.", speed=0.5).end()
    odd = await say(bench.tts, "hɛlO ðɛɹ.", speed=float("nan")).end()
    other = await say(bench.tts, "hɛlO ðɛɹ.", voice="am_adam").end()
    assert slow.pcm.size > 1.4 * plain.pcm.size
    assert np.array_equal(odd.pcm, plain.pcm)
    assert not np.array_equal(other.pcm[:2000], plain.pcm[:2000])


@pytest.mark.parametrize("text", ["", "   ", "♪"])
async def test_nothing_to_say_is_silence(bench: Bench, text: str) -> None:
    spoken = await say(bench.tts, text).end()
    assert spoken.results == [SynthesisChunk(1, 0, b"", 24_000, last=True)]


async def test_nothing_comes_after_a_cancel(bench: Bench) -> None:
    release = await bench.hold()
    gone = [say(bench.tts, "hɛlO.", segment=segment) for segment in range(3)]
    kept = say(bench.tts, "hɛlO.", epoch=2)
    await bench.settled()
    bench.tts.cancel("a", 1)
    bench.tts.cancel("a", 7)
    release()
    await kept.end()
    await bench.executor.run(lambda: None)
    assert not any(one.results for one in gone)
    assert bench.quanta == [("encode", 1), ("speak", 1)]
    assert not bench.rows._rows


async def test_a_cancel_before_the_text_is_phonemes_and_one_between_two_chunks(bench: Bench) -> None:
    early = say(bench.tts, "hɛlO.")
    bench.tts.cancel("a", 1)
    late = say(bench.tts, "hɛlO ðɛɹ, gudbaɪ.", epoch=2, speed=0.5)
    late.on_result = lambda result: bench.tts.cancel("a", 2)
    await late.until(lambda: bool(late.results))
    await say(bench.tts, "ɐ", epoch=3).end()
    assert early.results == []
    assert len(late.results) == 1


async def test_what_a_model_makes_is_checked(bench: Bench) -> None:
    def spoil(value: float) -> Callable[[], None]:
        def set_bias() -> None:
            import mlx.core as mx

            out = bench.net._decoder.vocoder._out
            out.bias = mx.full(out.bias.shape, value)
            mx.eval(out.bias)

        return set_bias

    await bench.executor.run(spoil(-40.0))
    assert (await say(bench.tts, "hɛlO.").end()).code == "bad_audio"
    await bench.executor.run(spoil(float("nan")))
    assert (await say(bench.tts, "hɛlO.").end()).code == "bad_audio"
    assert not bench.rows._rows


async def test_a_failed_quantum_fails_its_segments_alone(bench: Bench) -> None:
    real = bench.net.speak

    def fail(rows: Any, bucket: int) -> Any:
        if len(rows) > 1:
            raise RuntimeError("out of memory")
        return real(rows, bucket)

    bench.net.speak = fail
    release = await bench.hold()
    pair = [say(bench.tts, "hɛlO.", call=call) for call in "ab"]
    await bench.settled()
    release()
    assert [(await one.end()).code for one in pair] == ["synthesis_failed"] * 2
    assert (await say(bench.tts, "hɛlO.").end()).chunks


async def test_requests_that_cannot_be_served_fail_with_a_code(bench: Bench) -> None:
    assert (await say(bench.tts, "ɐ", voice="nobody").end()).code == "unknown_voice"
    assert (await say(bench.tts, "ɐ", language="fr").end()).code == "unsupported_language"
    assert (await say(bench.tts, "BROKEN").end()).code == "synthesis_failed"
    first, second = say(bench.tts, "ɐ"), say(bench.tts, "ɐ")
    assert (await second.end()).code == "invalid_request"
    assert (await first.end()).chunks


async def test_too_many_segments_are_refused(folder: Path, executor: MlxExecutor) -> None:
    await executor.run(lambda: write_tiny_kokoro(folder) and None)
    tts = make(folder, executor, max_segments=1)
    assert (await say(tts, "ɐ").end()).code == "not_started"
    await tts.start()
    first, second = say(tts, "ɐ"), say(tts, "ɐ", segment=1)
    assert (await second.end()).code == "overloaded"
    assert (await first.end()).chunks
    assert (await say(tts, "ɐ").end()).chunks
    await tts.close()
    assert (await say(tts, "ɐ").end()).code == "not_started"
    await tts.close()


async def test_the_death_of_the_thread_fails_what_is_open(bench: Bench) -> None:
    release = await bench.hold()
    open_ones = [say(bench.tts, "ɐ", segment=segment) for segment in range(2)]
    await bench.settled()

    def die() -> None:
        raise SystemExit("dead")

    dying = asyncio.ensure_future(bench.executor.run(die))
    await asyncio.sleep(0)
    release()
    await asyncio.gather(dying, return_exceptions=True)
    assert {(await one.end()).code for one in open_ones} <= {"executor_dead"}
    assert (await say(bench.tts, "ɐ", epoch=2).end()).code == "executor_dead"


async def test_every_shape_was_run_before_the_first_call(folder: Path, executor: MlxExecutor) -> None:
    await executor.run(lambda: write_tiny_kokoro(folder) and None)
    tts = make(folder, executor, warm=True, max_batch=2)
    shapes: set[tuple[str, int, int]] = set()

    def record() -> None:
        from engines.tts.mlx_kokoro_net import KokoroNet

        real_encode, real_speak = KokoroNet.encode, KokoroNet.speak

        def encode(net: Any, ids: Any, styles: Any, speeds: Any, bucket: int) -> Any:
            shapes.add(("encode", len(ids), bucket))
            return real_encode(net, ids, styles, speeds, bucket)

        def speak(net: Any, rows: Any, bucket: int) -> Any:
            shapes.add(("speak", len(rows), bucket))
            return real_speak(net, rows, bucket)

        patch.setattr(KokoroNet, "encode", encode)
        patch.setattr(KokoroNet, "speak", speak)

    with pytest.MonkeyPatch.context() as patch:
        await executor.run(record)
        await tts.start()
        warmed = set(shapes)
        bench = Bench(tts, executor)
        for texts in (["ɐ"], ["hɛlO ðɛɹ, hW ɑɹ ju nW?", "ɐ"], ["wʌn", "tu", "θɹi"]):
            release = await bench.hold()
            spoken: list[Spoken] = [say(tts, text, call=f"c{at}") for at, text in enumerate(texts)]
            await bench.settled()
            release()
            for one in spoken:
                await one.end()
        assert shapes == warmed
        costs = executor.agenda.costs
        assert costs.estimate(bench.rows._speak(48), 1, 48) > 0
        await tts.close()


def test_a_bucket_takes_as_many_rows_as_fit() -> None:
    buckets = Buckets()
    shapes = list(buckets.shapes())
    assert len(shapes) == len(set(shapes)) == 37
    widest = {bucket: batch for name, batch, bucket in shapes if name == "speak"}
    assert widest == dict(zip(FRAME_BUCKETS, (8, 8, 8, 4, 2, 1), strict=True))
    assert [buckets.for_frames(count) for count in (1, 48, 49, 1536, 1537)] == [48, 48, 96, 1536, 3072]
    with pytest.raises(ValueError, match="rise"):
        Buckets(ids=(32, 16))


async def test_errors_at_the_start_say_what_is_missing(tmp_path: Path, folder: Path, executor: MlxExecutor) -> None:
    with pytest.raises(EngineError, match="no model folder"):
        await make(tmp_path / "nowhere", executor).start()
    (folder / "config.json").write_text("{}")
    with pytest.raises(EngineError) as caught:
        await make(folder, executor).start()
    assert caught.value.code == "load_failed"
    with pytest.raises(EngineError, match="no voice jf_alpha in"):
        await make(folder, executor, voices=["am_adam", "jf_alpha"]).start()
    for voice in (folder / "voices").iterdir():
        voice.unlink()
    with pytest.raises(EngineError, match="no voice for English"):
        await make(folder, executor).start()


async def test_only_the_thread_may_run_it(bench: Bench) -> None:
    with pytest.raises(WrongThreadError):
        bench.rows.quantum(Choice(bench.rows._encode(16), ()))


async def test_a_spent_budget_leaves_out_larger_batches(folder: Path, executor: MlxExecutor) -> None:
    await executor.run(lambda: write_tiny_kokoro(folder) and None)
    tts = make(folder, executor, warm=True, max_batch=2, warm_s=0.0)
    warmed: list[tuple[str, int, int]] = []
    tts._rows.warm = lambda *shape: warmed.append(shape)  # type: ignore[method-assign]
    await tts.start()
    assert sorted(warmed) == [*(("encode", 1, ids) for ids in IDS), *(("speak", 1, frames) for frames in FRAMES)]
    await tts.close()
