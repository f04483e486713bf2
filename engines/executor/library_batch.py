"""A batch on mlx-lm's own classes, for models whose layers keep more than a plain KV cache (a sliding window, a
recurrent state). ``BatchGenerator.next()`` fuses a decode step, joins and a prefill chunk into one call; the scheduler
wants them apart, so this uses the parts it is made of: the model itself for prefill on a plain cache (exact, cheap to
abandon), ``PromptProcessingBatch.generate`` to join, ``GenerationBatch.next/filter/extend`` to decode.

Joins and leaves rebuild the arrays of every row, which is why :class:`engines.executor.slots.SlotBatch` exists.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from engines.executor.batch import Joining, Prompt, Stepped
from engines.executor.cache import KeptCache, LayerCaches

Sampler = Callable[[Any], Any]


class LibraryBatch:
    """:class:`engines.executor.batch.TokenBatch`."""

    def __init__(self, model: Any, stop_tokens: Iterable[int]) -> None:
        from mlx_lm.generate import StopSequences

        self._model = model
        self._stops = StopSequences([[token] for token in sorted(stop_tokens)])
        self._samplers: dict[float, Sampler] = {}
        self._decoding: Any = None
        self._uids = 0
        self._token_nbytes = 0

    def __len__(self) -> int:
        return len(self._decoding) if self._decoding is not None else 0

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self._decoding.prompt_cache) if self._decoding is not None else 0

    def nbytes_for(self, rows: int, tokens: int) -> int:
        return max(self.nbytes, rows * tokens * self._token_nbytes)

    @property
    def token_nbytes(self) -> int:
        return self._token_nbytes

    @property
    def width(self) -> int:
        return len(self)

    @property
    def padded(self) -> bool:
        return False

    def new_cache(self) -> KeptCache:
        from mlx_lm.models.cache import make_prompt_cache

        return KeptCache([], make_prompt_cache(self._model))

    def prefill(self, prompts: Sequence[Prompt], most: Sequence[int]) -> list[int]:
        return [self._prefill(prompt, limit) for prompt, limit in zip(prompts, most, strict=True)]

    def join(self, joining: Sequence[Joining]) -> list[int]:
        return [self._join(one) for one in joining]

    def step(self) -> list[Stepped]:
        responses = self._decoding.next()
        self._settle([response.prompt_cache for response in responses if response.finish_reason is not None])
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
        tokens: list[int] = self._decoding.tokens[self._decoding.uids.index(uid)]
        return tokens

    def fork(self, uid: int) -> KeptCache:
        cache = self._extract(self._decoding.uids.index(uid))
        self._settle([cache.layers])
        return cache

    def clone(self, cache: KeptCache) -> KeptCache:
        return KeptCache(list(cache.tokens), copy.deepcopy(cache.layers))

    def own(self, cache: KeptCache) -> None:
        """It always does."""

    def tidy(self) -> None:
        """Every leave is a compaction already."""

    def reset(self) -> None:
        self._decoding = None

    def _prefill(self, prompt: Prompt, most: int) -> int:
        import mlx.core as mx

        chunk = prompt.rest[: min(most, len(prompt.rest) - 1)]
        if not chunk:
            return 0
        layers = prompt.cache.layers
        self._model(mx.array([chunk]), cache=layers)
        mx.eval([layer.state for layer in layers])
        prompt.cache.tokens.extend(chunk)
        del prompt.rest[: len(chunk)]
        self._token_nbytes = self._token_nbytes or prompt.cache.nbytes // len(prompt.cache.tokens)
        return len(chunk)

    def _join(self, one: Joining) -> int:
        from mlx_lm.generate import PromptProcessingBatch

        (last,) = one.prompt.rest
        uid = self._uids
        self._uids += 1
        sampler = self._sampler(one.temperature)
        # A new object each time: generate() leaves a used one half empty (its stop_sequences stay).
        joined = PromptProcessingBatch(
            model=self._model,
            uids=[uid],
            caches=[one.prompt.cache.layers],
            tokens=[list(one.prompt.cache.tokens)],
            samplers=[sampler],
            fallback_sampler=sampler,
            logits_processors=[()],
            stop_sequences=[self._stops],
            max_tokens=[one.max_tokens],
        ).generate([[last]])
        one.prompt.rest.clear()
        if self._decoding is None:
            self._decoding = joined
        else:
            self._decoding.extend(joined)
        return uid

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
