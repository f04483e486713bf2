"""Computing several prompts in one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engines.executor.batch import Prompt
from engines.executor.cache import KeptCache
from engines.executor.rows_kv import (
    Found,
    Frame,
    LayerArrays,
    LayerRows,
    RowKv,
    Source,
    empty_like,
    few,
    placed,
    power_of_two,
    token_nbytes,
    up,
)

PADDED_TOKENS = (16, 32, 64, 128, 256, 512)
PADDED_ROWS = (1, 2, 4, 8)
_MOST_PADDED = 1024
"""Rows times tokens of a padded pass of several rows: what is larger is cut into several passes."""
_READ_STEP = 256
_PADDING = 64
"""Tokens of padding that cost less than a forward pass more."""


class Prefill:
    """Prompts begin with what their caches hold, each at its own length; the shorter chunks are padded on the right
    (what is written there is beyond the row's length: the next write covers it). The rows computed together stay in
    one set of arrays, which their caches share.

    ``pad`` rounds rows and lengths up to a few buckets, so that a GPU sees few shapes.
    """

    def __init__(self, model: Any, pad: bool) -> None:
        self._model = model
        self._layer_count = len(model.layers)
        self._pad = pad
        self.token_nbytes = 0

    def run(self, prompts: Sequence[Prompt], counts: Sequence[int], find: Callable[[KeptCache], Found]) -> None:
        """Compute the first ``counts[i]`` tokens of each prompt's rest (0: leave it). ``find`` says where a cache's
        keys and values are."""
        groups = _alike(counts)
        for places in _cut(groups, counts) if self._pad else groups:
            self._together([prompts[place] for place in places], [counts[place] for place in places], find)

    def _together(self, prompts: Sequence[Prompt], counts: Sequence[int], find: Callable[[KeptCache], Found]) -> None:
        import mlx.core as mx

        chunks = [prompt.rest[:count] for prompt, count in zip(prompts, counts, strict=True)]
        lengths = [len(prompt.cache.tokens) for prompt in prompts]
        rows, longest = len(prompts), max(counts)
        if self._pad:
            rows, longest = power_of_two(rows), padded_tokens(longest)
        filler = rows - len(prompts)
        lengths += [min(lengths)] * filler
        read = max(lengths) + longest
        if self._pad:
            read = few(read)
        layers = self._begun(prompts, rows, read, find)
        frame = Frame.at(lengths, longest, read, masked=self._pad)
        for layer in layers:
            layer.frame = frame
        tokens = [chunk + [0] * (longest - len(chunk)) for chunk in chunks] + [[0] * longest] * filler
        self._model(mx.array(tokens), cache=layers)  # its logits are never computed: nobody asks for them
        arrays: LayerArrays = [layer.state for layer in layers]
        mx.eval(arrays)
        self.token_nbytes = token_nbytes(arrays)
        for row, (prompt, chunk) in enumerate(zip(prompts, chunks, strict=True)):
            prompt.cache.tokens.extend(chunk)
            prompt.cache.layers = [RowKv(len(prompt.cache.tokens), arrays, row, None, self.token_nbytes)]
            del prompt.rest[: len(chunk)]

    def _begun(
        self, prompts: Sequence[Prompt], rows: int, capacity: int, find: Callable[[KeptCache], Found]
    ) -> list[LayerRows]:
        """Buffers that begin with what the prompts have."""
        begun = [(row, prompt.cache) for row, prompt in enumerate(prompts) if prompt.cache.tokens]
        if not begun:
            return [LayerRows(capacity) for _ in range(self._layer_count)]
        found = [find(cache) for _, cache in begun]
        buffers = placed(empty_like(found[0][1], rows, capacity), Source.of(found, [row for row, _ in begun]))
        return [LayerRows(capacity, arrays) for arrays in buffers]


def padded_tokens(tokens: int) -> int:
    return next((length for length in PADDED_TOKENS if length >= tokens), up(tokens, _READ_STEP))


def fits(rows: int, tokens: int) -> bool:
    """Whether a padded pass has this shape."""
    return rows == 1 or (rows <= PADDED_ROWS[-1] and rows * tokens <= _MOST_PADDED)


def _cut(groups: Sequence[list[int]], counts: Sequence[int]) -> list[list[int]]:
    """Groups that fit a padded pass each. Their first is the longest."""
    cut: list[list[int]] = []
    for group in groups:
        rows = min(power_of_two(len(group)), PADDED_ROWS[-1])
        while not fits(rows, padded_tokens(counts[group[0]])):
            rows //= 2
        cut += [group[at : at + rows] for at in range(0, len(group), rows)]
    return cut


def _alike(counts: Sequence[int]) -> list[list[int]]:
    """Places of the counts that go together: as many as can without padding becoming a good part of the work."""
    groups: list[list[int]] = []
    for place in sorted((place for place, count in enumerate(counts) if count > 0), key=lambda place: -counts[place]):
        if groups:
            group = [*groups[-1], place]
            padding = counts[group[0]] * len(group) - sum(counts[one] for one in group)
            if padding <= _PADDING + sum(counts[one] for one in group) // 4:
                groups[-1] = group
                continue
        groups.append([place])
    return groups
