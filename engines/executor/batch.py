"""The one place that touches mlx-lm's batch classes; written against mlx-lm 0.32.2.

``BatchGenerator.next()`` fuses a decode step, joins and a prefill chunk into one call. The scheduler wants them apart,
so this uses the parts it is made of: the model itself for prefill on a plain cache (exact, cheap to abandon),
``PromptProcessingBatch.generate`` to join, ``GenerationBatch.next/filter/extend`` to decode. ``REQUIRED`` names what is
used; a test fails clearly when an upgrade moves one.

All of it is for the MLX thread only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engines.executor.cache import KeptCache, LayerCaches

REQUIRED: dict[str, tuple[str, ...]] = {
    "mlx_lm.generate:PromptProcessingBatch": ("generate",),
    "mlx_lm.generate:GenerationBatch": ("next", "filter", "extend", "extract_cache"),
    "mlx_lm.generate:StopSequences": ("matcher",),
    "mlx_lm.generate:generation_stream": (),
    "mlx_lm.models.cache:make_prompt_cache": (),
    "mlx_lm.models.cache:KVCache": ("merge", "trim", "is_trimmable", "size", "state", "nbytes"),
    "mlx_lm.models.cache:BatchKVCache": ("extract", "filter", "extend", "merge", "state"),
    "mlx_lm.sample_utils:make_sampler": (),
}
"""Names of mlx-lm this module (and the shutdown recipe) relies on, with the attributes used."""

REQUIRED_ARGUMENTS = (
    "model",
    "uids",
    "caches",
    "tokens",
    "samplers",
    "fallback_sampler",
    "logits_processors",
    "stop_sequences",
    "max_tokens",
)
"""Arguments of ``PromptProcessingBatch`` used."""

Sampler = Callable[[Any], Any]


@dataclass(slots=True)
class Prompt:
    """A prompt on its way into the batch: ``cache`` holds what is computed, ``rest`` the tokens still to compute (at
    least one)."""

    cache: KeptCache
    rest: list[int]


@dataclass(frozen=True, slots=True)
class Stepped:
    """One row's part of a decode step. ``cache`` comes with the row's last token: it has left the batch then."""

    uid: int
    token: int
    finish: Literal["stop", "length"] | None
    cache: KeptCache | None


class TokenBatch:
    """Prefill, join, decode and leave, each a quantum or a part of one.

    One look-ahead step is always in flight: a row's cache holds every token that was returned, and its successor is
    being computed.
    """

    def __init__(self, model: Any, stop_tokens: Iterable[int]) -> None:
        from mlx_lm.generate import StopSequences

        self._model = model
        self._stops = StopSequences([[token] for token in sorted(stop_tokens)])
        self._samplers: dict[float, Sampler] = {}
        self._decoding: Any = None
        self._uids = 0

    def __len__(self) -> int:
        return len(self._decoding) if self._decoding is not None else 0

    def new_cache(self) -> KeptCache:
        from mlx_lm.models.cache import make_prompt_cache

        return KeptCache([], make_prompt_cache(self._model))

    def prefill(self, prompt: Prompt, max_tokens: int) -> int:
        """Compute up to ``max_tokens`` of the prompt, never its last token. Returns how many were computed."""
        import mlx.core as mx

        chunk = prompt.rest[: min(max_tokens, len(prompt.rest) - 1)]
        if not chunk:
            return 0
        layers = prompt.cache.layers
        self._model(mx.array([chunk]), cache=layers)
        mx.eval([layer.state for layer in layers])
        prompt.cache.tokens.extend(chunk)
        del prompt.rest[: len(chunk)]
        return len(chunk)

    def join(self, prompt: Prompt, max_tokens: int, temperature: float) -> int:
        """Compute the prompt's last token and make it a row of the batch. Returns the row's uid."""
        from mlx_lm.generate import PromptProcessingBatch

        (last,) = prompt.rest
        uid = self._uids
        self._uids += 1
        sampler = self._sampler(temperature)
        # A new object each time: generate() leaves a used one half empty (its stop_sequences stay).
        joining = PromptProcessingBatch(
            model=self._model,
            uids=[uid],
            caches=[prompt.cache.layers],
            tokens=[list(prompt.cache.tokens)],
            samplers=[sampler],
            fallback_sampler=sampler,
            logits_processors=[()],
            stop_sequences=[self._stops],
            max_tokens=[max_tokens],
        ).generate([[last]])
        prompt.rest.clear()
        if self._decoding is None:
            self._decoding = joining
        else:
            self._decoding.extend(joining)
        return uid

    def step(self) -> list[Stepped]:
        """One token for every row. Rows that end leave the batch here."""
        responses = self._decoding.next()
        ended = [response.prompt_cache for response in responses if response.finish_reason is not None]
        self._settle(ended)
        return [
            Stepped(
                uid=response.uid,
                token=int(response.token),
                finish=response.finish_reason,
                cache=None
                if response.finish_reason is None
                else KeptCache(list(response.all_tokens), response.prompt_cache),
            )
            for response in responses
        ]

    def leave(self, uids: Iterable[int]) -> dict[int, KeptCache]:
        """Take rows out in one go and return their caches. Unknown uids are left out."""
        if self._decoding is None:
            return {}
        leaving = set(uids)
        places = {uid: place for place, uid in enumerate(self._decoding.uids) if uid in leaving}
        caches = {uid: self._extract(place) for uid, place in places.items()}
        self._settle([cache.layers for cache in caches.values()])
        if places:
            self._decoding.filter([place for place, uid in enumerate(self._decoding.uids) if uid not in places])
        self._drop_if_empty()
        return caches

    def tokens_of(self, uid: int) -> Sequence[int]:
        """The tokens in the cache of a row of the batch."""
        tokens: list[int] = self._decoding.tokens[self._decoding.uids.index(uid)]
        return tokens

    def fork(self, uid: int) -> KeptCache:
        """A copy of the cache of a row of the batch, as it is now."""
        cache = self._extract(self._decoding.uids.index(uid))
        self._settle([cache.layers])
        return cache

    def clone(self, cache: KeptCache) -> KeptCache:
        """A copy of a cache outside the batch (mlx-lm's caches change in place)."""
        return KeptCache(list(cache.tokens), copy.deepcopy(cache.layers))

    def reset(self) -> None:
        """Forget every row, as after a failed step."""
        self._decoding = None

    def _extract(self, place: int) -> KeptCache:
        return KeptCache(list(self._decoding.tokens[place]), self._decoding.extract_cache(place))

    def _settle(self, caches: list[LayerCaches]) -> None:
        """Evaluate caches that left: a lazy one would hold the whole batch's arrays and the step in flight."""
        import mlx.core as mx

        if caches:
            mx.eval([layer.state for layers in caches for layer in layers])
        self._drop_if_empty()

    def _drop_if_empty(self) -> None:
        if self._decoding is not None and not self._decoding.uids:
            self._decoding = None  # an emptied GenerationBatch keeps stale tokens, so the next row starts a new one

    def _sampler(self, temperature: float) -> Sampler:
        """One object for all rows of a temperature, so that they are sampled in one call."""
        from mlx_lm.sample_utils import make_sampler

        step = min(max(round(temperature, 1), 0.0), 2.0)  # bounds the number of objects too
        if step not in self._samplers:
            self._samplers[step] = make_sampler(temp=step)
        return self._samplers[step]
