"""The batch all calls decode in, as a set of slots.

A row that joins is copied into a free slot; a row that leaves is only no longer listened to, and its keys and values
rest in the slot until the slot is needed, the batch shrinks or the call's next turn takes them up. So neither moves
another row or waits for the step in flight. The last token of a prompt goes in with the batch's next step: a join runs
no forward pass of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engines.executor.batch import Joining, Prompt, Stepped
from engines.executor.cache import KeptCache
from engines.executor.compiled import CompiledStep, decoded
from engines.executor.prefill import Prefill
from engines.executor.rows_kv import (
    Found,
    Frame,
    LayerArrays,
    LayerRows,
    RowKv,
    Source,
    begin,
    empty_like,
    few,
    few_read,
    placed,
    power_of_two,
    token_nbytes,
    up,
)

_CAPACITY_STEP = 256
_SHRINK_AFTER_STEPS = 16
_MAX_TEMPERATURE = 2.0


@dataclass(slots=True)
class _Seat:
    """Who decodes in a slot. ``fresh``: its prompt's last token is what the next step reads, so that has no result."""

    uid: int
    tokens: list[int]
    left: int
    temperature: float
    fresh: bool = True


class SlotBatch:
    """:class:`engines.executor.batch.TokenBatch` for models whose layers all keep a plain KV cache.

    ``pad`` (on by default on a GPU) rounds the batch's width, its capacity, the lengths it reads and those of prefill
    up to a few values and masks every pass, so that few shapes have to be compiled and all can be warmed
    (:mod:`engines.llm.mlx_warm`).

    ``compiled`` (on by default if shapes are rounded up): decode steps run as one function a shape
    (:class:`engines.executor.compiled.CompiledStep`), if the model turns out to bear it at the first.
    """

    def __init__(
        self, model: Any, stop_tokens: Iterable[int], *, pad: bool | None = None, compiled: bool | None = None
    ) -> None:
        import mlx.core as mx

        self._model = model
        self._layer_count = len(model.layers)
        self._stops = frozenset(stop_tokens)
        self._pad = mx.default_device() != mx.cpu if pad is None else pad
        self._prefill = Prefill(model, self._pad)
        self._compiled = CompiledStep(model) if (self._pad if compiled is None else compiled) else None
        self.token_nbytes = 0
        self._uids = 0
        self._slots: dict[int, int] = {}
        self._clear()

    def _clear(self) -> None:
        self._layers: list[LayerRows] = []
        self._capacity = 0
        self._next: Any = None
        self._seats: list[_Seat | None] = []
        self._lengths: list[int] = []
        self._resting: dict[int, weakref.ref[KeptCache]] = {}
        self._slots.clear()
        self._roomy_steps = 0

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def nbytes(self) -> int:
        return self.width * self._capacity * self.token_nbytes

    def nbytes_for(self, rows: int, tokens: int) -> int:
        width, capacity = max(self._width_for(rows), self.width), max(self._roomy(tokens + 1), self._capacity)
        return width * capacity * self.token_nbytes

    @property
    def width(self) -> int:
        return len(self._seats)

    @property
    def padded(self) -> bool:
        return self._pad

    def new_cache(self) -> KeptCache:
        return KeptCache([], [RowKv()])

    # --- prompts ----------------------------------------------------------------------------------------------

    def prefill(self, prompts: Sequence[Prompt], most: Sequence[int]) -> list[int]:
        """Prompts of like length in one forward pass each: :class:`engines.executor.prefill.Prefill`."""
        counts = [min(limit, len(prompt.rest) - 1) for prompt, limit in zip(prompts, most, strict=True)]
        if any(count > 0 for count in counts):
            self._prefill.run(prompts, counts, self._find)
            self.token_nbytes = self._prefill.token_nbytes
        return counts

    def _find(self, cache: KeptCache) -> Found:
        kv: RowKv = cache.layers[0]
        if kv.slot is not None:
            return kv, self._arrays(), kv.slot
        assert kv.arrays is not None
        return kv, kv.arrays, kv.row

    # --- joining ----------------------------------------------------------------------------------------------

    def join(self, joining: Sequence[Joining]) -> list[int]:
        import mlx.core as mx

        needed = max(len(one.prompt.cache.tokens) + min(one.max_tokens, _CAPACITY_STEP) for one in joining) + 1
        slots = self._room(len(joining), needed)
        begun = [(one, slot) for one, slot in zip(joining, slots, strict=True) if one.prompt.cache.tokens]
        found = [self._find(one.prompt.cache) for one, _ in begun]
        if found:
            if self._layers[0].keys is None:
                self._set(empty_like(found[0][1], self.width, self._capacity))
            self._set(placed(self._arrays(), Source.of(found, [slot for _, slot in begun])))
        self._next[mx.array(slots)] = mx.array([one.prompt.rest[0] for one in joining], dtype=mx.uint32)
        begin(self._next, [layer.state for layer in self._layers if layer.keys is not None])
        return [self._sit(one, slot) for one, slot in zip(joining, slots, strict=True)]

    def _sit(self, one: Joining, slot: int) -> int:
        uid = self._uids
        self._uids += 1
        tokens = list(one.prompt.cache.tokens)
        temperature = min(max(one.temperature, 0.0), _MAX_TEMPERATURE)
        self._seats[slot] = _Seat(uid, tokens, one.max_tokens, temperature)
        self._lengths[slot] = len(tokens)
        self._slots[uid] = slot
        self._resting.pop(slot, None)
        one.prompt.rest.clear()
        return uid

    def _room(self, count: int, capacity: int) -> list[int]:
        """Free slots for ``count`` rows of up to ``capacity`` tokens. The batch grows if its rows need it; rows at
        rest make way before that."""
        width = max(self._width_for(len(self) + count), self.width)
        if width > self.width or capacity > self._capacity:
            self._resize(width, max(self._roomy(capacity), self._capacity))
        free = self._free()
        if len(free) < count:
            self._move_out()
            free = self._free()
        return free[:count]

    def _roomy(self, capacity: int) -> int:
        return few(capacity) if self._pad else up(capacity, _CAPACITY_STEP)

    def _width_for(self, rows: int) -> int:
        """A power of two, so that a GPU sees few shapes; a CPU, which pays for every row, has steps between them."""
        width = power_of_two(rows)
        between = width // 4 * 3
        return between if not self._pad and rows <= between else width

    def _free(self) -> list[int]:
        return [slot for slot, seat in enumerate(self._seats) if seat is None and self._at_rest(slot) is None]

    def _at_rest(self, slot: int) -> KeptCache | None:
        """Whose keys and values rest in the slot, if somebody still holds the cache and it has not moved on since."""
        reference = self._resting.get(slot)
        cache = reference() if reference is not None else None
        return cache if cache is not None and cache.layers[0].slot == slot else None

    def _resize(self, width: int, capacity: int) -> None:
        import mlx.core as mx

        more, longer = width - self.width, capacity - self._capacity
        if not self._layers:
            self._layers = [LayerRows(capacity) for _ in range(self._layer_count)]
            self._next = mx.zeros((width,), dtype=mx.uint32)
        else:
            self._next = mx.pad(self._next, [(0, more)])
            pads = [(0, more), (0, 0), (0, longer), (0, 0)]
            for layer in self._layers:
                layer.capacity = capacity
                if layer.keys is not None:
                    layer.keys, layer.values = mx.pad(layer.keys, pads), mx.pad(layer.values, pads)
        self._seats += [None] * more
        self._lengths += [0] * more
        self._capacity = capacity

    # --- decoding ---------------------------------------------------------------------------------------------

    def step(self) -> list[Stepped]:
        """One token for every row, but for those that joined since the last step: theirs comes with the next."""
        longest = max(self._lengths) + 1  # rows at rest are written to as well, behind what they hold
        if longest > self._capacity:
            self._resize(self.width, self._roomy(longest))
        read = max(self._lengths[slot] for slot in self._slots.values()) + 1
        if self._pad:
            read = few_read(read, self._capacity)
        read_now = self._next
        self._next = self._sample(self._logits(read_now, read))
        # One after the other: what is begun together is held until all of it is done, and the next step copies what it
        # would write in place. The caches too: of a model that does not use one for its logits it would grow a graph
        # for ever (mlx-lm 1662).
        begin(self._next)
        begin([layer.state for layer in self._layers])
        self.token_nbytes = self.token_nbytes or token_nbytes(self._arrays())
        tokens = read_now.tolist()  # of the step before: the one just begun goes on
        return [stepped for slot in list(self._slots.values()) if (stepped := self._advance(slot, tokens[slot]))]

    def _logits(self, tokens: Any, read: int) -> Any:
        """Built, not computed. Nothing else holds the buffers then, so they are written in place."""
        step = self._compiled
        if step is not None and step.usable and all(layer.keys is not None for layer in self._layers):
            logits, arrays = step(tokens, self._lengths, read, self._arrays())
            self._set(arrays)
            return logits
        return decoded(self._model, tokens, Frame.at(self._lengths, 1, read, masked=self._pad), self._layers)

    def _advance(self, slot: int, token: int) -> Stepped | None:
        seat = self._seats[slot]
        assert seat is not None
        self._lengths[slot] += 1
        seat.tokens.append(token)
        if seat.fresh:
            seat.fresh = False
            return None
        seat.left -= 1
        finish: Literal["stop", "length"] | None = None
        if token in self._stops:
            finish = "stop"
        elif seat.left <= 0:
            finish = "length"
        return Stepped(seat.uid, token, finish, self._rest(slot) if finish is not None else None)

    def _sample(self, logits: Any) -> Any:
        import mlx.core as mx

        greedy = mx.argmax(logits, axis=-1)
        temperatures = [seat.temperature if seat is not None else 0.0 for seat in self._seats]
        if not any(temperatures):
            return greedy
        warm = mx.array(temperatures)
        drawn = mx.random.categorical(logits.astype(mx.float32) / mx.maximum(warm, 1e-3)[:, None])
        return mx.where(warm > 0, drawn, greedy)

    # --- leaving ----------------------------------------------------------------------------------------------

    def leave(self, uids: Iterable[int]) -> dict[int, KeptCache]:
        return {uid: self._rest(self._slots[uid]) for uid in uids if uid in self._slots}

    def _rest(self, slot: int) -> KeptCache:
        """The row leaves; what it holds stays where it is as long as somebody holds the cache returned."""
        seat = self._seats[slot]
        assert seat is not None
        self._seats[slot] = None
        del self._slots[seat.uid]
        cache = KeptCache(seat.tokens, [RowKv(self._lengths[slot], None, 0, slot, self.token_nbytes)])
        self._resting[slot] = weakref.ref(cache)
        return cache

    def tidy(self) -> None:
        if not self._layers:
            return
        for slot in [slot for slot in self._resting if self._at_rest(slot) is None]:
            del self._resting[slot]
            self._lengths[slot] = 0 if self._seats[slot] is None else self._lengths[slot]
        if not self._slots:
            self._move_out()
            self._clear()
        elif self._roomy_steps >= _SHRINK_AFTER_STEPS:
            self._shrink()
        elif self._width_for(len(self)) < self.width or self._reads_too_much():
            self._roomy_steps += 1
        else:
            self._roomy_steps = 0

    def _reads_too_much(self) -> bool:
        """Whether the longest row is so much shorter than the buffers that a step reads more than it would of less."""
        if not self._pad:
            return False
        longest = max(self._lengths[slot] for slot in self._slots.values()) + 1
        return few(longest) < few_read(longest, self._capacity)

    def _shrink(self) -> None:
        import mlx.core as mx

        self._move_out()
        live = sorted(self._slots.values())
        width = self._width_for(len(live))
        kept = live + [slot for slot in range(self.width) if slot not in set(live)][: width - len(live)]
        capacity = self._roomy(max(self._lengths[slot] for slot in live) + 1)
        taken = mx.array(kept, dtype=mx.int32)
        self._set([(keys[taken, :, :capacity], values[taken, :, :capacity]) for keys, values in self._arrays()])
        self._next = self._next[taken]
        begin(self._next, [layer.state for layer in self._layers])
        self._seats = [self._seats[slot] for slot in kept]
        self._lengths = [self._lengths[slot] if seat else 0 for slot, seat in zip(kept, self._seats, strict=True)]
        self._slots = {seat.uid: slot for slot, seat in enumerate(self._seats) if seat is not None}
        self._capacity = capacity
        self._roomy_steps = 0

    def _move_out(self) -> None:
        """Give every row at rest a place of its own, in one go."""
        import mlx.core as mx

        moved: list[KeptCache] = []
        for slot in list(self._resting):
            cache = self._at_rest(slot)
            if cache is not None:
                kv: RowKv = cache.layers[0]
                cache.layers = [self._copied(self._arrays(), slot, kv.length)]
                moved.append(cache)
        self._resting.clear()
        mx.eval([cache.layers[0].arrays for cache in moved])
        for slot, seat in enumerate(self._seats):
            if seat is None:
                self._lengths[slot] = 0

    # --- copies -----------------------------------------------------------------------------------------------

    def tokens_of(self, uid: int) -> Sequence[int]:
        seat = self._seats[self._slots[uid]]
        assert seat is not None
        return seat.tokens

    def fork(self, uid: int) -> KeptCache:
        import mlx.core as mx

        slot = self._slots[uid]
        tokens = list(self.tokens_of(uid))
        kv = self._copied(self._arrays(), slot, len(tokens))
        mx.eval(kv.arrays)
        return KeptCache(tokens, [kv])

    def clone(self, cache: KeptCache) -> KeptCache:
        """No bytes are copied, but for a row at rest: arrays are never changed in place under one who holds them."""
        if cache.layers[0].slot is not None:
            self._copy_out(cache)
        kv: RowKv = cache.layers[0]
        return KeptCache(list(cache.tokens), [RowKv(kv.length, kv.arrays, kv.row, None, kv.token_nbytes)])

    def own(self, cache: KeptCache) -> None:
        """A row at rest in its slot stays there: what it holds is moved out when the slot is needed."""
        kv: RowKv = cache.layers[0]
        if kv.arrays is None:
            return
        rows, _, capacity, _ = kv.arrays[0][0].shape
        if (int(rows), int(capacity)) != (1, kv.length):
            self._copy_out(cache)

    def _copy_out(self, cache: KeptCache) -> None:
        import mlx.core as mx

        kv, arrays, row = self._find(cache)
        cache.layers = [self._copied(arrays, row, kv.length)]
        mx.eval(cache.layers[0].arrays)

    def _copied(self, arrays: LayerArrays, row: int, length: int) -> RowKv:
        import mlx.core as mx

        copies = [
            (mx.contiguous(keys[row : row + 1, :, :length]), mx.contiguous(values[row : row + 1, :, :length]))
            for keys, values in arrays
        ]
        return RowKv(length, copies, 0, None, token_nbytes(arrays))

    def reset(self) -> None:
        for slot in list(self._resting):
            cache = self._at_rest(slot)
            if cache is not None:
                cache.lost = True
        self._clear()

    def _arrays(self) -> LayerArrays:
        return [layer.state for layer in self._layers]

    def _set(self, arrays: LayerArrays) -> None:
        for layer, (keys, values) in zip(self._layers, arrays, strict=True):
            layer.keys, layer.values, layer.capacity = keys, values, int(keys.shape[2])
