"""The end-of-turn fake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from engines.turn.scripted import ScriptedTurn
from streaming.jobs import EndOfTurnScored, ScoreEndOfTurn

PCM = np.zeros(160, np.int16)


async def test_it_answers_by_script_after_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []
    loop = asyncio.get_running_loop()
    real = loop.call_later

    def call_later(delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        delays.append(delay)
        return real(0, callback)

    monkeypatch.setattr(loop, "call_later", call_later)
    turn = ScriptedTurn([0.2, None, 0.9], delay_ms=50)
    await turn.start()
    answers: list[EndOfTurnScored] = []
    for revision in range(1, 5):
        turn.score(ScoreEndOfTurn(7, revision, 0, 160), PCM, answers.append)
    assert answers == []
    monkeypatch.undo()
    await asyncio.sleep(0.001)  # real timers of 0 s are due by then
    assert answers == [EndOfTurnScored(7, 1, 0.2), EndOfTurnScored(7, 3, 0.9), EndOfTurnScored(7, 4, 0.9)]
    assert delays == [0.05] * 3
    assert [request.revision for request in turn.requests] == [1, 2, 3, 4]


async def test_nothing_comes_after_close() -> None:
    turn = ScriptedTurn()
    answers: list[EndOfTurnScored] = []
    turn.score(ScoreEndOfTurn(1, 1, 0, 160), PCM, answers.append)
    await turn.close()
    await asyncio.sleep(0.001)
    assert answers == []


def test_an_empty_script_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ScriptedTurn([])


async def test_without_records_the_script_goes_on() -> None:
    turn = ScriptedTurn([0.2, 0.9], records=False)
    answers: list[EndOfTurnScored] = []
    for revision in range(1, 4):
        turn.score(ScoreEndOfTurn(1, revision, 0, 160), PCM, answers.append)
    await asyncio.sleep(0.01)
    assert [answer.probability for answer in answers] == [0.2, 0.9, 0.9]
    assert list(turn.requests) == []
