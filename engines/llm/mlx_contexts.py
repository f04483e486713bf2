"""What an mlx-lm engine remembers of its calls: their KV caches between turns, the agents' system prompts computed
once, and how much of each history was cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from engines.executor.batch import Prompt, TokenBatch
from engines.executor.cache import KeptCache, KeptCaches, SharedPrefixes, common_prefix
from engines.llm.mlx_words import Words
from engines.llm.prompt_fit import fit_history
from streaming.jobs import Message

_MAX_REMEMBERED_CUTS = 1024
_MAX_SHARED = 32
_LEAST_SHARED_TOKENS = 4
_SHARED_BYTES_PART = 8
"""Shared prefixes take at most one part in so many of the bytes for KV caches."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RowsLimits:
    """``speech_reserve_s``: what the first clause's speech needs of the time until the first-audio deadline.
    ``max_kv_bytes`` bounds all KV caches; by default a quarter of a GPU's memory, 2 GiB on a CPU. ``warm_s`` bounds the
    warm-up; by default it is short on a CPU, where no shape has to be compiled. ``pad``: as
    :class:`engines.executor.slots.SlotBatch` has it."""

    max_context_tokens: int
    max_generations: int
    prefill_chunk_tokens: int
    max_kv_bytes: int | None
    max_kept_calls: int
    warm_s: float | None
    speech_reserve_s: float
    pad: bool | None = None


class Contexts:
    """For the MLX thread. ``max_bytes`` bounds all KV caches together, those in use by others included
    (:meth:`make_room`)."""

    def __init__(self, batch: TokenBatch, words: Words, max_tokens: int, max_bytes: int, max_calls: int) -> None:
        self._batch = batch
        self._words = words
        self._max_tokens = max_tokens
        self._max_bytes = max_bytes
        self.kept = KeptCaches(max_bytes, max_calls)
        self.shared = SharedPrefixes(max_bytes // _SHARED_BYTES_PART, _MAX_SHARED)
        self._cuts: dict[str, int] = {}

    def fit(self, call: str, messages: Sequence[Message]) -> list[int]:
        """The call's next prompt. Raises :class:`engines.llm.history.ContextTooLongError`."""
        fitted = fit_history(messages, self._words.encode, self._max_tokens, self._cuts.pop(call, 0))
        if fitted.dropped:
            self._cuts[call] = fitted.dropped
            if len(self._cuts) > _MAX_REMEMBERED_CUTS:
                del self._cuts[next(iter(self._cuts))]
        return fitted.tokens

    def make_room(self, nbytes: int, in_use: int) -> bool:
        """Whether ``nbytes`` more have room beside the ``in_use``; caches at rest make way for them, oldest first."""
        while in_use + self.kept.nbytes + self.shared.nbytes + nbytes > self._max_bytes:
            if not self.kept.shed() and not self.shared.shed():
                return False
        return True

    def system_prefix(self, messages: Sequence[Message], tokens: Sequence[int]) -> list[int]:
        """What of this prompt is the agent's alone. Empty where it is not worth sharing."""
        try:
            prefix = self._words.system_prefix(messages)
        except Exception:  # noqa: BLE001 (a template may refuse the probe; sharing only saves time)
            _log.debug("no system prefix for this template", exc_info=True)
            return []
        whole = common_prefix(prefix, tokens[:-1]) == len(prefix)
        return prefix if whole and len(prefix) >= _LEAST_SHARED_TOKENS else []

    def cache_for(
        self, call: str, tokens: Sequence[int], prefix: Sequence[int], beside: Sequence[Prompt | int]
    ) -> KeptCache:
        """The cache that saves most of this prompt's prefill: the call's kept one, a copy of another row's of the same
        call (``beside``: prompts, or uids of rows; a speculation runs beside the reply that is still being generated),
        or the agent's system prompt."""
        saved = self.kept.shared(call, tokens)
        shared = self.shared.get(prefix) if len(prefix) > saved else None
        for other in beside:
            copied = self._copy_if_longer(other, tokens, saved if shared is None else len(prefix))
            if copied is not None:
                return copied
        if shared is not None:
            return self._batch.clone(shared)
        return self.kept.take(call, tokens) or self._batch.new_cache()

    def _copy_if_longer(self, other: Prompt | int, tokens: Sequence[int], saved: int) -> KeptCache | None:
        held = other.cache.tokens if isinstance(other, Prompt) else self._batch.tokens_of(other)
        reuse = min(common_prefix(held, tokens), len(tokens) - 1)
        if reuse <= saved:
            return None
        copied = self._batch.clone(other.cache) if isinstance(other, Prompt) else self._batch.fork(other)
        return copied if copied.cut_to(reuse) else None

    def anew(self, prompt: Prompt) -> Prompt:
        """The same prompt with nothing of it computed: its cache was lost."""
        return Prompt(self._batch.new_cache(), [*prompt.cache.tokens, *prompt.rest])

    def share(self, cache: KeptCache) -> None:
        """This cache holds an agent's system prompt and no more: keep a copy for other calls."""
        shared = self._batch.clone(cache)
        self._batch.own(shared)
        self.shared.put(shared)

    def keep(self, call: str, cache: KeptCache) -> None:
        """Hold the cache for the call's next turn."""
        self._batch.own(cache)
        self.kept.keep(call, cache)

    def forget(self, call: str) -> None:
        self.kept.forget(call)
        self._cuts.pop(call, None)

    def clear(self) -> None:
        self.kept.clear()
        self.shared.clear()
        self._cuts.clear()

    def snapshot(self) -> dict[str, int]:
        return {
            "kept_kv_bytes": self.kept.nbytes,
            "kept_calls": len(self.kept),
            "kept_evicted": self.kept.evicted,
            "shared_kv_bytes": self.shared.nbytes,
            "shared_prefixes": len(self.shared),
            "shared_hits": self.shared.hits,
        }
