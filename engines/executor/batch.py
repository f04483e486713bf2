"""Decoding all calls as one batch: what a batch offers, and the one place that says what of mlx-lm is relied on.

Two batches exist. :class:`engines.executor.slots.SlotBatch` is for models whose layers all keep a plain ``KVCache``
(Llama, Qwen, SmolLM and most others): joins and leaves cost next to nothing. :class:`engines.executor.library_batch.
LibraryBatch` drives mlx-lm's own batch classes for every other cache (rotating, recurrent). Written against mlx-lm
0.32.2; a test names what moved when an upgrade breaks it.

All of it is for the MLX thread only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from engines.executor.cache import KeptCache

REQUIRED: dict[str, tuple[str, ...]] = {
    "mlx_lm.generate:PromptProcessingBatch": ("generate",),
    "mlx_lm.generate:GenerationBatch": ("next", "filter", "extend", "extract_cache"),
    "mlx_lm.generate:StopSequences": ("matcher",),
    "mlx_lm.generate:generation_stream": (),
    "mlx_lm.models.base:create_attention_mask": (),
    "mlx_lm.models.cache:make_prompt_cache": (),
    "mlx_lm.models.cache:KVCache": ("merge", "trim", "is_trimmable", "size", "state", "nbytes"),
    "mlx_lm.models.cache:BatchKVCache": ("extract", "filter", "extend", "merge", "state"),
    "mlx_lm.sample_utils:make_sampler": (),
}
"""Names of mlx-lm the batches (and the shutdown recipe) rely on, with the attributes used."""

REQUIRED_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "mlx_lm.generate:PromptProcessingBatch": (
        "model",
        "uids",
        "caches",
        "tokens",
        "samplers",
        "fallback_sampler",
        "logits_processors",
        "stop_sequences",
        "max_tokens",
    ),
    "mlx_lm.generate:GenerationBatch.Response": ("uid", "token", "finish_reason", "prompt_cache", "all_tokens"),
    "mlx_lm.models.base:create_attention_mask": ("h", "cache", "window_size", "return_array"),
    "mlx_lm.models.base:scaled_dot_product_attention": ("queries", "keys", "values", "cache", "mask"),
}
"""Arguments used."""

CACHE_CONTRACT = ("offset", "update_and_fetch", "make_mask")
"""What a model asks of the cache of a layer. :class:`engines.executor.slots.LayerRows` stands in for mlx-lm's own
class there, so these are looked for in ``KVCache`` too."""


@dataclass(slots=True)
class Prompt:
    """A prompt on its way into the batch: ``cache`` holds what is computed, ``rest`` the tokens still to compute (at
    least one)."""

    cache: KeptCache
    rest: list[int]


@dataclass(frozen=True, slots=True)
class Joining:
    """A prompt whose last token alone is left, and how to go on from it."""

    prompt: Prompt
    max_tokens: int
    temperature: float


@dataclass(frozen=True, slots=True)
class Stepped:
    """One row's part of a decode step. ``cache`` comes with the row's last token: it has left the batch then."""

    uid: int
    token: int
    finish: Literal["stop", "length"] | None
    cache: KeptCache | None


class TokenBatch(Protocol):
    """Prefill, join, decode and leave, each a quantum or a part of one.

    One look-ahead step is always in flight: a row's cache holds every token that was returned, and its successor is
    being computed.
    """

    def __len__(self) -> int:
        """Rows that decode."""

    @property
    def nbytes(self) -> int:
        """What the batch's own buffers hold."""

    def nbytes_for(self, rows: int, tokens: int) -> int:
        """What they would hold with so many rows in all, the longest of so many tokens; never less than now."""

    @property
    def token_nbytes(self) -> int:
        """What a token of a row takes; 0 until known."""

    @property
    def width(self) -> int:
        """Rows that a step computes, the empty ones included."""

    @property
    def padded(self) -> bool:
        """Whether its shapes are rounded up to a few, so that all can be run before a call comes."""

    def new_cache(self) -> KeptCache: ...

    def prefill(self, prompts: Sequence[Prompt], most: Sequence[int]) -> list[int]:
        """Compute up to ``most[i]`` tokens of each prompt, never its last. Returns how many were computed."""

    def join(self, joining: Sequence[Joining]) -> list[int]:
        """Make rows of prompts that have one token left. Returns their uids."""

    def step(self) -> list[Stepped]:
        """One token for every row that has one. Rows that end leave the batch here."""

    def leave(self, uids: Iterable[int]) -> dict[int, KeptCache]:
        """Take rows out in one go and return their caches. Unknown uids are left out."""

    def tokens_of(self, uid: int) -> Sequence[int]:
        """The tokens in the cache of a row of the batch."""

    def fork(self, uid: int) -> KeptCache:
        """A copy of the cache of a row of the batch, as it is now."""

    def clone(self, cache: KeptCache) -> KeptCache:
        """A copy of a cache outside the batch: what becomes of one never shows in the other."""

    def own(self, cache: KeptCache) -> None:
        """Before it is kept for long: see that the cache pins no other prompt's bytes."""

    def tidy(self) -> None:
        """Between quanta: give back room that rows have left."""

    def reset(self) -> None:
        """Forget every row, as after a failed step."""


def open_batch(
    model: Any, stop_tokens: Iterable[int], *, pad: bool | None = None, compiled: bool | None = None
) -> TokenBatch:
    """The batch that fits the model's caches. ``pad`` and ``compiled``: :class:`engines.executor.slots.SlotBatch`."""
    from mlx_lm.models.cache import KVCache, make_prompt_cache

    from engines.executor.library_batch import LibraryBatch
    from engines.executor.slots import SlotBatch

    if all(type(layer) is KVCache for layer in make_prompt_cache(model)):
        return SlotBatch(model, stop_tokens, pad=pad, compiled=compiled)
    return LibraryBatch(model, stop_tokens)
