"""Warming a batch: every shape it will be asked for is run before a call waits for it, and timed.

A new shape costs a compile: on CUDA many seconds, on Metal less, on a CPU nothing worth the time. So a GPU is warmed
through all buckets and a CPU through the first few; both within a budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from engines.executor.batch import Joining, Prompt, TokenBatch

_PREFILL_TOKENS = (16, 32, 64, 128, 256, 512, 1024)
_PREFILL_ROWS = (2, 4, 8)
_ROWS_TOKENS = (16, 64)
_LONGEST_S = 0.25
"""A quantum beyond this is not asked for while anybody waits: no need to know larger ones."""


@dataclass(frozen=True, slots=True)
class Timed:
    """What one quantum took, once warm. ``length``: the tokens of all rows together for ``prefill``."""

    step: str
    batch: int
    length: int
    seconds: float


def warm(
    batch: TokenBatch,
    tokens: Sequence[int],
    clock: Callable[[], float],
    *,
    max_rows: int,
    max_prefill_tokens: int,
    max_prefill_rows: int,
    budget_s: float,
) -> list[Timed]:
    """Run prefill and decode in growing buckets until they are all run, they get too long or the time is spent.
    ``tokens`` are repeated to the lengths wanted. The smallest shapes are run in any case."""
    end = clock() + budget_s
    timed = list(_prefills(batch, tokens, clock, max_prefill_tokens, max_prefill_rows, end))
    timed += _steps(batch, tokens, clock, max_rows, end)
    while len(batch):
        batch.step()
    batch.tidy()
    return timed


def _prefills(
    batch: TokenBatch, tokens: Sequence[int], clock: Callable[[], float], most: int, rows: int, end: float
) -> Iterator[Timed]:
    for length in sorted({min(length, most) for length in _PREFILL_TOKENS}):
        seconds = _prefill(batch, tokens, clock, 1, length)
        yield Timed("prefill", 1, length, seconds)
        if seconds > _LONGEST_S or clock() >= end:
            return
    for count in _PREFILL_ROWS:
        for length in _ROWS_TOKENS:
            if count > rows or count * length > most:
                continue
            if clock() >= end:
                return
            yield Timed("prefill", count, count * length, _prefill(batch, tokens, clock, count, length))


def _prefill(batch: TokenBatch, tokens: Sequence[int], clock: Callable[[], float], rows: int, length: int) -> float:
    """The second run: the first may compile."""
    seconds = 0.0
    for _ in range(2):
        prompts = _prompts(batch, tokens, rows, length)
        begun = clock()
        batch.prefill(prompts, [length] * rows)
        seconds = clock() - begun
    return seconds


def _steps(
    batch: TokenBatch, tokens: Sequence[int], clock: Callable[[], float], max_rows: int, end: float
) -> Iterator[Timed]:
    width = 1
    while width <= max_rows:
        prompts = _prompts(batch, tokens, width - len(batch), 1)
        batch.prefill(prompts, [1] * len(prompts))
        batch.join([Joining(prompt, 4 + 3 * max_rows.bit_length(), 0.0) for prompt in prompts])
        for _ in range(3):
            begun = clock()
            if len(batch):  # a row may have met its stop token
                batch.step()
        yield Timed("decode", width, 1, clock() - begun)
        if clock() >= end and width > 1:
            return
        width *= 2


def _prompts(batch: TokenBatch, tokens: Sequence[int], count: int, length: int) -> list[Prompt]:
    repeated = (list(tokens) * (length // len(tokens) + 1))[: length + 1]
    while len(repeated) < length + 1:
        repeated.append(repeated[-1])
    return [Prompt(batch.new_cache(), list(repeated)) for _ in range(count)]
