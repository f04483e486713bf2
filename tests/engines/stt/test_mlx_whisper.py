"""Whisper on MLX with tiny random weights: the real library on the real thread. Every text is compared with what one
clip alone, on mlx-whisper's own forward passes or on ours, makes of the same audio."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from engines.api import EngineError, Pcm16
from engines.executor.policy import Choice
from engines.executor.thread import MlxExecutor, WrongThreadError
from engines.executor.workload import EVICTED
from engines.stt import mlx_whisper_clips
from engines.stt.convert import whisper_mlx
from engines.stt.mlx_whisper import MlxWhisper
from engines.stt.mlx_whisper_batch import DecodeBatch, Row
from engines.stt.mlx_whisper_clips import Allowance
from engines.stt.mlx_whisper_model import WhisperModel, window_frames
from engines.stt.whisper_decoder import DecodeOptions
from streaming.jobs import (
    FinalizeTranscription,
    FinalTranscript,
    OpenTranscription,
    PartialTranscript,
    Priority,
    Transcript,
    TranscriptionFailed,
)
from tests.engines.stt.tiny_whisper import MULTILINGUAL_TOKENS, needs_mlx_whisper, tiny_variables, write_tiny_whisper

pytestmark = needs_mlx_whisper

T = TypeVar("T")
SECOND = 16_000
WINDOWS_S = (2, 4, 12)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, out = (tmp_path_factory.mktemp(name) for name in ("ct2", "mlx"))
    whisper_mlx(write_tiny_whisper(source), out)
    return out


@pytest.fixture(scope="session")
def multilingual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, out = (tmp_path_factory.mktemp(name) for name in ("ct2", "mlx"))
    whisper_mlx(write_tiny_whisper(source, tiny_variables(MULTILINGUAL_TOKENS)), out)
    return out


@pytest.fixture(autouse=True)
def _a_shorter_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random words loop often, and the full window is the one that costs."""
    monkeypatch.setattr(mlx_whisper_clips, "RETRY", DecodeOptions(300, 1.1))


@pytest.fixture
async def executor() -> AsyncIterator[MlxExecutor]:
    made = MlxExecutor()
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def whisper(executor: MlxExecutor, checkpoint: Path) -> AsyncIterator[MlxWhisper]:
    made = MlxWhisper(checkpoint, executor, windows_s=WINDOWS_S, tokens_per_quantum=4)
    await made.start()
    yield made
    await made.close()


