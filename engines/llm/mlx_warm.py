"""Warming a batch: every kernel and every shape it will be asked for is run before a call waits for it, and timed.

A new kernel costs seconds on CUDA and a new shape up to a second; on a CPU neither is worth the time. So a batch that
rounds its shapes up to a few (a GPU's) lives through all of them, the shortest contexts first, and through a turnover
of rows; one on a CPU runs a few buckets, to know their costs. Both within a budget: what it leaves out is logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from engines.executor.batch import Joining, Prompt, TokenBatch
from engines.executor.cache import KeptCache
from engines.executor.prefill import PADDED_ROWS, PADDED_TOKENS, fits, padded_tokens
from engines.executor.rows_kv import fewest, reads
from engines.llm.mlx_turnover import Turnover

_PREFILL_TOKENS = (16, 32, 64, 128, 256, 512, 1024)
_PREFILL_ROWS = (2, 4, 8)
_ROWS_TOKENS = (16, 64)
_LONGEST_S = 0.25
"""A quantum beyond this is not asked for while anybody waits: no need to know larger ones."""
_REPLY_TOKENS = 256
"""Of a reply at the end of the longest context. A longer one meets shapes that were not run."""
_STEPS = 3

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Timed:
    """What one quantum took, once warm. ``length``: the tokens of all rows together for ``prefill``."""

    step: str
    batch: int
    length: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Extent:
    """How large a batch may get. ``max_bytes`` of keys and values: wider and longer ones are never formed."""

    max_rows: int
    max_prefill_tokens: int
    max_prefill_rows: int
    max_context_tokens: int
    max_bytes: int


def warm(
    batch: TokenBatch,
    tokens: Sequence[int],
    clock: Callable[[], float],
    extent: Extent,
    budget_s: float,
    *,
    compiles: bool,
) -> list[Timed]:
    """Run prefill and decode in growing buckets until they are all run, they get too long or the time is spent.
    ``tokens`` are repeated to the lengths wanted. The smallest shapes are run in any case. ``compiles``: kernels are
    made at first use, as on a GPU."""
    end = clock() + budget_s
    if batch.padded:
        timed = list(_Shapes(batch, tokens, clock, extent, end).run())
    else:
        timed = list(_prefills(batch, tokens, clock, extent, end))
        timed += _steps(batch, tokens, clock, extent.max_rows, end)
        if compiles:
            Turnover(batch, tokens, extent.max_rows).live()
    while len(batch):
        batch.step()
    batch.tidy()
    return timed


class _Shapes:
    """All shapes of a padded batch. One length of context after the other, so that what a spent budget leaves out are
    the longest contexts."""

    def __init__(
        self, batch: TokenBatch, tokens: Sequence[int], clock: Callable[[], float], extent: Extent, end: float
    ) -> None:
        self._batch = batch
        self._tokens = tokens
        self._clock = clock
        self._extent = extent
        self._end = end
        self._base = batch.new_cache()
        """A context as long as the lengths reached so far, of which all others are cut."""
        most = padded_tokens(extent.max_prefill_tokens)
        self._chunks = [size for size in PADDED_TOKENS if size <= most]
        self._chunks += range(PADDED_TOKENS[-1] + 256, most + 1, 256)
        self._longest_chunk = most

    def run(self) -> Iterator[Timed]:
        extent = self._extent
        lengths = fewest(extent.max_context_tokens + _REPLY_TOKENS)
        for at, length in enumerate(lengths):
            self._lengthen(length - _STEPS)
            for timed in self._prefills(length):
                if at <= 1:  # the second length, where contexts usually are, is told in place of the first
                    yield timed
            for timed in self._decodes(length):
                if at == 0:
                    yield timed
            if at == 0:
                Turnover(self._batch, self._tokens, extent.max_rows).live()
            if self._clock() >= self._end and at + 1 < len(lengths):
                _log.warning("the time for warming is spent: longer contexts will stall once", warmed_tokens=length)
                return

    def _lengthen(self, length: int) -> None:
        while (missing := length - len(self._base.tokens)) > 0:
            chunk = min(missing, self._extent.max_prefill_tokens)
            self._batch.prefill([Prompt(self._base, self._some(chunk + 1))], [chunk])

    def _prefills(self, length: int) -> Iterator[Timed]:
        for rows in PADDED_ROWS:
            if rows > self._extent.max_prefill_rows:
                return
            for size in self._chunks:
                if size > min(length, self._longest_chunk) or not fits(rows, size):
                    continue
                seconds = 0.0
                for _ in range(2):  # the first may compile, and says nothing of the next one's cost
                    prompts = [Prompt(self._context(length - size), self._some(size + 1)) for _ in range(rows)]
                    began = self._clock()
                    self._batch.prefill(prompts, [size] * rows)
                    seconds = self._clock() - began
                if rows == 1 and seconds > _LONGEST_S:
                    self._longest_chunk = min(self._longest_chunk, size)
                yield Timed("prefill", rows, rows * size, seconds)

    def _decodes(self, length: int) -> Iterator[Timed]:
        """The batch at every width, its longest row at the end of this length."""
        width = 1
        while width < 2 * self._extent.max_rows:
            if width > 1 and width * length * self._batch.token_nbytes > self._extent.max_bytes:
                return
            rows = min(width, self._extent.max_rows)
            caches = [self._context(length - _STEPS), *(self._batch.new_cache() for _ in range(rows - 1))]
            seconds = self._lived(caches, _STEPS)
            for shorter in reads(length)[:-1]:  # of buffers that were made for a longer row
                self._lived([self._context(shorter - _STEPS), *(self._batch.new_cache() for _ in range(rows - 1))], 1)
            self._batch.tidy()
            yield Timed("decode", rows, 1, seconds)
            width *= 2

    def _lived(self, caches: Sequence[KeptCache], steps: int) -> float:
        """Rows join, decode and leave, and their places stay. Returns the seconds of the last step."""
        uids = self._batch.join([Joining(Prompt(cache, self._some(1)), _STEPS - 1, 0.0) for cache in caches])
        seconds = 0.0
        for _ in range(steps):
            began = self._clock()
            if len(self._batch):  # a row may have met its stop token
                self._batch.step()
                seconds = self._clock() - began
        self._batch.leave(uids)
        return seconds

    def _context(self, length: int) -> KeptCache:
        if not length:
            return self._batch.new_cache()
        context = self._batch.clone(self._base)
        context.cut_to(length)
        return context

    def _some(self, count: int) -> list[int]:
        return _repeated(self._tokens, count)


# --- without padding ------------------------------------------------------------------------------------------


def _prefills(
    batch: TokenBatch, tokens: Sequence[int], clock: Callable[[], float], extent: Extent, end: float
) -> Iterator[Timed]:
    most = extent.max_prefill_tokens
    for length in sorted({min(length, most) for length in _PREFILL_TOKENS}):
        seconds = _prefill(batch, tokens, clock, 1, length)
        yield Timed("prefill", 1, length, seconds)
        if seconds > _LONGEST_S or clock() >= end:
            return
    for count in _PREFILL_ROWS:
        for length in _ROWS_TOKENS:
            if count > extent.max_prefill_rows or count * length > most:
                continue
            if clock() >= end:
                return
            yield Timed("prefill", count, count * length, _prefill(batch, tokens, clock, count, length))


def _prefill(batch: TokenBatch, tokens: Sequence[int], clock: Callable[[], float], rows: int, length: int) -> float:
    """The second run: the first may compile."""
    seconds = 0.0
    for _ in range(2):
        prompts = [Prompt(batch.new_cache(), _repeated(tokens, length + 1)) for _ in range(rows)]
        begun = clock()
        batch.prefill(prompts, [length] * rows)
        seconds = clock() - begun
    return seconds


def _steps(
    batch: TokenBatch, tokens: Sequence[int], clock: Callable[[], float], max_rows: int, end: float
) -> Iterator[Timed]:
    width = 1
    while width <= max_rows:
        prompts = [Prompt(batch.new_cache(), _repeated(tokens, 2)) for _ in range(width - len(batch))]
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


def _repeated(tokens: Sequence[int], count: int) -> list[int]:
    return (list(tokens) * (count // len(tokens) + 1))[:count]
