"""Replies that are said at once: each is what it would be alone, and none feels how another ends.

All on one thread: a lane slot is offered between two steps, and there the tests let others join, be cancelled or fail.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engines.llm.onnx_model import OnnxTextModel
from engines.llm.onnx_rows import ROOM_KEPT_TOKENS, Batch, Run
from streaming.jobs import Priority
from tests.engines.llm.toy_smollm2 import ManualOffer, Saying, ToySource, told, written

pytest.importorskip("onnxruntime")
pytest.importorskip("tokenizers")

PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1], list(range(26)) * 2, [8, 2, 8, 1, 8, 2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(ToySource(), tmp_path_factory.mktemp("toy"))


def endless(folder: Path) -> OnnxTextModel:
    """A new one that says all it may."""
    model = OnnxTextModel(folder, 4)
    model.end_ids = frozenset()
    return model


@pytest.fixture
def model(folder: Path) -> OnnxTextModel:
    return endless(folder)


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each step had, the reading of prompts left out."""
    seen: list[int] = []
    step = Batch.step

    def noted(self: Batch) -> object:
        seen.append(len(self._rows))
        return step(self)

    monkeypatch.setattr(Batch, "step", noted)
    return seen


class Steps(ManualOffer):
    """The slot of the reply that comes first: ``at[n]`` is called before step ``n``."""

    def __init__(self, at: dict[int, Callable[[], object]], stops_at: int | None = None) -> None:
        super().__init__(self._next)
        self._at = at
        self._stops_at = stops_at
        self.count = -1

    def _next(self) -> bool:
        self.count += 1
        self._at.get(self.count, lambda: None)()
        return self.count != self._stops_at


def together(
    model: OnnxTextModel, sayings: list[Saying], joins: list[int], at: dict[int, Callable[[], object]] | None = None
) -> Steps:
    """Say them all: the first at once, each other one once the steps of ``joins`` are done."""
    due: dict[int, Callable[[], object]] = dict(at or {})
    for saying, step in zip(sayings[1:], joins, strict=True):
        before = due.get(step, lambda: None)

        def join(saying: Saying = saying, before: Callable[[], object] = before) -> None:
            before()
            model.generate(saying.wanted, ManualOffer())

        due[step] = join
    steps = Steps(due)
    model.generate(sayings[0].wanted, steps)
    return steps


def alone(folder: Path, prompt: list[int], tokens: int) -> list[int]:
    return told(endless(folder), prompt, tokens)[0]


@pytest.mark.parametrize("joins", [[0, 0, 0], [1, 3, 5], [4, 4, 14], [2, 12, 13]])
@pytest.mark.parametrize("tokens", [[12, 12, 12, 12], [20, 4, 9, 2], [6, 20, 20, 20]])
def test_rows_that_join_and_leave_say_what_they_say_alone(
    folder: Path, model: OnnxTextModel, widths: list[int], joins: list[int], tokens: list[int]
) -> None:
    sayings = [Saying(prompt, count) for prompt, count in zip(PROMPTS, tokens, strict=True)]
    together(model, sayings, joins)
    for saying, prompt, count in zip(sayings, PROMPTS, tokens, strict=True):
        assert (saying.ends, saying.error) == (1, None)
        assert saying.said == alone(folder, prompt, count)
    assert max(widths) > 1


def test_a_step_serves_all_rows_there_are(model: OnnxTextModel, widths: list[int]) -> None:
    sayings = [Saying(prompt, count) for prompt, count in zip(PROMPTS[:3], (9, 5, 3), strict=True)]
    together(model, sayings, [2, 4])
    assert [len(saying.said) for saying in sayings] == [9, 5, 3]
    assert widths == [1, 1, 2, 2, 3, 3, 1, 1]


def test_the_logits_beside_others_are_those_alone_within_the_noise_of_a_float(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, list[np.ndarray]] = {}

    def choose(logits: np.ndarray, said: list[int], *_: object) -> int:
        seen.setdefault(id(said), []).append(logits.copy())
        kept.append(said)
        return len(said) % 20

    kept: list[list[int]] = []
    monkeypatch.setattr("engines.llm.onnx_rows.chosen", choose)
    together(endless(folder), [Saying(prompt, 6) for prompt in PROMPTS], [0, 0, 0])
    beside = list(seen.values())
    seen.clear()
    for prompt in PROMPTS:
        told(endless(folder), prompt, 6)
    for one, other in zip(beside, seen.values(), strict=True):
        np.testing.assert_allclose(np.stack(one), np.stack(other), rtol=0, atol=1e-4)


def test_what_was_said_beside_others_is_remembered(folder: Path, model: OnnxTextModel) -> None:
    sayings = [Saying(prompt, count) for prompt, count in zip(PROMPTS, (6, 14, 3, 9), strict=True)]
    together(model, sayings, [1, 1, 2])
    for saying, prompt in zip(sayings, PROMPTS, strict=True):
        turn = [*prompt, *saying.said, 7, 8]
        again, prefilled = told(model, turn, 5)
        assert prefilled in (2, 3)  # the last word of a reply is never computed
        assert again == alone(folder, turn, 5)


