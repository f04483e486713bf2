"""A batch's decode step as one compiled function: a GPU gets it with a part of the work that handing over each of its
kernels takes, and less of Python's.

``mx.compile`` runs a model's code once a shape and replays what it did: nothing but shapes may steer it. Positions come
as an array, so a model that keeps all it knows of a row in the cache meets that; whether this one does is tried first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import structlog

from engines.executor.rows_kv import LEAST_LENGTH, Frame, LayerArrays, LayerRows

_MOST_FUNCTIONS = 256
"""Each keeps its graph, about 3 MB for 28 layers."""
_TRIAL_STEPS = 3
_TOLERANCE = 0.05
"""Of the largest logit: half precision rounds otherwise when operations are merged."""

_log = structlog.get_logger(__name__)

_Function = Callable[[Any, Any, LayerArrays], tuple[Any, LayerArrays]]


def decoded(model: Any, tokens: Any, frame: Frame, layers: Sequence[LayerRows]) -> Any:
    """Logits (rows, vocabulary) of a token for each row, (rows,)."""
    for layer in layers:
        layer.frame = frame
    return model(tokens[:, None], cache=layers)[:, -1]


class CompiledStep:
    """One function for each width, capacity and length read. It lives as long as its batch; for the MLX thread, where
    it must be let go of too."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._functions: OrderedDict[tuple[int, int, int], _Function] = OrderedDict()

    def __len__(self) -> int:
        return len(self._functions)

    def __call__(self, tokens: Any, lengths: Sequence[int], read: int, arrays: LayerArrays) -> tuple[Any, LayerArrays]:
        """The logits, and the arrays with the tokens' keys and values. The caller drops its own references before
        anything is computed: then those are written in place."""
        import mlx.core as mx

        shape = (len(lengths), int(arrays[0][0].shape[2]), read)
        function = self._functions.pop(shape, None) or _compiled(self._model, read)
        self._functions[shape] = function  # the last used is the last to go
        if len(self._functions) > _MOST_FUNCTIONS:
            self._functions.popitem(last=False)
        return function(tokens, mx.array(list(lengths), dtype=mx.int32), arrays)

    @cached_property
    def usable(self) -> bool:
        """Whether a few steps say what they say uncompiled. Tried at the first use; if not, that is logged."""
        try:
            agreed = self._agrees()
        except Exception as error:  # noqa: BLE001 (what a model cannot do compiled, it can do as it is)
            _log.warning("decode steps are not compiled: the model refused", error=f"{type(error).__name__}: {error}")
            agreed = False
        else:
            if not agreed:
                _log.warning("decode steps are not compiled: the model said something else")
        if not agreed:
            self._functions.clear()
        return agreed

    def _agrees(self) -> bool:
        """One row in buffers of its own."""
        import mlx.core as mx

        layers, again = self._begun(), self._begun()
        arrays = [layer.state for layer in again]
        del again
        tokens = mx.zeros((1,), dtype=mx.uint32)
        for length in range(1, 1 + _TRIAL_STEPS):
            said, arrays = self(tokens, [length], LEAST_LENGTH, arrays)
            truth = decoded(self._model, tokens, Frame.at([length], 1, LEAST_LENGTH, masked=True), layers)
            truth, said = truth.astype(mx.float32), said.astype(mx.float32)
            if not (mx.abs(said - truth).max() <= _TOLERANCE * mx.abs(truth).max()).item():
                return False
            tokens = mx.argmax(truth, axis=-1)
            mx.eval(tokens, arrays)
        return True

    def _begun(self) -> list[LayerRows]:
        """With one token."""
        import mlx.core as mx

        layers = [LayerRows(LEAST_LENGTH) for _ in self._model.layers]
        frame = Frame.at([0], 1, LEAST_LENGTH, masked=True)
        decoded(self._model, mx.zeros((1,), dtype=mx.uint32), frame, layers)
        mx.eval([layer.state for layer in layers])
        return layers


def _compiled(model: Any, read: int) -> _Function:
    import mlx.core as mx

    return mx.compile(partial(_step, model, read))


def _step(model: Any, read: int, tokens: Any, offset: Any, arrays: LayerArrays) -> tuple[Any, LayerArrays]:
    layers = [LayerRows(int(pair[0].shape[2]), pair) for pair in arrays]
    logits = decoded(model, tokens, Frame.masked(offset, 1, read), layers)
    return logits, [layer.state for layer in layers]
