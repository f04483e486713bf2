"""One matrix product in place of several that read the same input: q, k and v of attention, gate and up of a
feed-forward. A GPU's decode step is limited by how many kernels the processor hands it, and of 28 layers' 196 products
this saves 84.

A model's code is not touched: it still calls each projection. The first call with an input computes all of them, and
each hands out its part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import structlog

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names that mlx-lm's models give projections of one input."""

_log = structlog.get_logger(__name__)

_Site = tuple[Any, tuple[str, ...]]
"""A module, and which of its projections go together."""


def fuse(model: Any) -> int:
    """Join the projections of a loaded mlx-lm model, in place, for inference only. Returns how many products a pass
    does without now.

    Joined are plain and quantised linear layers of one kind, of which the model calls each once with one and the same
    input: a pass over one token is built for that, and never computed. All else stays as it is. No more memory is
    needed than one group's beside the model. For the MLX thread.
    """
    import mlx.core as mx

    sites = [
        (module, names)
        for module in model.modules()
        for names in GROUPS
        if all(name in module for name in names) and _alike([module[name] for name in names])
    ]
    if not sites:
        return 0
    try:
        together = _of_one_input(model, sites)
    except Exception as error:  # noqa: BLE001 (a model that cannot be looked into so is left as it is)
        _log.warning("projections are left apart: the model refused a trial", error=f"{type(error).__name__}: {error}")
        return 0
    for module, names in together:
        _join(module, names)
    mx.clear_cache()  # of the old weights it holds as much as its limit allows
    return sum(len(names) - 1 for _, names in together)


def _join(module: Any, names: Sequence[str]) -> None:
    import mlx.core as mx

    layers = [module[name] for name in names]
    ends = _ends(layers)
    wide = layers[0]
    for key in _arrays(wide):
        wide[key] = mx.concatenate([layer[key] for layer in layers], axis=0)
        mx.eval(wide[key])
    shared = _Shared(wide, ends)
    make = _part_class()
    for at, name in enumerate(names):
        module[name] = make(shared, at)


class _Shared:
    """Computes for all parts at the first that asks with an input, and lets go of it with the last."""

    __slots__ = ("_ends", "_input", "_left", "wide")

    def __init__(self, wide: Any, ends: list[int]) -> None:
        self.wide = wide
        self._ends = ends
        self._input: Any = None
        self._left: dict[int, Any] = {}

    def part(self, at: int, x: Any) -> Any:
        import mlx.core as mx

        if x is not self._input or at not in self._left:
            self._left = dict(enumerate(mx.split(self.wide(x), self._ends, axis=-1)))
            self._input = x
        part = self._left.pop(at)
        if not self._left:
            self._input = None
        return part


def _part_class() -> Callable[[_Shared, int], Any]:
    import mlx.nn as nn

    class Part(nn.Module):  # type: ignore[misc]
        """Stands where a projection was. The first holds the weights of all."""

        def __init__(self, shared: _Shared, at: int) -> None:
            super().__init__()
            if at == 0:
                self.wide = shared.wide
            self._part = shared.part
            self._at = at

        def __call__(self, x: Any) -> Any:
            return self._part(self._at, x)

    return Part


# --- which ----------------------------------------------------------------------------------------------------


def _alike(layers: Sequence[Any]) -> bool:
    """Whether their outputs are rows of one weight."""
    import mlx.nn as nn

    first = layers[0]
    if type(first) not in (nn.Linear, nn.QuantizedLinear) or any(type(layer) is not type(first) for layer in layers):
        return False
    if len({id(layer) for layer in layers}) < len(layers) or len({_kind(layer) for layer in layers}) > 1:
        return False
    return all(array.shape[:1] == layer["weight"].shape[:1] for layer in layers for array in _arrays(layer).values())


def _kind(layer: Any) -> tuple[Any, ...]:
    arrays = tuple((key, str(array.dtype), tuple(array.shape[1:])) for key, array in sorted(_arrays(layer).items()))
    return arrays, *(getattr(layer, name, None) for name in ("group_size", "bits", "mode"))


def _arrays(layer: Any) -> dict[str, Any]:
    import mlx.core as mx

    return {key: value for key, value in layer.items() if isinstance(value, mx.array)}


def _ends(layers: Sequence[Any]) -> list[int]:
    """Where each but the last ends in the product of all."""
    ends: list[int] = []
    for layer in layers[:-1]:
        ends.append(int(layer["weight"].shape[0]) + (ends[-1] if ends else 0))
    return ends


def _of_one_input(model: Any, sites: Sequence[_Site]) -> list[_Site]:
    """The sites whose projections are each called once, with the same array: not those of attention across two
    sequences, nor of layers that take another's keys and values."""
    import mlx.core as mx

    heard: dict[tuple[int, str], list[Any]] = {(at, name): [] for at, (_, names) in enumerate(sites) for name in names}
    with _listening(sites, heard):
        model(mx.array([[0]]))
    together = []
    for at, (module, names) in enumerate(sites):
        inputs = [heard[at, name] for name in names]
        if all(len(one) == 1 and one[0] is inputs[0][0] for one in inputs):
            together.append((module, names))
    return together


@contextmanager
def _listening(sites: Sequence[_Site], heard: dict[tuple[int, str], list[Any]]) -> Iterator[None]:
    originals = [
        (module, name, module[name], heard[at, name]) for at, (module, names) in enumerate(sites) for name in names
    ]

    def listener(layer: Any, inputs: list[Any]) -> Callable[[Any], Any]:
        def listen(x: Any) -> Any:
            inputs.append(x)
            return layer(x)

        return listen

    try:
        for module, name, layer, inputs in originals:
            module[name] = listener(layer, inputs)
        yield
    finally:
        for module, name, layer, _ in originals:
            module[name] = layer
