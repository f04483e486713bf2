"""The policy of a transcription stream: which job when, and what is told of it. No weights."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

from engines.api import EngineError, Pcm16
from engines.stt.faster_whisper import FasterWhisper
from engines.stt.utterance import MAX_WAITING_PIECES, Utterance
from engines.stt.whisper_decoder import FINAL, PARTIAL, RETRY, DecodeOptions, Hypothesis
from streaming.jobs import (
    FinalizeTranscription,
    FinalTranscript,
    OpenTranscription,
    PartialTranscript,
    Priority,
    Transcript,
    TranscriptionFailed,
)
from tests.engines.manual_lane import ManualLane

SECOND = 16_000


class FakeDecoder:
    """Says how many whole seconds it was given; ``say`` overrides it."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, DecodeOptions]] = []
        self.say: dict[DecodeOptions, str] = {}
        self.error: Exception | None = None
        self.warmed = self.closed = False

    def supports(self, language: str) -> bool:
        return language == "en"

    def decode(self, pcm: Pcm16, options: DecodeOptions, language: str = "en") -> Hypothesis:
        self.asked.append((pcm.size, options))
        if self.error is not None:
            raise self.error
        return Hypothesis(self.say.get(options, f"heard{pcm.size // SECOND}s"), 0.0, -0.1)

    def warm(self) -> None:
        self.warmed = True

    def close(self) -> None:
        self.closed = True


class Bench:
    def __init__(self) -> None:
        self.lane = ManualLane()
        self.decoder = FakeDecoder()
        self.engine = FasterWhisper(Path("unused"), self.lane, load=lambda _folder, _threads: self.decoder)
        self.got: list[Transcript] = []

    async def open(self, *, partials: bool = True, language: str = "en") -> Utterance:
        await self.engine.start()
        return self.engine.open(OpenTranscription("c", 1, 0, language, partials), self.got.append)


def audio(seconds: float, level: int = 3000) -> Pcm16:
    return np.full(int(seconds * SECOND), level, dtype=np.int16)


def final(revision: int, priority: Priority = Priority.FINAL, deadline: float = 1.0) -> FinalizeTranscription:
    return FinalizeTranscription(1, revision, priority, deadline)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def run_all(bench: Bench) -> list[Transcript]:
    for _ in range(12):
        bench.lane.run_all()
        await settle()
    got = list(bench.got)
    bench.got.clear()
    return got


async def test_a_final_holds_all_that_was_fed() -> None:
    bench = Bench()
    stream = await bench.open(partials=False)
    for _ in range(30):
        stream.feed(audio(0.1))
    assert bench.lane.jobs == []
    stream.finalize(final(1))
    assert bench.got == []
    assert await run_all(bench) == [FinalTranscript(1, 1, "heard3s")]
    assert bench.decoder.asked == [(3 * SECOND, FINAL)]
    assert bench.decoder.warmed


async def test_a_partial_is_due_after_new_audio_and_only_one_waits() -> None:
    bench = Bench()
    stream = await bench.open()
    stream.feed(audio(0.5))
    assert bench.lane.jobs == []
    stream.feed(audio(0.6))
    stream.feed(audio(0.6))
    assert [job.priority for job in bench.lane.jobs] == [Priority.PARTIAL]
    assert await run_all(bench) == [PartialTranscript(1, "heard1s")]
    stream.feed(audio(0.1))
    assert await run_all(bench) == [], "the same words are not told twice"
    assert [options for _, options in bench.decoder.asked] == [PARTIAL, PARTIAL]


async def test_a_final_makes_a_waiting_partial_worthless() -> None:
    bench = Bench()
    stream = await bench.open()
    stream.feed(audio(1))
    stream.finalize(final(1))
    assert [job.priority for job in bench.lane.waiting] == [Priority.FINAL]
    assert await run_all(bench) == [FinalTranscript(1, 1, "heard1s")]
    assert len(bench.decoder.asked) == 1


async def test_a_partial_that_runs_when_the_final_comes_is_not_told() -> None:
    bench = Bench()
    stream = await bench.open()
    stream.feed(audio(1))
    bench.lane.run()  # decoded, not yet back on the loop
    stream.finalize(final(1))
    assert await run_all(bench) == [FinalTranscript(1, 1, "heard1s")]


