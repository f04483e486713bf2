"""The streaming models of mlx-audio with random weights: audio goes in, words come as it goes, finals flush copies.

What the words should be is computed by a session of the library alone, fed and closed on the same thread.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.api import EngineError, Pcm16
from engines.executor.policy import Choice
from engines.executor.thread import MlxExecutor, WrongThreadError
from engines.executor.workload import EVICTED
from engines.stt import mlx_sessions
from engines.stt.mlx_sessions import WaitingAudio
from engines.stt.mlx_streaming import MlxStreamingStt
from streaming.jobs import FinalTranscript, OpenTranscription, PartialTranscript, TranscriptionFailed
from tests.engines.stt.tiny_streaming import needs_mlx_audio, write_tiny_nemotron, write_tiny_voxtral
from tests.engines.stt.whisper_rig import Heard, audio, final

pytestmark = needs_mlx_audio

SECOND = 16_000
WRITERS = {"nemotron": write_tiny_nemotron, "voxtral": write_tiny_voxtral}
_written: dict[str, Path] = {}


@pytest.fixture
async def executor() -> AsyncIterator[MlxExecutor]:
    made = MlxExecutor()
    await made.start()
    yield made
    await made.close()


@pytest.fixture(params=["nemotron"])
async def checkpoint(
    request: pytest.FixtureRequest, executor: MlxExecutor, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    if request.param not in _written:
        folder = tmp_path_factory.mktemp(request.param)
        await executor.run(partial(WRITERS[request.param], folder))
        _written[request.param] = folder
    return _written[request.param]


both = pytest.mark.parametrize("checkpoint", WRITERS, indirect=True)


@pytest.fixture
async def engine(executor: MlxExecutor, checkpoint: Path) -> AsyncIterator[MlxStreamingStt]:
    made = MlxStreamingStt(checkpoint, executor)
    await made.start()
    yield made
    await made.close()


async def expected(executor: MlxExecutor, engine: MlxStreamingStt, pcm: Pcm16) -> str:
    def hear() -> str:
        session = engine._sessions._new_session("en")
        deltas: list[str] = []
        for start in range(0, pcm.size, SECOND // 10):
            session.feed(pcm[start : start + SECOND // 10].astype(np.float32) / 32768)
            deltas += session.step(max_decode_tokens=16)
        session.close()
        while not session.done:
            deltas += session.step(max_decode_tokens=16)
        return "".join(deltas).strip()

    return await executor.run(hear)


class Caller:
    """An utterance, and what was told of it."""

    def __init__(
        self, engine: MlxStreamingStt, call: str = "a", *, partials: bool = False, language: str = "en"
    ) -> None:
        self.heard = Heard()
        self.stream = engine.open(OpenTranscription(call, 1, 0, language, partials), self.heard.deliver)

    async def say(self, pcm: Pcm16) -> None:
        for start in range(0, pcm.size, SECOND // 10):
            self.stream.feed(pcm[start : start + SECOND // 10])
            await asyncio.sleep(0)

    async def final(self, revision: int = 1) -> str:
        self.stream.finalize(final(revision))
        while True:
            found = [each for each in self.heard.got if isinstance(each, FinalTranscript) and each.revision == revision]
            if found:
                return found[0].text
            self.heard.changed.clear()
            await asyncio.wait_for(self.heard.changed.wait(), 20)


async def idle(executor: MlxExecutor) -> None:
    """Until nothing is on the agenda."""
    for _ in range(4000):
        if not await executor.run(lambda: len(executor.agenda)):
            return
        await asyncio.sleep(0.005)
    pytest.fail("the agenda never empties")


@both
async def test_a_final_is_what_a_session_alone_makes_of_the_audio(
    executor: MlxExecutor, engine: MlxStreamingStt
) -> None:
    for seed in (0, 1):
        caller = Caller(engine, f"call {seed}")
        await caller.say(audio(1, seed))
        text = await caller.final()
        assert text == await expected(executor, engine, audio(1, seed))
        assert len(set(text.split())) > 3, "the words depend on nothing, so this proves nothing"
        caller.stream.close()


@both
async def test_a_caller_who_goes_on_is_heard_as_if_nothing_had_been_asked(
    executor: MlxExecutor, engine: MlxStreamingStt
) -> None:
    caller, pcm = Caller(engine), audio(1.5, 4)
    await caller.say(pcm[:SECOND])
    first = await caller.final(1)
    assert first == await expected(executor, engine, pcm[:SECOND])
    await caller.say(pcm[SECOND:])
    second = await caller.final(2)
    assert second == await expected(executor, engine, pcm), "the flush of the first final left its mark"
    assert first != second
    caller.stream.close()


@both
async def test_calls_at_once_are_heard_apart(executor: MlxExecutor, engine: MlxStreamingStt) -> None:
    clips = {f"call {seed}": audio(0.6 + seed / 4, seed) for seed in range(3)}
    alone = {call: await expected(executor, engine, pcm) for call, pcm in clips.items()}

    async def one(call: str, pcm: Pcm16) -> str:
        caller = Caller(engine, call)
        await caller.say(pcm)
        text = await caller.final()
        caller.stream.close()
        return text

    assert dict(zip(clips, await asyncio.gather(*(one(*clip) for clip in clips.items())), strict=True)) == alone
    await idle(executor)
    assert engine._sessions.open_streams == 0
    assert engine._open == {}


async def test_partials_grow_while_the_caller_speaks(executor: MlxExecutor, engine: MlxStreamingStt) -> None:
    caller, pcm = Caller(engine, partials=True), audio(3, 1)
    for part in np.array_split(pcm, 6):
        await caller.say(part)
        await idle(executor)
    partials = [each.text for each in caller.heard.got if isinstance(each, PartialTranscript)]
    assert len(partials) >= 4
    assert all(after.startswith(before) for before, after in itertools.pairwise(partials))
    text = await caller.final()
    assert text.startswith(partials[-1])
    told = len(caller.heard.got)
    await caller.say(np.zeros(SECOND // 4, np.int16))
    await idle(executor)
    assert all(len(each.text) > len(text) for each in caller.heard.got[told:] if isinstance(each, PartialTranscript))
    caller.stream.close()


async def test_quanta_are_bounded(
    executor: MlxExecutor, engine: MlxStreamingStt, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    fed: list[int] = []
    real = engine._sessions._new_session

    def counted(language: str) -> Any:
        session = real(language)
        step, feed = session.step, session.feed

        def counted_step(*, max_decode_tokens: int) -> list[str]:
            steps.append(max_decode_tokens)
            return list(step(max_decode_tokens=max_decode_tokens))

        def counted_feed(samples: Pcm16) -> None:
            fed.append(samples.size)
            feed(samples)

        session.step, session.feed = counted_step, counted_feed
        return session

    monkeypatch.setattr(engine._sessions, "_new_session", counted)
    caller = Caller(engine)
    caller.stream.feed(audio(5))
    await idle(executor)
    assert max(fed) == SECOND // 2
    assert sum(fed) == 5 * SECOND
    assert set(steps) == {16}
    assert len(steps) >= 10
    caller.stream.close()


async def test_the_same_audio_is_flushed_once(engine: MlxStreamingStt, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = Caller(engine)
    await caller.say(audio(1))
    first = await caller.final(1)
    monkeypatch.setattr(mlx_sessions, "_fork", lambda session: pytest.fail("flushed again"))
    assert await caller.final(2) == first
    caller.stream.close()


async def test_a_newer_revision_replaces_the_one_that_waits(executor: MlxExecutor, engine: MlxStreamingStt) -> None:
    go = threading.Event()
    held = asyncio.create_task(executor.run(go.wait))
    await asyncio.sleep(0.05)
    caller, pcm = Caller(engine), audio(2)
    await caller.say(pcm[:SECOND])
    caller.stream.finalize(final(1))
    await caller.say(pcm[SECOND:])
    caller.stream.finalize(final(2))
    go.set()
    await held
    assert await caller.heard.until(FinalTranscript) == FinalTranscript(1, 2, await expected(executor, engine, pcm))
    caller.stream.close()


async def test_a_final_without_audio_is_empty(engine: MlxStreamingStt) -> None:
    assert await Caller(engine).final() == ""


async def test_a_closed_stream_frees_its_session_and_is_told_nothing(
    executor: MlxExecutor, engine: MlxStreamingStt
) -> None:
    callers = [Caller(engine, f"call {n}", partials=True) for n in range(3)]
    for caller in callers:
        caller.stream.feed(audio(4))
        caller.stream.finalize(final())
        caller.stream.close()
        caller.stream.feed(audio(1))
        caller.stream.finalize(final(2))
        caller.stream.close()
    await idle(executor)
    assert engine._sessions.open_streams == 0
    assert [caller.heard.got for caller in callers] == [[], [], []]


async def test_open_sessions_hold_off_a_cache_clear(executor: MlxExecutor, engine: MlxStreamingStt) -> None:
    caller = Caller(engine)
    await caller.say(audio(1))
    await idle(executor)
    assert engine._sessions.open_streams == 1, "an idle session holds its caches all the same"
    served = executor.clear_cache_served

    def ask() -> None:
        import mlx.core as mx

        mx.clear_cache()

    await executor.run(ask)
    await executor.run(lambda: None)
    assert executor.clear_cache_served == served
    caller.stream.close()
    await executor.run(lambda: None)
    await executor.run(lambda: None)
    assert executor.clear_cache_served == served + 1


async def test_long_speech_is_cut_into_sessions(executor: MlxExecutor, checkpoint: Path) -> None:
    engine = MlxStreamingStt(checkpoint, executor, cut_s=1.5, longest_s=3.0)
    await engine.start()
    quiet = np.zeros(SECOND // 2, np.int16)
    caller = Caller(engine)
    parts = [np.concatenate([audio(1.5, seed), quiet]) for seed in range(3)]
    for part in parts:
        await caller.say(part)
        await idle(executor)
    stream = next(iter(engine._sessions._streams.values()))
    assert len(stream.committed) >= 2
    assert stream.in_session <= 3 * SECOND
    text = await caller.final()
    assert text.startswith(" ".join(stream.committed))
    caller.stream.close()
    await engine.close()


async def test_a_broken_session_fails_its_final_and_later_audio_gets_a_new_one(
    executor: MlxExecutor, engine: MlxStreamingStt, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine._sessions._new_session

    def broken(language: str) -> Any:
        session = real(language)
        session.step = lambda max_decode_tokens: 1 / 0
        return session

    monkeypatch.setattr(engine._sessions, "_new_session", broken)
    caller = Caller(engine)
    await caller.say(audio(0.5))
    caller.stream.finalize(final())
    failed: TranscriptionFailed = await caller.heard.until(TranscriptionFailed)
    assert (failed.code, failed.revision) == ("decode_failed", 1)
    monkeypatch.setattr(engine._sessions, "_new_session", real)
    await caller.say(audio(1, 2))
    assert await caller.final(2) != ""
    caller.stream.close()


async def test_a_session_that_cannot_begin_is_not_tried_for_ever(
    executor: MlxExecutor, engine: MlxStreamingStt, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def broken(language: str) -> Any:
        tried.append(language)
        raise MemoryError("no room for its caches")

    monkeypatch.setattr(engine._sessions, "_new_session", broken)
    caller = Caller(engine)
    await caller.say(audio(2))
    await idle(executor)
    assert 1 <= len(tried) <= 20  # once a block fed, at most
    monkeypatch.undo()
    await caller.say(audio(1, 2))
    assert await caller.final() == await expected(executor, engine, audio(1, 2))
    caller.stream.close()


async def test_a_stream_that_lost_its_place_is_told_so_and_goes_on(
    executor: MlxExecutor, engine: MlxStreamingStt
) -> None:
    go = threading.Event()
    held = asyncio.create_task(executor.run(go.wait))
    await asyncio.sleep(0.05)
    caller = Caller(engine)
    await caller.say(audio(1))
    caller.stream.finalize(final())
    key = engine._sessions.key_of(caller.stream.serial, caller.stream.request)

    def evict() -> None:
        executor.agenda.drop(key)
        engine._sessions.abandon(Choice(engine._sessions._start, (key,)), EVICTED)

    executor.post(evict)
    go.set()
    await held
    assert (await caller.heard.until(TranscriptionFailed)).code == "overloaded"
    assert await caller.final(2) == await expected(executor, engine, audio(1))
    caller.stream.close()


async def test_audio_is_bounded_when_the_thread_is_busy(executor: MlxExecutor, checkpoint: Path) -> None:
    engine = MlxStreamingStt(checkpoint, executor, max_waiting_s=2.0)
    await engine.start()
    go = threading.Event()
    held = asyncio.create_task(executor.run(go.wait))
    await asyncio.sleep(0.05)
    caller = Caller(engine)
    for _ in range(50):
        caller.stream.feed(audio(0.1))
    assert len(executor._inbox) <= 2, "one wake-up is enough for any number of blocks"
    assert caller.stream._audio.dropped == 3 * SECOND
    go.set()
    await held
    assert await caller.final() != ""
    caller.stream.close()
    await engine.close()


def test_waiting_audio_keeps_its_order_and_its_bound() -> None:
    audio = WaitingAudio(10)
    assert audio.push(np.arange(4, dtype=np.int16))
    assert audio.push(np.arange(4, 9, dtype=np.int16))
    assert list(audio.take(6)) == [0, 1, 2, 3, 4, 5]
    assert (audio.taken, audio.pushed) == (6, 9)
    assert not audio.push(np.arange(9, 30, dtype=np.int16))
    assert list(audio.take(99)) == list(range(20, 30))
    assert (audio.taken, audio.pushed) == (30, 30)
    assert audio.take(5).size == 0


async def test_languages_are_those_of_the_model(engine: MlxStreamingStt) -> None:
    assert engine._languages == frozenset({"en", "de"})
    caller = Caller(engine, language="fr")
    caller.stream.finalize(final())
    assert caller.heard.got == []
    assert (await caller.heard.until(TranscriptionFailed)).code == "unsupported_language"


async def test_streams_are_bounded(executor: MlxExecutor, checkpoint: Path) -> None:
    engine = MlxStreamingStt(checkpoint, executor, max_streams=2)
    await engine.start()
    callers = [Caller(engine, f"call {n}") for n in range(3)]
    callers[2].stream.finalize(final())
    assert (await callers[2].heard.until(TranscriptionFailed)).code == "overloaded"
    callers[0].stream.close()
    assert await Caller(engine, "next").final() == ""
    await engine.close()


async def test_a_waiting_final_is_failed_when_the_thread_ends(executor: MlxExecutor, engine: MlxStreamingStt) -> None:
    caller = Caller(engine)
    engine._on_death("executor_dead", "nothing was asked: nothing is told")
    assert caller.heard.got == []
    go = threading.Event()
    held = asyncio.create_task(executor.run(go.wait))
    await asyncio.sleep(0.05)
    await caller.say(audio(1))
    caller.stream.finalize(final(7))
    engine._on_death("executor_dead", "gone")
    assert caller.heard.got == [TranscriptionFailed(1, 7, "executor_dead", "gone")]
    go.set()
    await held
    caller.stream.close()


async def test_closing_with_streams_open_ends_them(executor: MlxExecutor, checkpoint: Path) -> None:
    engine = MlxStreamingStt(checkpoint, executor)
    await engine.start()
    caller = Caller(engine)
    await caller.say(audio(2))
    caller.stream.finalize(final())
    await engine.close()
    await engine.close()
    assert caller.heard.got == []
    assert len(executor.agenda) == 0
    with pytest.raises(EngineError):
        Caller(engine)


async def test_starting_fails_by_code(executor: MlxExecutor, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(EngineError) as raised:
            await MlxStreamingStt(folder, executor).start()
        assert raised.value.code == "load_failed"


async def test_the_thread_is_insisted_on(engine: MlxStreamingStt, checkpoint: Path) -> None:
    with pytest.raises(WrongThreadError):
        engine._sessions.load(checkpoint)
    with pytest.raises(WrongThreadError):
        engine._sessions.quantum(Choice(engine._sessions._step, ()))


async def test_a_final_takes_the_place_of_its_request_among_all_work(
    executor: MlxExecutor, engine: MlxStreamingStt, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    held = asyncio.create_task(executor.run(go.wait))
    await asyncio.sleep(0.05)
    background, urgent = Caller(engine, "background"), Caller(engine, "urgent")
    background.stream.feed(audio(20))
    await urgent.say(audio(0.5))
    urgent.stream.finalize(final())
    order: list[str] = []
    real = engine._sessions.quantum

    def quantum(choice: Choice) -> None:
        order.append(choice.keys[0].call)
        real(choice)

    monkeypatch.setattr(engine._sessions, "quantum", quantum)
    go.set()
    await held
    await urgent.heard.until(FinalTranscript)
    first = order.index("urgent")
    last = len(order) - order[::-1].index("urgent")
    assert order[first:last].count("background") <= 1
    background.stream.close()
    urgent.stream.close()
