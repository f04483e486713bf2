"""Warming Whisper: every window and every shape of the decode batch is run before a call waits for it, and timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import structlog

from engines.executor.rows_kv import power_of_two
from engines.stt.mlx_whisper_batch import PADDED_COLUMNS, PADDED_POSITIONS, DecodeBatch, Row
from engines.stt.mlx_whisper_model import Keys, WhisperModel
from streaming.jobs import INPUT_RATE_HZ

_PENALTY = 1.1
_MOST_TOKENS = 8
"""Of the rows here: they are taken out before."""
_FEW_ROWS = (1, 2, 4, 8)
_FRAMES_PER_POSITION = 2

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Timed:
    """What one ``encode`` of ``frames``, or one ``step`` of ``rows``, took once warm."""

    step: str
    frames: int
    rows: int
    seconds: float


def warm(
    model: WhisperModel,
    batch: DecodeBatch,
    clock: Callable[[], float],
    windows: Sequence[int],
    max_rows: int,
    budget_s: float,
) -> Iterator[Timed]:
    """``windows`` in mel frames. A batch that pads lives through all its shapes, the small ones first, and what the
    budget leaves out is logged; another runs a few sizes, to know their costs."""
    end = clock() + budget_s
    heard: dict[int, Keys] = {}
    for frames in windows:
        for _ in range(2 if batch.pad else 1):  # the first may have compiled, and says nothing of the next one's cost
            began = clock()
            keys = model.encode(np.zeros(INPUT_RATE_HZ, np.int16), frames)
            seconds = clock() - began
        heard[frames // _FRAMES_PER_POSITION] = keys
        yield Timed("encode", frames, 1, seconds)
    shapes = _Decoding(model, batch, clock, heard)
    yield from shapes.all(max_rows, end) if batch.pad else shapes.few(max_rows)
    batch.reset()


class _Decoding:
    def __init__(
        self, model: WhisperModel, batch: DecodeBatch, clock: Callable[[], float], heard: dict[int, Keys]
    ) -> None:
        self._batch = batch
        self._clock = clock
        self._heard = heard
        self._prompt = model.prompt("en")

    def few(self, max_rows: int) -> Iterator[Timed]:
        for rows in _FEW_ROWS:
            if rows <= max_rows:
                self._batch.join(self._rows(max(self._heard), rows - len(self._batch)))
                yield Timed("step", 0, rows, self._step())

    def all(self, max_rows: int, end: float) -> Iterator[Timed]:
        for _ in range(min(3, max_rows)):  # three rows leave a dead one
            self._batch.join(self._rows(min(self._heard), 1))
        self._batch.step()
        positions = self._positions()
        width, widest = 1, power_of_two(max_rows)
        while width <= widest:
            for at, length in enumerate(positions):
                seconds = self._live(length, width)
                if at == min(1, len(positions) - 1):
                    yield Timed("step", 0, min(width, max_rows), seconds)
            if self._clock() >= end and width < widest:
                _log.warning("the time for warming is spent: larger batches of clips will stall once", rows=width)
                return
            width *= 2

    def _positions(self) -> list[int]:
        """The longest window of each length that a batch rounds up to."""
        longest: dict[int, int] = {}
        for length in sorted(self._heard):
            longest[next((size for size in PADDED_POSITIONS if size >= length), length)] = length
        return list(longest.values())

    def _live(self, length: int, width: int) -> float:
        """Rows join, say words of every length, leave and are joined by others. Returns what a step takes."""
        batch = self._batch
        batch.reset()
        batch.join(self._rows(length, width))
        seconds = self._step()
        for column in PADDED_COLUMNS:
            batch.skip_to(column - 1)
            batch.step()
        batch.reset()
        # More than half the width stays, so that it remains as it is; a shorter window joins beside.
        rows = self._rows(length, width, _PENALTY)
        batch.join(rows)
        batch.step()
        batch.leave(rows[:1])
        if len(batch):
            batch.step()
        batch.join(self._rows(min(self._heard), 1))
        batch.step()
        return seconds

    def _rows(self, length: int, count: int, penalty: float = 1.0) -> list[Row]:
        return [Row(self._heard[length], self._prompt, _MOST_TOKENS, penalty) for _ in range(max(count, 0))]

    def _step(self) -> float:
        """The second one: the first may compile."""
        self._batch.step()
        began = self._clock()
        self._batch.step()
        return self._clock() - began