def audio(seconds: float, seed: int = 0) -> Pcm16:
    """Something a random network can tell from other such somethings: tones that change every 100 ms."""
    chance = np.random.default_rng(seed)
    count = int(seconds * SECOND)
    hertz = np.exp(chance.uniform(np.log(80), np.log(7000), (3, count // 1600 + 1))).repeat(1600, axis=1)[:, :count]
    waves = np.sin(2 * np.pi * hertz.cumsum(axis=1) / SECOND).sum(axis=0)
    return np.asarray(waves * 5000, np.int16)


async def alone(executor: MlxExecutor, checkpoint: Path, use: Callable[[WhisperModel], T]) -> T:
    """``use(model)`` on the executor's thread."""
    return await executor.run(lambda: use(WhisperModel(checkpoint)))


def decode(model: WhisperModel, row: Row) -> Row:
    batch = DecodeBatch(model)
    batch.join([row])
    while not row.ended:
        batch.step()
    return row


def fresh(model: WhisperModel, seed: int, frames: int, penalty: float = 1.0) -> Row:
    return Row(model.encode(audio(1.5, seed), frames), model.prompt("en"), 12 + seed % 7, penalty)


class Heard:
    """What one utterance delivered."""

    def __init__(self) -> None:
        self.got: list[Transcript] = []
        self.changed = asyncio.Event()

    def deliver(self, transcript: Transcript) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.got.append(transcript)
        self.changed.set()

    async def until(self, kind: type[Transcript], count: int = 1) -> Any:
        while len(found := [each for each in self.got if isinstance(each, kind)]) < count:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 20)
        return found[count - 1]


def final(revision: int = 1, utterance: int = 1) -> FinalizeTranscription:
    return FinalizeTranscription(utterance, revision, Priority.FINAL, 0.0)


async def text_of(whisper: MlxWhisper, pcm: Pcm16, call: str = "a") -> str:
    heard = Heard()
    stream = whisper.open(OpenTranscription(call, 1, 0, partials=False), heard.deliver)
    stream.feed(pcm)
    stream.finalize(final())
    result: FinalTranscript = await heard.until(FinalTranscript)
    stream.close()
    return result.text


# --- the model and the batch ----------------------------------------------------------------------------------


async def test_the_full_window_is_what_mlx_whisper_computes(executor: MlxExecutor, checkpoint: Path) -> None:
    def compare(model: WhisperModel) -> tuple[float, list[int], list[int]]:
        import mlx.core as mx
        from mlx_whisper.audio import log_mel_spectrogram

        pcm = audio(3)
        mel = log_mel_spectrogram(pcm.astype(np.float32) / 32768, 80, padding=27 * SECOND)[:3000]
        heard = model._encoder(mx.where(mx.arange(3000)[:, None] < 300, mel, 0.0)[None])
        keys = model._decoder.blocks[1].cross_attn.key(heard)
        ours = model.encode(pcm, 3000)
        off = float(mx.abs(model._split(keys) - ours[1][0]).max() / mx.abs(keys).max())
        row = decode(model, Row(ours, model.prompt("en"), 16))
        tokens = model.prompt("en")
        vocabulary = model.vocabulary
        for step in range(16):
            logits = np.array(model._decoder(mx.array([tokens]), heard)[0][0, -1])
            scores = logits + (vocabulary.suppressed if step else vocabulary.suppressed_first)
            tokens.append(int(scores.argmax()))
            if tokens[-1] == vocabulary.end:
                break
        return off, row.tokens, [token for token in tokens[len(row.prompt) :] if token != vocabulary.end]

    off, ours, theirs = await alone(executor, checkpoint, compare)
    assert off < 1e-4
    assert ours == theirs
    assert len(set(ours)) > 3, "the words depend on nothing, so this proves nothing"


async def test_a_short_window_hears_the_audio_and_not_only_its_length(executor: MlxExecutor, checkpoint: Path) -> None:
    def hear(model: WhisperModel) -> list[tuple[int, ...]]:
        return [tuple(decode(model, fresh(model, seed, 400)).tokens[:8]) for seed in (0, 7, 14)]

    assert len(set(await alone(executor, checkpoint, hear))) == 3


@pytest.mark.parametrize("seed", range(4))
async def test_rows_that_join_and_leave_say_what_each_says_alone(
    executor: MlxExecutor, checkpoint: Path, seed: int
) -> None:
    def mix(model: WhisperModel) -> list[tuple[list[int], list[int], float, float]]:
        chance = random.Random(seed)
        batch = DecodeBatch(model)
        waiting: list[tuple[Row, tuple[int, int, float]]] = []
        running, done = list(waiting), list(waiting)
        for index in range(8):
            args = (index * 5 + seed, chance.choice((200, 400, 1200)), chance.choice((1.0, 1.3)))
            waiting.append((fresh(model, *args), args))
        while waiting or running:
            joining = [waiting.pop() for _ in range(min(len(waiting), chance.randrange(4)))]
            batch.join([row for row, _ in joining])
            running += joining
            for _ in range(chance.randrange(5) if running else 0):
                batch.step()
            out = [each for each in running if each[0].ended or chance.random() < 0.1]
            batch.leave([row for row, _ in out])
            running = [each for each in running if each not in out]
            done += out
            assert len(batch) == len(running)
        result = []
        for row, args in done:
            solo = decode(model, fresh(model, *args))
            if row.ended:
                assert row.tokens == solo.tokens
            result.append((row.tokens, solo.tokens[: len(row.tokens)], row.no_speech, solo.no_speech))
        return result

    for tokens, expected, no_speech, expected_no_speech in await alone(executor, checkpoint, mix):
        assert tokens == expected
        assert no_speech == pytest.approx(expected_no_speech, rel=1e-3)


async def test_the_penalty_keeps_a_row_from_repeating_itself(executor: MlxExecutor, checkpoint: Path) -> None:
    def count(model: WhisperModel) -> list[int]:
        rows = [decode(model, Row(model.encode(audio(2, 3), 400), model.prompt("en"), 40, p)) for p in (1.0, 3.0)]
        return [len(set(row.tokens)) * 100 // len(row.tokens) for row in rows]

    plain, penalized = await alone(executor, checkpoint, count)
    assert penalized > plain


def test_windows_are_the_smallest_bucket_that_holds_speech_and_padding() -> None:
    buckets = (400, 1200, 3000)
    assert [window_frames(seconds * SECOND, 200, buckets) for seconds in (1, 2, 3, 10, 11, 40)] == [
        400,
        400,
        1200,
        1200,
        3000,
        3000,
    ]


# --- the engine -----------------------------------------------------------------------------------------------


async def test_calls_at_once_hear_what_each_hears_alone(whisper: MlxWhisper) -> None:
    clips = {f"call {seed}": audio(0.8 + seed / 4, seed) for seed in range(4)}
    solo = {call: await text_of(whisper, pcm) for call, pcm in clips.items()}
    assert len(set(solo.values())) == 4
    together = await asyncio.gather(*(text_of(whisper, pcm, call) for call, pcm in clips.items()))
    assert dict(zip(clips, together, strict=True)) == solo
    assert whisper._clips.open_streams == 0
    assert whisper._live == {}


async def test_partials_come_and_a_final_replaces_them(whisper: MlxWhisper) -> None:
    heard = Heard()
    stream = whisper.open(OpenTranscription("a", 1, 0), heard.deliver)
    stream.feed(audio(1.0))
    first: PartialTranscript = await heard.until(PartialTranscript)
    assert first.text
    stream.feed(audio(1.0, 9))
    stream.finalize(final())
    result = await heard.until(FinalTranscript)
    assert result == FinalTranscript(1, 1, await text_of(whisper, np.concatenate([audio(1.0), audio(1.0, 9)]), "b"))
    assert heard.got[-1] == result
    stream.close()


async def test_a_monologue_is_decoded_in_pieces(whisper: MlxWhisper) -> None:
    heard = Heard()
    stream = whisper.open(OpenTranscription("a", 1, 0, partials=False), heard.deliver)
    for seed in range(4):
        stream.feed(audio(9, seed))
    stream.finalize(final())
    result: FinalTranscript = await heard.until(FinalTranscript)
    assert len(result.text.split()) > 4
    stream.finalize(final(2))
    assert (await heard.until(FinalTranscript, 2)).text == result.text
    stream.close()


_KINDS = ("encode", "transcribe")


class Quanta:
    """Counts what the workload is given to do, and can have things done between two quanta."""

    def __init__(self, whisper: MlxWhisper, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, int]] = []
        self.fail: set[str] = set()
        self.tokens: list[int] = []
        clips, real, batch = whisper._clips, whisper._clips.quantum, whisper._clips._loaded
        assert batch is not None
        step, steps = batch.batch.step, [0]

        def counted() -> None:
            steps[0] += 1
            step()

        def quantum(choice: Choice) -> None:
            self.seen.append((choice.kind.name, len(choice.keys)))
            self._loop.call_soon_threadsafe(self._began[choice.kind.name].set)
            if choice.kind.name in self.fail:
                raise RuntimeError("the model is broken")
            steps[0] = 0
            real(choice)
            self.tokens.append(steps[0])

        monkeypatch.setattr(batch.batch, "step", counted)
        monkeypatch.setattr(clips, "quantum", quantum)
        self._loop, self._began = asyncio.get_running_loop(), {name: asyncio.Event() for name in _KINDS}

    async def until(self, kind: str) -> None:
        """Until the first quantum of that kind begins."""
        await asyncio.wait_for(self._began[kind].wait(), 20)


async def test_quanta_are_bounded_and_shared(whisper: MlxWhisper, monkeypatch: pytest.MonkeyPatch) -> None:
    quanta = Quanta(whisper, monkeypatch)
    await asyncio.gather(*(text_of(whisper, audio(3, seed), f"call {seed}") for seed in range(4)))
    assert max(quanta.tokens) == 4, "a quantum is as many tokens as it may be"
    decodes = [jobs for name, jobs in quanta.seen if name == "transcribe"]
    assert max(decodes) == 4, "one quantum serves all calls"
    assert {jobs for name, jobs in quanta.seen if name == "encode"} == {1}


async def test_a_closed_stream_leaves_the_batch_and_others_go_on(
    whisper: MlxWhisper, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await text_of(whisper, audio(3, 1), "other")
    quanta = Quanta(whisper, monkeypatch)
    gone = Heard()
    streams = [whisper.open(OpenTranscription(f"gone {n}", 1, 0, partials=False), gone.deliver) for n in range(3)]
    for stream in streams:
        stream.feed(audio(6, 2))
        stream.finalize(final())
    staying = asyncio.create_task(text_of(whisper, audio(3, 1), "other"))
    await quanta.until("transcribe")
    for stream in streams:
        stream.close()
    assert await staying == expected
    assert gone.got == []
    assert whisper._clips.open_streams == 0
    assert whisper._live == {}


async def test_a_newer_revision_makes_a_waiting_older_one_worthless(
    executor: MlxExecutor, whisper: MlxWhisper, monkeypatch: pytest.MonkeyPatch
) -> None:
    quanta = Quanta(whisper, monkeypatch)
    go = threading.Event()
    held = asyncio.create_task(executor.run(go.wait))
    await asyncio.sleep(0.05)
    heard = Heard()
    stream = whisper.open(OpenTranscription("a", 1, 0, partials=False), heard.deliver)
    stream.feed(audio(1))
    stream.finalize(final(1))
    stream.feed(audio(1, 5))
    stream.finalize(final(2))
    go.set()
    await held
    result: FinalTranscript = await heard.until(FinalTranscript)
    assert result.revision == 2
    assert [name for name, _ in quanta.seen].count("encode") <= 2, "one encoding, or two where it looped"
    stream.close()


@pytest.mark.parametrize("step", ["encode", "transcribe"])
async def test_a_failing_model_fails_its_jobs_and_the_next_one_is_heard(
    whisper: MlxWhisper, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    expected = await text_of(whisper, audio(2))
    quanta = Quanta(whisper, monkeypatch)
    quanta.fail = {step}
    heard = Heard()
    stream = whisper.open(OpenTranscription("a", 1, 0, partials=False), heard.deliver)
    stream.feed(audio(2))
    stream.finalize(final())
    failed: TranscriptionFailed = await heard.until(TranscriptionFailed)
    assert (failed.code, failed.revision) == ("decode_failed", 1)
    assert "the model is broken" in failed.message
    quanta.fail = set()
    stream.finalize(final(2))
    assert (await heard.until(FinalTranscript)).text == expected
    stream.close()


async def test_numbers_that_are_none_are_a_failure_and_no_silence(
    whisper: MlxWhisper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fp16 overflows: then another model must hear the caller."""
    expected = await text_of(whisper, audio(2))
    model: Any = whisper._clips._loaded.model  # type: ignore[union-attr]
    real = model.encode

    def overflown(pcm: Pcm16, frames: int) -> Any:
        return [tuple(side * float("nan") for side in layer) for layer in real(pcm, frames)]

    monkeypatch.setattr(model, "encode", overflown)
    heard = Heard()
    stream = whisper.open(OpenTranscription("a", 1, 0, partials=False), heard.deliver)
    stream.feed(audio(2))
    stream.finalize(final())
    assert (await heard.until(TranscriptionFailed)).code == "decode_failed"
    monkeypatch.setattr(model, "encode", real)
    stream.finalize(final(2))
    assert (await heard.until(FinalTranscript)).text == expected
    stream.close()


async def test_a_job_that_lost_its_place_is_told_so_and_the_batch_goes_on(
    executor: MlxExecutor, whisper: MlxWhisper, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await text_of(whisper, audio(3, 1), "stays")
    quanta = Quanta(whisper, monkeypatch)
    heard = Heard()
    stream = whisper.open(OpenTranscription("evicted", 1, 0, partials=False), heard.deliver)
    stream.feed(audio(6, 2))
    stream.finalize(final())
    staying = asyncio.create_task(text_of(whisper, audio(3, 1), "stays"))
    await quanta.until("transcribe")
    (key,) = [whisper._clips.key_of(serial, job) for serial, job in whisper._live.items() if job.opened.call != "stays"]

    def evict() -> None:
        executor.agenda.drop(key)
        whisper._clips.abandon(Choice(whisper._clips._transcribe, (key,)), EVICTED)

    executor.post(evict)
    assert (await heard.until(TranscriptionFailed)).code == "overloaded"
    assert await staying == expected
    assert whisper._clips.open_streams == 0
    stream.close()


async def test_partials_have_a_share_of_the_time_and_finals_all_of_it(
    executor: MlxExecutor, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whisper = MlxWhisper(checkpoint, executor, windows_s=WINDOWS_S, partial_share=1e-9)
    await whisper.start()
    quanta = Quanta(whisper, monkeypatch)
    first = Heard()
    stream = whisper.open(OpenTranscription("first", 1, 0), first.deliver)
    stream.feed(audio(1))
    await first.until(PartialTranscript)  # it has the thread to itself
    encoded = [name for name, _ in quanta.seen].count("encode")
    go = threading.Event()
    held = asyncio.create_task(executor.run(go.wait))
    await asyncio.sleep(0.05)
    heard = [Heard() for _ in range(3)]
    streams = [whisper.open(OpenTranscription(f"{n}", 1, 0), each.deliver) for n, each in enumerate(heard)]
    for each in streams:
        each.feed(audio(1, 3))
    go.set()
    await held
    final_text = await text_of(whisper, audio(2), "final")
    assert final_text
    for each in streams:
        each.close()
    partials = [got for each in heard for got in each.got]
    assert len(partials) <= 1, "the first of them found the agenda empty, the others did not"
    assert [name for name, _ in quanta.seen].count("encode") - encoded <= 3
    stream.close()
    await whisper.close()


def test_an_allowance_fills_up_to_a_second_of_its_share() -> None:
    allowance = Allowance(0.25)
    assert allowance.left(0.0)
    allowance.spend(0.5)
    assert not allowance.left(0.9)
    assert allowance.left(1.1)
    allowance.left(100.0)
    allowance.spend(0.26)
    assert not allowance.left(100.0), "more than a second's share is not saved up"


async def test_costs_are_known_before_the_first_call(executor: MlxExecutor, whisper: MlxWhisper) -> None:
    clips, costs = whisper._clips, executor.agenda.costs
    assert 0 < costs.estimate(clips._encode, 1, 200) < costs.estimate(clips._encode, 1, 3000)
    assert costs.estimate(clips._transcribe, 8) > 0


async def test_jobs_are_bounded_and_partials_leave_room_for_finals(executor: MlxExecutor, checkpoint: Path) -> None:
    whisper = MlxWhisper(checkpoint, executor, windows_s=WINDOWS_S, max_jobs=4)
    await whisper.start()
    go = threading.Event()
    held = asyncio.create_task(executor.run(go.wait))
    await asyncio.sleep(0.05)
    heard = [Heard() for _ in range(8)]
    streams = [whisper.open(OpenTranscription(f"{n}", 1, 0), each.deliver) for n, each in enumerate(heard)]
    for stream in streams:
        stream.feed(audio(1))
    assert len(whisper._live) == 2, "partials take half"
    for stream in streams:
        stream.finalize(final())
    assert len(whisper._live) == 4
    await asyncio.sleep(0)
    refused = [each.got for each in heard if each.got]
    go.set()
    await held
    assert len(refused) == 4
    assert all(isinstance(got, TranscriptionFailed) and got.code == "overloaded" for (got,) in refused)
    for each in heard:
        if each.got == []:
            await each.until(FinalTranscript)
    await whisper.close()


async def test_a_multilingual_model_knows_its_languages(executor: MlxExecutor, multilingual: Path) -> None:
    whisper = MlxWhisper(multilingual, executor, windows_s=WINDOWS_S)
    await whisper.start()
    texts = []
    for language in ("en", "de"):
        heard = Heard()
        stream = whisper.open(OpenTranscription(language, 1, 0, language, partials=False), heard.deliver)
        stream.feed(audio(2))
        stream.finalize(final())
        texts.append((await heard.until(FinalTranscript)).text)
    assert texts[0] != texts[1], "the language is not told to the model"
    heard = Heard()
    whisper.open(OpenTranscription("x", 1, 0, "tlh"), heard.deliver).finalize(final())
    assert (await heard.until(TranscriptionFailed)).code == "unsupported_language"
    await whisper.close()


async def test_what_runs_when_the_thread_dies_is_told(whisper: MlxWhisper, executor: MlxExecutor) -> None:
    heard = Heard()
    go = threading.Event()
    held = asyncio.create_task(executor.run(go.wait))
    await asyncio.sleep(0.05)
    stream = whisper.open(OpenTranscription("a", 1, 0, partials=False), heard.deliver)
    stream.feed(audio(1))
    stream.finalize(final())

    executor.post(partial(executor.attach, _Deadly()))
    go.set()
    await held
    assert (await heard.until(TranscriptionFailed)).code == "executor_dead"
    stream.finalize(final(2))
    assert (await heard.until(TranscriptionFailed, 2)).code == "executor_dead"


class _Deadly:
    """A workload that ends the thread."""

    name = "deadly"
    open_streams = 0

    def settle(self) -> None:
        raise SystemExit

    def quantum(self, choice: Choice) -> None: ...

    def abandon(self, choice: Choice, message: str) -> None: ...

    def close(self) -> None: ...


async def test_closing_with_streams_open_tells_nothing_more(executor: MlxExecutor, checkpoint: Path) -> None:
    whisper = MlxWhisper(checkpoint, executor, windows_s=WINDOWS_S)
    await whisper.start()
    heard = Heard()
    stream = whisper.open(OpenTranscription("a", 1, 0), heard.deliver)
    stream.feed(audio(2))
    stream.finalize(final())
    await whisper.close()
    await whisper.close()
    assert heard.got == []
    assert len(executor.agenda) == 0
    with pytest.raises(EngineError):
        whisper.open(OpenTranscription("a", 2, 0), heard.deliver)


async def test_starting_fails_by_code(executor: MlxExecutor, tmp_path: Path) -> None:
    codes = []
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(EngineError) as raised:
            await MlxWhisper(folder, executor).start()
        codes.append(raised.value.code)
    assert codes == ["load_failed", "bad_weights"]


async def test_the_thread_is_insisted_on(whisper: MlxWhisper, checkpoint: Path) -> None:
    with pytest.raises(WrongThreadError):
        whisper._clips.load(checkpoint)
    with pytest.raises(WrongThreadError):
        await asyncio.to_thread(partial(whisper._clips.quantum, Choice(whisper._clips._encode, ())))
