"""A turnover of rows in small: every way in which rows come, rest, are copied, move and leave, once.

Each of them has kernels of its own (gathers and scatters for a type of number and of index), which CUDA makes at first
use: seconds that callers must not wait for. Shapes don't matter here: a kernel that moves rows is made for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from engines.executor.batch import Joining, Prompt, TokenBatch
from engines.executor.cache import KeptCache

_TOKENS = 12
"""Of a prompt here."""
_LONG = 250
"""Tokens to say that make the batch's buffers grow past their first capacity."""
_SHRINKS_AFTER = 20
"""Steps a batch stays too wide before it shrinks, at least."""


class Turnover:
    """``tokens`` are repeated to the lengths wanted; at most ``max_rows`` rows decode at once."""

    def __init__(self, batch: TokenBatch, tokens: Sequence[int], max_rows: int) -> None:
        self._batch = batch
        self._tokens = tokens
        self._most = min(max_rows, 8)

    def live(self) -> None:
        """From an empty batch to an empty batch."""
        resting = self._decode()
        self._second_turns(resting)
        self._grow_and_shrink()
        self._empty()

    def _decode(self) -> list[KeptCache]:
        """Rows prefilled together and alone join together and alone, warm and greedy; some leave and stay in place."""
        together = self._prefilled([self._batch.new_cache() for _ in range(min(self._most, 3))])
        copies = [self._batch.clone(prompt.cache) for prompt in together]  # rows of one set of arrays
        for copy in copies:
            self._batch.own(copy)
        again = self._prefilled(copies)
        uids = self._join(again[:1], 0.7) + self._join(again[1:], 0.0)
        self._steps(2)
        for uid in uids:
            if self._alive(uid):
                self._batch.own(self._batch.fork(uid))
        left = list(self._batch.leave(uids).values())
        self._batch.tidy()
        return left

    def _second_turns(self, resting: Sequence[KeptCache]) -> None:
        """Rows at rest in their slots are copied, and go on by one and by several, while another row decodes."""
        other = self._prefilled([self._batch.new_cache()])
        uids = self._join(other, 0.0)
        for cache in resting[:1]:
            self._batch.own(cache)
            self._batch.clone(cache)
        for some in (resting[:1], resting[1:]):
            if some:
                uids += self._join(self._prefilled(some), 0.0)
        self._steps(1)
        kept = self._batch.leave(uids[1:])
        # More rows than there are free places beside those at rest, which move out.
        uids = uids[:1] + self._fill(self._most)
        self._steps(1)
        del kept
        self._batch.leave(uids)

    def _grow_and_shrink(self) -> None:
        uids = self._fill(1)
        self._steps(1)
        uids += self._fill(self._most, max_tokens=_LONG)
        self._steps(2)
        held = self._batch.leave(uids[1:])
        for _ in range(_SHRINKS_AFTER):
            self._batch.tidy()
        self._steps(1)
        self._batch.leave(uids)
        self._batch.tidy()
        self._join(self._prefilled(list(held.values())[:1]), 0.0)  # it had moved out
        self._steps(1)

    def _empty(self) -> None:
        while len(self._batch):
            self._batch.step()
        self._batch.tidy()
        self._batch.reset()

    def _fill(self, count: int, max_tokens: int = _SHRINKS_AFTER) -> list[int]:
        """Until so many rows decode."""
        missing = count - len(self._batch)
        if missing <= 0:
            return []
        return self._join(self._prefilled([self._batch.new_cache() for _ in range(missing)]), 0.0, max_tokens)

    def _prefilled(self, caches: Sequence[KeptCache]) -> list[Prompt]:
        prompts = [Prompt(cache, self._some(_TOKENS + 1)) for cache in caches]
        self._batch.prefill(prompts, [_TOKENS] * len(prompts))
        return prompts

    def _join(self, prompts: Sequence[Prompt], temperature: float, max_tokens: int = _SHRINKS_AFTER) -> list[int]:
        if not prompts:
            return []
        return self._batch.join([Joining(prompt, max_tokens, temperature) for prompt in prompts])

    def _steps(self, count: int) -> None:
        for _ in range(count):
            if len(self._batch):
                self._batch.step()

    def _alive(self, uid: int) -> bool:
        try:
            return bool(self._batch.tokens_of(uid))
        except KeyError:
            return False

    def _some(self, count: int) -> list[int]:
        return (list(self._tokens) * (count // len(self._tokens) + 1))[:count]
