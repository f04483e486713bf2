"""The queue around the Smart Turn model, with a stand-in model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from engines.api import EngineError
from engines.turn.features import log_mel
from engines.turn.smart_turn import MAX_QUEUED, MAX_QUEUED_S, SmartTurn
from streaming.jobs import EndOfTurnScored, ScoreEndOfTurn

WAIT_S = 10.0
PCM = np.zeros(1600, np.int16)


class StandIn:
    """Scores 0.01 for the first picture it is given, 0.02 for the second and so on, and can be held."""

    def __init__(self) -> None:
        self.pictures: list[npt.NDArray[np.float32]] = []
        self.held = threading.Event()
        self.let_go = threading.Event()
        self.let_go.set()
        self.failures = 0

    def load(self, path: Path) -> Callable[[npt.NDArray[np.float32]], float]:
        assert path == Path("dir/smart-turn-v3.2-cpu.onnx")
        return self.run

    def run(self, picture: npt.NDArray[np.float32]) -> float:
        self.pictures.append(picture)
        self.held.set()
        assert self.let_go.wait(WAIT_S)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("bad luck")
        return len(self.pictures) / 100


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Answers:
    def __init__(self) -> None:
        self.got: list[EndOfTurnScored] = []
        self._more = asyncio.Event()

    def __call__(self, scored: EndOfTurnScored) -> None:
        self.got.append(scored)
        self._more.set()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.got) < count:
                self._more.clear()
                await self._more.wait()


def ask(utterance: int, revision: int) -> ScoreEndOfTurn:
    return ScoreEndOfTurn(utterance, revision, 0, len(PCM))


@asynccontextmanager
async def held(model: StandIn, clock: Clock) -> AsyncIterator[tuple[SmartTurn, Answers]]:
    """A detector whose worker is busy with utterance 0 until the model is let go."""
    turn = SmartTurn(Path("dir"), load=model.load, clock=clock)
    await turn.start()
    model.pictures.clear()
    model.held.clear()
    model.let_go.clear()
    answers = Answers()
    turn.score(ask(0, 1), PCM, answers)
    assert await asyncio.to_thread(model.held.wait, WAIT_S)
    try:
        yield turn, answers
    finally:
        model.let_go.set()
        await turn.close()


async def test_it_answers_with_the_score_of_the_audios_picture() -> None:
    model = StandIn()
    pcm = (np.random.default_rng(1).standard_normal(20_000) * 1000).astype(np.int16)
    turn = SmartTurn(Path("dir"), load=model.load)
    await turn.start()
    answers = Answers()
    turn.score(ask(3, 4), pcm, answers)
    await answers.wait_for(1)
    assert answers.got == [EndOfTurnScored(3, 4, 0.02)]  # the first was the warm-up
    np.testing.assert_array_equal(model.pictures[-1], log_mel(pcm))
    await turn.close()


async def test_the_newest_revision_of_an_utterance_wins_and_keeps_its_place() -> None:
    model = StandIn()
    async with held(model, Clock()) as (turn, answers):
        turn.score(ask(1, 1), PCM, answers)
        turn.score(ask(2, 1), PCM, answers)
        turn.score(ask(1, 3), PCM, answers)
        turn.score(ask(1, 2), PCM, answers)  # late and old
        model.let_go.set()
        await answers.wait_for(3)
        assert [(one.utterance, one.revision) for one in answers.got] == [(0, 1), (1, 3), (2, 1)]
        assert turn.snapshot().replaced == 2


async def test_calls_that_use_the_same_number_do_not_meet() -> None:
    model = StandIn()
    async with held(model, Clock()) as (turn, answers):
        other = Answers()
        turn.score(ask(1, 1), PCM, answers)
        turn.score(ask(1, 2), PCM, other)
        model.let_go.set()
        await asyncio.gather(answers.wait_for(2), other.wait_for(1))
        assert turn.snapshot().replaced == 0


async def test_what_waited_over_a_second_is_dropped() -> None:
    model, clock = StandIn(), Clock()
    async with held(model, clock) as (turn, answers):
        turn.score(ask(1, 1), PCM, answers)
        clock.now = 0.5
        turn.score(ask(2, 1), PCM, answers)
        clock.now = MAX_QUEUED_S + 0.25
        model.let_go.set()
        await answers.wait_for(2)
        assert [one.utterance for one in answers.got] == [0, 2]
        shot = turn.snapshot()
        assert (shot.expired, shot.scored, shot.queued) == (1, 2, 0)


async def test_a_full_queue_pushes_out_the_oldest() -> None:
    model = StandIn()
    async with held(model, Clock()) as (turn, answers):
        for utterance in range(1, MAX_QUEUED + 3):
            turn.score(ask(utterance, 1), PCM, answers)
        shot = turn.snapshot()
        assert (shot.queued, shot.refused) == (MAX_QUEUED, 2)
        model.let_go.set()
        await answers.wait_for(MAX_QUEUED + 1)
        assert [one.utterance for one in answers.got] == [0, *range(3, MAX_QUEUED + 3)]


async def test_a_failed_run_delivers_nothing_and_the_next_is_served() -> None:
    model = StandIn()
    async with held(model, Clock()) as (turn, answers):
        model.failures = 2
        turn.score(ask(1, 1), PCM, answers)
        turn.score(ask(2, 1), PCM, answers)
        model.let_go.set()
        await answers.wait_for(1)
        assert [one.utterance for one in answers.got] == [2]
        assert turn.snapshot().failed == 2


async def test_close_joins_and_nothing_is_taken_after() -> None:
    model = StandIn()
    turn = SmartTurn(Path("dir"), load=model.load)
    await turn.start()
    thread = turn._thread
    assert thread is not None
    await turn.close()
    await turn.close()
    assert not thread.is_alive()
    turn.score(ask(1, 1), PCM, Answers())
    assert turn.snapshot().queued == 0


async def test_closing_after_a_failed_start_is_safe(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    turn = SmartTurn(tmp_path)
    with pytest.raises(EngineError) as caught:
        await turn.start()
    assert caught.value.code == "model_load_failed"
    await turn.close()
