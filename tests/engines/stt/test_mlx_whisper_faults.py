"""Whisper on MLX where something fails: the job is told, the next one is heard."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engines.api import EngineError, Pcm16
from engines.executor.policy import Choice
from engines.executor.thread import MlxExecutor, WrongThreadError
from engines.executor.workload import EVICTED
from engines.stt.mlx_whisper import MlxWhisper
from streaming.jobs import (
    FinalTranscript,
    OpenTranscription,
    TranscriptionFailed,
)
from tests.engines.stt.tiny_whisper import needs_mlx_whisper
from tests.engines.stt.whisper_rig import WINDOWS_S, Heard, Quanta, audio, final, text_of

pytestmark = [needs_mlx_whisper, pytest.mark.usefixtures("shorter_retry")]


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
