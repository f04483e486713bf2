"""Who gets the answers: on a stand-in for the executor, without a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engines.executor.thread import ExecutorUnavailableError
from engines.tts.mlx_segments import Segments
from streaming.jobs import Priority, Synthesis, SynthesisChunk, SynthesisFailed, Synthesize


class _Executor:
    def __init__(self) -> None:
        self.soon_calls: list[Callable[[], None]] = []
        self.closed = False

    def soon(self, deliver: Callable[[], None]) -> None:
        self.soon_calls.append(deliver)

    def post(self, act: Callable[[], None], *, control: bool = False) -> None:
        if self.closed:
            raise ExecutorUnavailableError("executor_closed", "the executor is not running")
        act()

    def run_soon(self) -> None:
        calls, self.soon_calls = self.soon_calls, []
        for call in calls:
            call()


def _segments(limit: int = 8) -> tuple[Segments, Any]:
    executor: Any = _Executor()
    return Segments(executor, limit), executor


def _request(epoch: int = 1, segment: int = 0) -> Synthesize:
    return Synthesize("a", epoch, segment, "hello", "joe", Priority.FIRST_AUDIO, 0.0)


def _chunk(last: bool = False) -> SynthesisChunk:
    return SynthesisChunk(1, 0, b"", 24_000, last)


def test_answers_go_to_their_segment_until_its_last() -> None:
    segments, _ = _segments()
    got: list[Synthesis] = []
    assert segments.open(_request(), got.append)
    segments.answer(_request(), [_chunk(), _chunk()], last=False)
    segments.answer(_request(), [_chunk(), _chunk(last=True)], last=True)
    segments.answer(_request(), [_chunk()], last=False)
    assert len(got) == 4
    assert len(segments) == 0


def test_a_cancel_amid_answers_stops_them() -> None:
    segments, _ = _segments()
    got: list[Synthesis] = []

    def deliver(result: Synthesis) -> None:
        got.append(result)
        assert segments.cancel("a", 1) == (len(got) == 1)

    segments.open(_request(), deliver)
    segments.open(_request(segment=1), got.append)
    segments.answer(_request(), [_chunk(), _chunk(), _chunk(last=True)], last=True)
    segments.fail(_request(segment=1), "bad_audio", "silence")
    assert len(got) == 1
    assert len(segments) == 0


def test_refusals_come_later_and_take_no_room() -> None:
    segments, executor = _segments(limit=1)
    got: list[Any] = []
    segments.open(_request(), got.append)
    assert not segments.open(_request(), got.append)
    assert not segments.open(_request(segment=1), got.append)
    assert got == []
    executor.run_soon()
    assert [failed.code for failed in got] == ["invalid_request", "overloaded"]
    segments.cancel("a", 1)
    assert segments.open(_request(segment=1), got.append)


def test_work_that_cannot_be_posted_fails() -> None:
    segments, executor = _segments()
    got: list[Any] = []
    executor.closed = True
    segments.open(_request(), got.append)
    segments.post(_request(), lambda: None)
    executor.run_soon()
    assert [failed.code for failed in got] == ["executor_closed"]
    assert len(segments) == 0


def test_a_death_is_told_once_to_each_that_still_wants_to_hear() -> None:
    segments, _ = _segments()
    got: list[Synthesis] = []

    def first(result: Synthesis) -> None:
        got.append(result)
        segments.cancel("a", 2)

    segments.open(_request(), first)
    segments.open(_request(segment=1), got.append)
    segments.open(_request(epoch=2), got.append)
    segments.fail_all("executor_dead", "SystemExit")
    assert got == [SynthesisFailed(1, at, "executor_dead", "SystemExit") for at in (0, 1)]
    assert len(segments) == 0
