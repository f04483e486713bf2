"""Which kernels a piece of code asks MLX for, as far as CUDA makes them at first use.

There a gather or scatter is made for its types of number and of index, a reduction or a copy for its number of axes,
and a product, a convolution or an attention is planned for its very shape. So a call that warm-up has not made is a
stall of up to seconds. Recorded by wrapping the functions of ``mlx.core`` and what ``mx.array`` does for indexing and
``@``, on any device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Kernel = tuple[Any, ...]

SHAPED = {
    "scaled_dot_product_attention",
    "matmul",
    "addmm",
    "quantized_matmul",
    "conv1d",
    "conv_transpose1d",
    "conv_general",
    "rfft",
    "irfft",
}
"""Planned for the shapes of what they get; all else for types and numbers of axes."""
LEFT_OUT = {
    *("eval", "async_eval", "array", "synchronize", "stop_gradient", "depends"),
    *("get_active_memory", "get_cache_memory", "clear_cache", "clear_streams", "device_info", "default_device"),
    *("zeros", "ones", "full", "arange", "zeros_like", "ones_like"),
    *("reshape", "transpose", "swapaxes", "expand_dims", "squeeze", "broadcast_to", "flatten", "unflatten"),
}
"""No work, or a plain fill that comes with MLX compiled."""


class Kernels:
    def __init__(self) -> None:
        self._seen: set[Kernel] = set()

    def take(self) -> set[Kernel]:
        """What was asked for since the last time."""
        seen, self._seen = self._seen, set()
        return seen

    def note(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        describe = _shape if name in SHAPED else _kind
        named = tuple((key, describe(value)) for key, value in sorted(options.items()))
        self._seen.add((name, *(describe(value) for value in arguments), *named))


@contextmanager
def recorded() -> Iterator[Kernels]:
    """Everything that is asked of MLX inside, on any thread. One around loading, warming and traffic: what a module
    keeps of MLX when it is loaded stays wrapped."""
    import mlx.core as mx

    kernels = Kernels()
    undo: list[Callable[[], None]] = []

    def wrap(owner: Any, attribute: str, name: str) -> None:
        real = getattr(owner, attribute)

        def wrapper(*arguments: Any, **options: Any) -> Any:
            kernels.note(name, arguments, options)
            return real(*arguments, **options)

        setattr(owner, attribute, wrapper)
        undo.append(lambda: setattr(owner, attribute, real))

    for module in (mx, mx.fast, mx.random, mx.fft):
        for name in dir(module):
            if not name.startswith("_") and name not in LEFT_OUT and type(getattr(module, name)).__name__ == "nb_func":
                wrap(module, name, name)
    for method, name in (("__getitem__", "get"), ("__setitem__", "set"), ("__matmul__", "matmul")):
        wrap(mx.array, method, name)
    try:
        yield kernels
    finally:
        for restore in reversed(undo):
            restore()


def told(kernels: set[Kernel]) -> str:
    """One a line."""
    return "\n".join(sorted(map(str, kernels)))


def _is_array(value: Any) -> bool:
    return type(value).__module__.startswith("mlx.core") and hasattr(value, "shape")


def _shape(value: Any) -> Any:
    if _is_array(value):
        return (str(value.dtype), tuple(value.shape))
    return value if isinstance(value, bool | int | float | str | tuple | None) else type(value).__name__


def _kind(value: Any) -> Any:
    if _is_array(value):
        return (str(value.dtype), value.ndim)
    if isinstance(value, list | tuple):
        inside = [_kind(one) for one in value]
        return tuple(inside) if isinstance(value, tuple) else frozenset(inside)
    return type(value).__name__
