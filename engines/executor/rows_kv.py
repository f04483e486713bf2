"""Keys and values of several rows that are at different lengths, and the forward pass over them.

mlx-lm's ``BatchKVCache`` right-aligns its rows and writes all of them at one index. A row that joins, leaves or is
longer than the rest then moves every other row, and the slice it writes to makes MLX copy the whole buffer while the
step before is still in flight. Here rows are left-aligned and each is written at its own length by a scatter: nothing
moves, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

LayerArrays = list[tuple[Any, Any]]
"""Keys and values a layer, each of shape (rows, heads, capacity, head size)."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Where one forward pass writes and what it may see. One for all layers.

    ``offset``: tokens each row holds, (rows,). ``rows`` (rows, 1) and ``columns`` (rows, tokens) index the buffers;
    ``read`` is how many columns are attended to.
    """

    offset: Any
    rows: Any
    columns: Any
    read: int
    mask: Any

    @classmethod
    def at(cls, lengths: Sequence[int], tokens: int, read: int, *, masked: bool = False) -> Frame:
        """With ``masked`` the mask is always an array, so that one kernel serves all lengths."""
        import mlx.core as mx

        frame = cls.masked(mx.array(list(lengths), dtype=mx.int32), tokens, read)
        if not masked and min(lengths) + tokens == read:  # as long as each other and read to the end
            return replace(frame, mask=None if tokens == 1 else "causal")
        return frame

    @classmethod
    def masked(cls, offset: Any, tokens: int, read: int) -> Frame:
        """The same whatever is in ``offset``."""
        import mlx.core as mx

        columns = offset[:, None] + mx.arange(tokens, dtype=mx.int32)
        mask = mx.arange(read, dtype=mx.int32) <= columns[:, None, :, None]
        return cls(offset, mx.arange(offset.shape[0], dtype=mx.int32)[:, None], columns, read, mask)


class LayerRows:
    """What a model takes for the cache of one layer. Without arrays the first write makes them."""

    def __init__(self, capacity: int, arrays: tuple[Any, Any] | None = None) -> None:
        self.capacity = capacity
        self.keys: Any = arrays[0] if arrays is not None else None
        self.values: Any = arrays[1] if arrays is not None else None
        self.frame: Frame | None = None

    @property
    def offset(self) -> Any:
        assert self.frame is not None
        return self.frame.offset

    @property
    def state(self) -> tuple[Any, Any]:
        return self.keys, self.values

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Both (rows, heads, tokens, head size)."""
        frame = self.frame
        assert frame is not None
        if self.keys is None:
            self.keys, self.values = (self._empty(new) for new in (keys, values))
        self.keys[frame.rows, :, frame.columns] = keys.transpose(0, 2, 1, 3)
        self.values[frame.rows, :, frame.columns] = values.transpose(0, 2, 1, 3)
        return self.keys[..., : frame.read, :], self.values[..., : frame.read, :]

    def make_mask(self, tokens: int, return_array: bool = False, window_size: int | None = None) -> Any:
        assert self.frame is not None
        return self.frame.mask

    def _empty(self, like: Any) -> Any:
        import mlx.core as mx

        rows, heads, _, size = like.shape
        return mx.zeros((rows, heads, self.capacity, size), dtype=like.dtype)


@dataclass(slots=True)
class RowKv:
    """One row's keys and values, wherever they are: row ``row`` of ``arrays``, up to ``length``. The arrays may be
    shared with other rows, as nobody writes to them in place. ``arrays`` is None while the row rests in a slot of the
    batch, and before anything was computed."""

    length: int = 0
    arrays: LayerArrays | None = None
    row: int = 0
    slot: int | None = None
    token_nbytes: int = 0

    @property
    def nbytes(self) -> int:
        held = self.length if self.arrays is None else int(self.arrays[0][0].shape[2])
        return held * self.token_nbytes

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        trimmed = min(n, self.length)
        self.length -= trimmed
        return trimmed


