"""Whisper on MLX with tiny random weights: the real library on the real thread. Every text is compared with what one
clip alone, on mlx-whisper's own forward passes or on ours, makes of the same audio."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

from engines.executor.thread import MlxExecutor
from engines.stt.mlx_whisper import MlxWhisper
from engines.stt.mlx_whisper_clips import Allowance
from streaming.jobs import (
    FinalTranscript,
    OpenTranscription,
    PartialTranscript,
    TranscriptionFailed,
)
from tests.engines.stt.tiny_whisper import needs_mlx_whisper
from tests.engines.stt.whisper_rig import WINDOWS_S, Heard, Quanta, audio, final, text_of

pytestmark = [needs_mlx_whisper, pytest.mark.usefixtures("shorter_retry")]


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