async def test_a_newer_revision_supersedes_an_unbegun_older_one() -> None:
    bench = Bench()
    stream = await bench.open(partials=False)
    stream.feed(audio(1))
    stream.finalize(final(1))
    stream.feed(audio(1))
    stream.finalize(final(2))
    assert len(bench.lane.waiting) == 1
    assert await run_all(bench) == [FinalTranscript(1, 2, "heard2s")]


async def test_a_begun_final_is_told_unless_a_newer_one_overtook_it() -> None:
    bench = Bench()
    stream = await bench.open(partials=False)
    stream.feed(audio(1))
    stream.finalize(final(1))
    bench.lane.run()
    stream.feed(audio(1))
    stream.finalize(final(2))
    assert await run_all(bench) == [FinalTranscript(1, 1, "heard1s"), FinalTranscript(1, 2, "heard2s")]


async def test_the_same_audio_is_answered_from_the_last_final_and_decoded_once() -> None:
    bench = Bench()
    stream = await bench.open(partials=False)
    stream.feed(audio(1))
    stream.finalize(final(1))
    await run_all(bench)
    stream.finalize(final(2))
    assert bench.got == [], "an engine never answers inside the call"
    assert await run_all(bench) == [FinalTranscript(1, 2, "heard1s")]
    assert len(bench.decoder.asked) == 1


async def test_a_speculative_final_is_raised_when_it_is_asked_for_in_earnest() -> None:
    bench = Bench()
    stream = await bench.open(partials=False)
    stream.feed(audio(1))
    stream.finalize(final(1, Priority.SPECULATIVE, 9.0))
    stream.finalize(final(2, Priority.FINAL, 2.0))
    assert [(job.priority, job.deadline) for job in bench.lane.waiting] == [(Priority.FINAL, 2.0)]
    assert await run_all(bench) == [FinalTranscript(1, 2, "heard1s")]


async def test_a_monologue_is_committed_piece_by_piece_at_its_pauses() -> None:
    bench = Bench()
    stream = await bench.open(partials=False)
    for _ in range(4):
        stream.feed(audio(9.5))
        stream.feed(audio(0.5, level=0))
        assert stream._tail_samples <= 15 * SECOND
        await run_all(bench)
    stream.finalize(final(1))
    (result,) = await run_all(bench)
    pieces = [size for size, _ in bench.decoder.asked[:-1]]
    assert len(pieces) == 3
    for piece in pieces:
        assert abs(piece % (10 * SECOND) - 9.75 * SECOND) < SECOND or abs(piece - 10 * SECOND) < SECOND
    assert sum(size for size, _ in bench.decoder.asked) == 40 * SECOND, "every sample is decoded once"
    assert isinstance(result, FinalTranscript)
    assert result.text.count("heard") == 4
    stream.finalize(final(2))
    assert await run_all(bench) == [FinalTranscript(1, 2, result.text)]


async def test_a_final_decodes_the_pieces_that_still_wait_and_commits_them_once() -> None:
    bench = Bench()
    stream = await bench.open(partials=False)
    stream.feed(audio(20))
    stream.finalize(final(1))
    (first,) = await run_all(bench)
    stream.feed(audio(1))
    stream.finalize(final(2))
    (second,) = await run_all(bench)
    assert isinstance(first, FinalTranscript)
    assert isinstance(second, FinalTranscript)
    assert first.text.count("heard") == second.text.count("heard") == 2
    assert len(bench.decoder.asked) == 3


async def test_a_final_waits_for_a_piece_that_is_being_decoded() -> None:
    bench = Bench()
    stream = await bench.open(partials=False)
    stream.feed(audio(20))
    bench.lane.run()
    stream.finalize(final(1))
    assert bench.lane.waiting == []
    (result,) = await run_all(bench)
    assert isinstance(result, FinalTranscript)
    assert len(bench.decoder.asked) == 2


async def test_audio_is_bounded_when_decoding_cannot_keep_up() -> None:
    bench = Bench()
    stream = await bench.open(partials=False)
    for _ in range(60):
        stream.feed(audio(10))
    assert len(stream._pieces) == MAX_WAITING_PIECES
    stream.finalize(final(1))
    (result,) = await run_all(bench)
    assert isinstance(result, FinalTranscript)
    assert result.text.count("heard") == MAX_WAITING_PIECES + 1