Found = tuple[RowKv, LayerArrays, int]
"""A row's state with the arrays and the row in them that it is in now."""


@dataclass(frozen=True, slots=True)
class Source:
    """Rows of one set of arrays: ``rows[i]`` goes to ``targets[i]``, up to ``length``."""

    arrays: LayerArrays
    rows: list[int]
    targets: list[int]
    length: int

    @classmethod
    def of(cls, found: Sequence[Found], targets: Sequence[int]) -> list[Source]:
        """Rows of the same arrays together, so that each set is copied in one go."""
        sources: dict[int, Source] = {}
        for (kv, arrays, row), target in zip(found, targets, strict=True):
            name = id(arrays[0][0])
            before = sources.get(name)
            sources[name] = cls(
                arrays,
                [*(before.rows if before else ()), row],
                [*(before.targets if before else ()), target],
                max(kv.length, before.length if before else 0),
            )
        return list(sources.values())


def placed(buffers: LayerArrays, sources: Sequence[Source]) -> LayerArrays:
    """The buffers with whole rows replaced. The rest of a row is zeroed: nothing of who had it before stays, not even
    a NaN behind the mask."""
    import mlx.core as mx

    result = buffers
    for source in sources:
        rows, targets = mx.array(source.rows, dtype=mx.int32), mx.array(source.targets, dtype=mx.int32)

        def put(buffer: Any, array: Any, rows: Any = rows, targets: Any = targets, length: int = source.length) -> Any:
            taken = array[:, :, :length] if array.shape[0] == 1 else array[rows, :, :length]
            buffer[targets] = mx.pad(taken, [(0, 0), (0, 0), (0, buffer.shape[2] - length), (0, 0)])
            return buffer

        result = [
            (put(keys, source.arrays[i][0]), put(values, source.arrays[i][1]))
            for i, (keys, values) in enumerate(result)
        ]
    return result


def empty_like(arrays: LayerArrays, rows: int, capacity: int) -> LayerArrays:
    """Zeros of the shape that ``arrays`` have beside their rows and capacity."""
    import mlx.core as mx

    def zeros(like: Any) -> Any:
        return mx.zeros((rows, like.shape[1], capacity, like.shape[3]), dtype=like.dtype)

    return [(zeros(keys), zeros(values)) for keys, values in arrays]


def token_nbytes(arrays: LayerArrays) -> int:
    """Bytes a token of a row takes in all layers."""
    return sum(int(array.nbytes) // (int(array.shape[0]) * int(array.shape[2])) for pair in arrays for array in pair)


def begin(*arrays: Any) -> None:
    """Have them computed, without waiting."""
    import mlx.core as mx

    start: Any = mx.async_eval  # its stub has no types
    start(*arrays)


def power_of_two(count: int) -> int:
    """The least power of two that is no less."""
    return 1 << max(count - 1, 0).bit_length()


def up(value: int, step: int) -> int:
    """The least multiple of ``step`` that is no less."""
    return -(-value // step) * step


LEAST_LENGTH = 256


def few(length: int) -> int:
    """The next of a few lengths, a quarter apart at most: 256, 512, 768, 1024, 1536, 2048, 3072, 4096, ..."""
    return up(length, max(LEAST_LENGTH, power_of_two(length) // 4))


def few_read(length: int, capacity: int) -> int:
    """How much of buffers of ``capacity`` is read for rows of up to ``length``: the next of a few lengths, but never
    less than half, so that a capacity goes with a few of them only."""
    return few(max(length, capacity // 2))


def fewest(most: int) -> list[int]:
    """All values of :func:`few` for lengths up to ``most``."""
    lengths = [few(1)]
    while lengths[-1] < most:
        lengths.append(few(lengths[-1] + 1))
    return lengths


def reads(capacity: int) -> list[int]:
    """All values of :func:`few_read` for a capacity."""
    return [length for length in fewest(capacity) if length >= few_read(1, capacity)]