def test_a_row_that_nobody_wants_leaves_before_the_next_step_and_the_others_go_on(
    folder: Path, model: OnnxTextModel
) -> None:
    first, second = Saying(PROMPTS[0], 12), Saying(PROMPTS[1], 12)

    def cancel() -> None:
        first.urgency = None
        model.reorder()

    steps = together(model, [first, second], [1], {4: cancel})
    assert (len(first.said), first.ends, first.error) == (5, 1, None)
    assert len(second.said) == 12, "the thread of the one that has gone says the other"
    assert (Priority.FINAL, 0.0) in steps.places, "paused, it would hold its place"
    assert steps.places[-1] == (Priority.DECODE, 5.0)
    assert told(model, [*PROMPTS[0], *first.said], 1)[1] == 1
    assert second.said == alone(folder, PROMPTS[1], 12)


def test_a_failing_row_ends_only_itself(folder: Path, model: OnnxTextModel) -> None:
    heard: list[int] = []

    def broken(token: int) -> bool:
        heard.append(token)
        if len(heard) > 2:
            raise ValueError("the receiver's own")
        return False

    bad, good = Saying(PROMPTS[1], 12, on_token=broken), Saying(PROMPTS[0], 12)
    together(model, [good, bad], [1])
    assert str(bad.error) == "the receiver's own"
    assert (len(heard), bad.ends, good.error) == (3, 1, None)
    assert good.said == alone(folder, PROMPTS[0], 12)


def test_a_failing_step_ends_its_rows_and_the_next_begin_anew(
    folder: Path, model: OnnxTextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Saying(PROMPTS[0], 12), Saying(PROMPTS[1], 12)
    run = Run.advance
    with monkeypatch.context() as patch:

        def fail() -> None:
            patch.setattr(Run, "advance", lambda *_: 1 / 0)

        together(model, [first, second], [1], {3: fail})
    assert Run.advance is run
    for saying in (first, second):
        assert isinstance(saying.error, ZeroDivisionError)
        assert saying.ends == 1
    assert told(model, [*PROMPTS[1], *second.said], 6)[0] == alone(folder, [*PROMPTS[1], *second.said], 6)


def test_a_prompt_that_cannot_begin_says_so(model: OnnxTextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("engines.llm.onnx_rows.Facts.room", full)
    saying = Saying(PROMPTS[0])
    model.generate(saying.wanted, ManualOffer())
    assert isinstance(saying.error, MemoryError)
    assert (saying.ends, saying.prefilled) == (1, 0)


def test_a_lane_that_closes_ends_all(model: OnnxTextModel) -> None:
    first, second = Saying(PROMPTS[0], 12), Saying(PROMPTS[1], 12)
    steps = Steps({1: lambda: model.generate(second.wanted, ManualOffer())}, stops_at=3)
    model.generate(first.wanted, steps)
    assert [(len(saying.said), saying.ends, saying.error) for saying in (first, second)] == [(4, 1, None), (3, 1, None)]


def test_the_steps_are_as_urgent_as_the_most_urgent_row(model: OnnxTextModel) -> None:
    first, second = Saying(PROMPTS[0], 8), Saying(PROMPTS[1], 4)
    first.urgency = (Priority.SPECULATIVE, math.inf)
    second.urgency = (Priority.DECODE, 7.0)

    def postpone() -> None:
        second.urgency = (Priority.DECODE, 9.0)
        model.reorder()
        assert steps_of_first[-1] == (Priority.DECODE, 9.0)

    slot = Steps({1: lambda: model.generate(second.wanted, other), 2: postpone})
    other, steps_of_first = ManualOffer(), slot.places
    model.generate(first.wanted, slot)
    assert other.places == [], "its thread had gone"
    assert steps_of_first[0] == steps_of_first[-1] == (Priority.SPECULATIVE, math.inf)
    assert (Priority.DECODE, 7.0) in steps_of_first
    model.reorder()
    assert steps_of_first[-1] == (Priority.SPECULATIVE, math.inf), "nobody is spoken for any more"


def test_urgency_may_change_when_the_last_row_has_just_left(model: OnnxTextModel) -> None:
    """A call that is hung up as another's reply ends, which has left but has not given up the slot."""
    saying, ends = Saying(PROMPTS[0], 4), []

    def hung_up(*end: object) -> None:
        model.reorder()
        ends.append(end)

    model.generate(dataclasses.replace(saying.wanted, on_end=hung_up), ManualOffer())
    assert ends == [(len(PROMPTS[0]), None)]
    assert len(told(model, PROMPTS[1], 4)[0]) == 4


def test_an_end_that_nobody_takes_holds_up_no_later_reply(model: OnnxTextModel) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("nobody is there")

    model.generate(dataclasses.replace(Saying(PROMPTS[0], 4).wanted, on_end=broken), ManualOffer())
    assert len(told(model, PROMPTS[1], 4)[0]) == 4


def test_room_for_rows_side_by_side_grows_and_is_given_back_when_it_is_much(
    folder: Path, model: OnnxTextModel, widths: list[int]
) -> None:
    batch = model._stepper._batch
    together(model, [Saying(PROMPTS[0], 12), Saying(PROMPTS[1], 12)], [0])
    small = batch._room
    assert small is not None
    together(model, [Saying(PROMPTS[0], 12), Saying(PROMPTS[1], 12)], [0])
    assert batch._room is small
    long, short, longer = list(range(20)) * 4, PROMPTS[0], ROOM_KEPT_TOKENS // 4
    sayings = [Saying(short, 12), Saying(PROMPTS[1], 12), Saying(long, longer)]
    together(model, sayings, [0, 3])
    assert 3 in widths
    assert [saying.said for saying in sayings] == [
        alone(folder, prompt, tokens) for prompt, tokens in ((short, 12), (PROMPTS[1], 12), (long, longer))
    ]
    assert batch._room is None