async def test_a_looping_final_is_decoded_again_in_the_full_window() -> None:
    bench = Bench()
    stream = await bench.open(partials=False)
    bench.decoder.say = {FINAL: "stop it stop it stop it stop it stop it", RETRY: "stop it"}
    stream.feed(audio(1))
    stream.finalize(final(1))
    assert await run_all(bench) == [FinalTranscript(1, 1, "stop it")]
    bench.decoder.say = {FINAL: "go on go on go on go on go on", RETRY: "go on go on go on go on go on"}
    stream.feed(audio(1))
    stream.finalize(final(2))
    assert await run_all(bench) == [FinalTranscript(1, 2, "go on")]
    assert [options for _, options in bench.decoder.asked] == [FINAL, RETRY, FINAL, RETRY]


async def test_a_looping_partial_is_cut_not_decoded_again() -> None:
    bench = Bench()
    stream = await bench.open()
    bench.decoder.say = {PARTIAL: "stop it stop it stop it stop it stop it"}
    stream.feed(audio(1))
    assert await run_all(bench) == [PartialTranscript(1, "stop it")]
    assert len(bench.decoder.asked) == 1


async def test_silence_is_not_even_decoded() -> None:
    bench = Bench()
    stream = await bench.open()
    stream.feed(audio(3, level=5))
    stream.finalize(final(1))
    assert await run_all(bench) == [FinalTranscript(1, 1, "")]
    assert bench.decoder.asked == []


async def test_an_utterance_without_audio_has_an_empty_final() -> None:
    bench = Bench()
    stream = await bench.open()
    stream.feed(audio(0))
    stream.finalize(final(1))
    assert await run_all(bench) == [FinalTranscript(1, 1, "")]


async def test_failures_are_delivered_and_the_stream_goes_on() -> None:
    bench = Bench()
    stream = await bench.open(partials=False)
    bench.decoder.error = RuntimeError("boom")
    stream.feed(audio(20))
    stream.finalize(final(1))
    (failed,) = await run_all(bench)
    assert isinstance(failed, TranscriptionFailed)
    assert (failed.revision, failed.code) == (1, "decode_failed")
    bench.decoder.error = None
    bench.lane.full = True
    stream.feed(audio(1))
    stream.finalize(final(2))
    (refused,) = await run_all(bench)
    assert isinstance(refused, TranscriptionFailed)
    assert refused.code == "overloaded"
    bench.lane.full = False
    stream.finalize(final(3))
    (result,) = await run_all(bench)
    assert isinstance(result, FinalTranscript)


async def test_a_language_the_model_does_not_know_fails_by_code() -> None:
    bench = Bench()
    stream = await bench.open(language="de")
    stream.feed(audio(5))
    stream.finalize(final(1))
    (failed,) = await run_all(bench)
    assert isinstance(failed, TranscriptionFailed)
    assert failed.code == "unsupported_language"
    assert bench.decoder.asked == []


async def test_nothing_is_told_after_close() -> None:
    bench = Bench()
    stream = await bench.open()
    stream.feed(audio(2))
    bench.lane.run()
    stream.finalize(final(1))
    stream.close()
    stream.feed(audio(2))
    stream.finalize(final(2))
    assert await run_all(bench) == []
    assert bench.lane.waiting == []


@pytest.mark.parametrize("heard", [True, False])
async def test_nothing_of_a_closed_utterance_is_kept(heard: bool) -> None:
    bench = Bench()
    stream = await bench.open()
    stream.feed(audio(2))
    stream.finalize(final(1, Priority.SPECULATIVE))
    stream.finalize(final(2))
    if heard:
        assert await run_all(bench) != []
    stream.close()
    bench.lane.run_all()
    await settle()
    kept = weakref.ref(stream)
    del stream
    gc.collect()
    assert kept() is None


async def test_closing_the_engine_closes_its_streams_and_frees_the_weights() -> None:
    bench = Bench()
    stream = await bench.open()
    stream.feed(audio(2))
    stream.finalize(final(1))
    (job,) = bench.lane.waiting
    await bench.engine.close()
    await bench.engine.close()
    assert bench.decoder.closed
    bench.lane.run(job)
    assert await run_all(bench) == []
    with pytest.raises(EngineError):
        bench.engine.open(OpenTranscription("c", 2, 0), bench.got.append)


async def test_a_failed_start_can_be_closed() -> None:
    def load(_folder: Path, _threads: int) -> FakeDecoder:
        raise EngineError("bad_weights", "none here")

    engine = FasterWhisper(Path("unused"), ManualLane(), load=load)
    with pytest.raises(EngineError):
        await engine.start()
    await engine.close()
