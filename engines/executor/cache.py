"""Memory rules of the MLX thread: when MLX's buffer cache may be cleared, and whose KV cache is kept.

MLX issue 3450: ``mx.clear_cache()`` between two evals of a streaming decoder that holds state has crashed the process.
It was closed without a commit that names it, so it is treated as live. Libraries call it themselves inside generation
(mlx-lm after prefill chunks, mlx-audio after segments), and look the function up at call time: rebinding it turns
their calls into requests. The cache limit is the steady control of memory; clearing is only tidying.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

LayerCaches = list[Any]
"""One mlx-lm cache object a layer."""


class ClearCacheGuard:
    """Serves requests to clear only at rest. Lives on the MLX thread.

    ``module`` is ``mlx.core`` (anything with ``clear_cache``). ``drain`` must finish all work in flight on every stream
    of the thread. A request older than ``hold_after_s`` holds new streams back until none is open, at most ``hold_s``
    at a time: a hint about memory must not keep callers waiting behind somebody's long reply.
    """

    def __init__(
        self,
        module: Any,
        drain: Callable[[], None],
        clock: Callable[[], float],
        *,
        hold_after_s: float = 10.0,
        hold_s: float = 2.0,
    ) -> None:
        self._module = module
        self._drain = drain
        self._clock = clock
        self._hold_after_s = hold_after_s
        self._hold_s = hold_s
        self._real: Callable[[], None] | None = None
        self._pending_since: float | None = None
        self.requests = 0
        self.served = 0
        self.holds_given_up = 0

    def install(self) -> None:
        """Rebind ``clear_cache`` to :meth:`request`."""
        self._real = self._module.clear_cache
        self._module.clear_cache = self.request

    def uninstall(self) -> None:
        """Give the real function back. Safe to call twice."""
        if self._real is not None:
            self._module.clear_cache = self._real
            self._real = None

    def request(self) -> None:
        """What a library's ``mx.clear_cache()`` does while the guard is installed."""
        self.requests += 1
        if self._pending_since is None:
            self._pending_since = self._clock()

    def demand(self) -> None:
        """A model was unloaded: a request that is old already, so that new streams wait from now on."""
        self.requests += 1
        self._pending_since = self._clock() - self._hold_after_s

    @property
    def pending(self) -> bool:
        return self._pending_since is not None

    @property
    def holding(self) -> bool:
        """Whether new streams have to wait now."""
        if self._pending_since is None:
            return False
        age_s = self._clock() - self._pending_since
        return self._hold_after_s <= age_s < self._hold_after_s + self._hold_s

    def serve(self, open_streams: int) -> None:
        """Clear now if asked to and no stream is open. Call between quanta."""
        if self._pending_since is None or self._real is None:
            return
        if open_streams == 0:
            self._drain()
            self._real()
            self._pending_since = None
            self.served += 1
        elif self._clock() - self._pending_since >= self._hold_after_s + self._hold_s:
            self._pending_since = self._clock()
            self.holds_given_up += 1


class LayerCache(Protocol):
    """What is used of mlx-lm's cache objects."""

    @property
    def nbytes(self) -> int: ...

    def is_trimmable(self) -> bool: ...

    def trim(self, n: int) -> int: ...


@dataclass(slots=True, weakref_slot=True)
class KeptCache:
    """A KV cache at rest. ``tokens`` are the ids whose keys and values are in ``layers``, in order. ``lost``: what it
    held is gone (a batch failed), so it is good for nothing."""

    tokens: list[int]
    layers: LayerCaches
    lost: bool = False

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def cut_to(self, length: int) -> bool:
        """Rewind to the first ``length`` tokens. False when the model's cache can't be rewound: it is useless then."""
        surplus = len(self.tokens) - length
        if self.lost:
            return False
        if surplus == 0:
            return True
        if not all(layer.is_trimmable() for layer in self.layers):
            return False
        if any(layer.trim(surplus) != surplus for layer in self.layers):
            return False
        del self.tokens[length:]
        return True


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens the two begin with in common."""
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length


class KeptCaches:
    """The last KV cache of each call between its turns, least recently used dropped first.

    Losing one costs time, never correctness: the message list is the truth, and a cache only saves the prefill of the
    prefix they share.
    """

    def __init__(self, max_bytes: int, max_calls: int) -> None:
        self._max_bytes = max_bytes
        self._max_calls = max_calls
        self._kept: OrderedDict[str, KeptCache] = OrderedDict()
        self._nbytes = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def shared(self, call: str, prompt: Sequence[int]) -> int:
        """How many of the prompt's first tokens the call's cache holds."""
        kept = self._kept.get(call)
        return common_prefix(kept.tokens, prompt) if kept is not None and not kept.lost else 0

    def take(self, call: str, prompt: Sequence[int]) -> KeptCache | None:
        """The call's cache, cut to what it shares with the prompt but for the last token, which has to be computed
        for its logits. The caller owns it until :meth:`keep`."""
        kept = self._pop(call)
        if kept is None:
            return None
        reuse = min(common_prefix(kept.tokens, prompt), len(prompt) - 1)
        return kept if reuse > 0 and kept.cut_to(reuse) else None

    def keep(self, call: str, cache: KeptCache) -> None:
        """Hold the cache for the call's next turn, in place of the one before it."""
        self._pop(call)
        if not cache.tokens:
            return
        self._kept[call] = cache
        self._nbytes += cache.nbytes
        while self._kept and (len(self._kept) > self._max_calls or self._nbytes > self._max_bytes):
            self.shed()

    def forget(self, call: str) -> None:
        self._pop(call)

    def shed(self) -> bool:
        """Drop the least recently used to make room. False when there is none."""
        if not self._kept:
            return False
        self._pop(next(iter(self._kept)))
        self.evicted += 1
        return True

    def clear(self) -> None:
        self._kept.clear()
        self._nbytes = 0

    def _pop(self, call: str) -> KeptCache | None:
        kept = self._kept.pop(call, None)
        if kept is not None:
            self._nbytes -= kept.nbytes
        return kept


class SharedPrefixes:
    """KV caches of the beginnings that calls have in common: an agent's system message. Least recently used dropped
    first. What is handed in must be made of the agent's words alone; it is looked up by exactly its tokens."""

    def __init__(self, max_bytes: int, max_entries: int) -> None:
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: OrderedDict[tuple[int, ...], KeptCache] = OrderedDict()
        self._nbytes = 0
        self.hits = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def get(self, prefix: Sequence[int]) -> KeptCache | None:
        """The cache of exactly these tokens. It stays here: copy it."""
        key = tuple(prefix)
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
            self.hits += 1
        return found

    def put(self, cache: KeptCache) -> None:
        key = tuple(cache.tokens)
        if not key or key in self._entries:
            return
        self._entries[key] = cache
        self._nbytes += cache.nbytes
        while self._entries and (len(self._entries) > self._max_entries or self._nbytes > self._max_bytes):
            self.shed()

    def shed(self) -> bool:
        """Drop the least recently used to make room. False when there is none."""
        if not self._entries:
            return False
        _, dropped = self._entries.popitem(last=False)
        self._nbytes -= dropped.nbytes
        return True

    def clear(self) -> None:
        self._entries.clear()
        self._nbytes = 0
