"""Layers of Kokoro for rows of different lengths in one batch: what the padding holds reaches no row's result.

Built from the modules of mlx-audio's Kokoro (written against mlx-audio 0.6.2), which take one row at a time. Three of
its layers look at the whole of time, and each is made exact here for padded rows:

- instance norm: mean and variance over a row's own frames (masked sums);
- LSTM backwards: a row is turned round within its own length, so both directions end in the padding;
- convolutions: their input is zero past a row's end, which is what they pad a row alone with.

Arrays are (rows, time, channels) here. Import this on the MLX thread only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx

_EPS = 1e-5
_STEPS = 16
"""LSTM steps compiled as one; lengths that are multiples of it compile once."""


@dataclass(frozen=True, slots=True)
class Span:
    """How long each row of a batch is. ``mask`` (rows, time, 1) is 1 within a row, else 0; ``count`` (rows, 1, 1)."""

    lengths: mx.array
    mask: mx.array
    count: mx.array

    @classmethod
    def of(cls, lengths: mx.array, time: int) -> Span:
        inside = mx.arange(time)[None, :] < lengths[:, None]
        count = lengths.astype(mx.float32)[:, None, None]
        return cls(lengths, inside[..., None].astype(mx.float32), count)

    @property
    def time(self) -> int:
        return int(self.mask.shape[1])

    def scaled(self, factor: int, more: int = 0) -> Span:
        """The same rows at ``factor`` times the rate, ``more`` frames longer."""
        return Span.of(self.lengths * factor + more, self.time * factor + more)

    def reversal(self) -> mx.array:
        """(rows, time): the index that turns each row round within its length and leaves the padding."""
        at = mx.arange(self.time)[None, :]
        end = self.lengths[:, None]
        return mx.where(at < end, end - 1 - at, at)


class Conv:
    """A weight-normalised convolution, its norm folded in once. Works in place of ``ConvWeighted``."""

    def __init__(self, module: Any, *, transposed: bool = False) -> None:
        direction = module.weight_v.astype(mx.float32)
        norm = mx.sqrt(mx.sum(direction * direction, axis=(1, 2), keepdims=True))
        weight = direction / (norm + 1e-7) * module.weight_g.astype(mx.float32)
        self.weight = weight.T if transposed else weight
        self.bias = None if module.bias is None else module.bias.astype(mx.float32)
        operation = mx.conv_transpose1d if transposed else mx.conv1d
        self._run = partial(operation, stride=module.stride, padding=module.padding, dilation=module.dilation)

    def arrays(self) -> list[mx.array]:
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def __call__(self, x: mx.array) -> mx.array:
        y = self._run(x, self.weight)
        return y if self.bias is None else y + self.bias


class BiLstm:
    """Both directions of an LSTM, stepped together."""

    def __init__(self, module: Any) -> None:
        ways = [
            (module.Wx_forward, module.Wh_forward, module.bias_ih_forward, module.bias_hh_forward),
            (module.Wx_backward, module.Wh_backward, module.bias_ih_backward, module.bias_hh_backward),
        ]
        self._hidden = int(module.hidden_size)
        self._in = mx.concatenate([way[0].T for way in ways], axis=1).astype(mx.float32)
        self._inner = mx.stack([way[1].T for way in ways]).astype(mx.float32)
        self._bias = mx.concatenate([way[2] + way[3] for way in ways]).astype(mx.float32)

    def arrays(self) -> list[mx.array]:
        return [self._in, self._inner, self._bias]

    def __call__(self, x: mx.array, span: Span) -> mx.array:
        rows, time, _ = x.shape
        turn = span.reversal()[..., None]
        gates = mx.addmm(self._bias, x, self._in)
        forward, backward = mx.split(gates, 2, axis=-1)
        gates = mx.stack([forward, mx.take_along_axis(backward, turn, axis=1)])
        hidden = cell = mx.zeros((2, rows, self._hidden))
        outs: list[mx.array] = []
        for start in range(0, time, _STEPS):
            out, hidden, cell = _lstm_steps(gates[:, :, start : start + _STEPS], hidden, cell, self._inner)
            outs.append(out)
        both = mx.concatenate(outs, axis=2)
        return mx.concatenate([both[0], mx.take_along_axis(both[1], turn, axis=1)], axis=-1)


@mx.compile
def _lstm_steps(gates: mx.array, hidden: mx.array, cell: mx.array, inner: mx.array) -> tuple[mx.array, ...]:
    """``gates`` (2, rows, steps, 4 x hidden): the inputs' share. Returns the outputs of all steps and the state."""
    outs: list[mx.array] = []
    for step in range(gates.shape[2]):
        enter, forget, value, leave = mx.split(gates[:, :, step] + hidden @ inner, 4, axis=-1)
        cell = mx.sigmoid(forget) * cell + mx.sigmoid(enter) * mx.tanh(value)
        hidden = mx.sigmoid(leave) * mx.tanh(cell)
        outs.append(hidden)
    return mx.stack(outs, axis=2), hidden, cell


class StyledNorm:
    """Adaptive instance norm: over each row's own time, scaled and shifted by the style."""

    def __init__(self, module: Any) -> None:
        self._fc = module.fc

    def __call__(self, x: mx.array, style: mx.array, span: Span) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """What :func:`_styled_leaky` and :func:`_styled_snake` take: mean, variance, scale, shift."""
        mean = mx.sum(x * span.mask, axis=1, keepdims=True) / span.count
        centred = (x - mean) * span.mask
        variance = mx.sum(centred * centred, axis=1, keepdims=True) / span.count
        scale, shift = mx.split(self._fc(style)[:, None, :], 2, axis=-1)
        return mean, variance, scale, shift


@mx.compile
def _styled_leaky(
    x: mx.array, mean: mx.array, variance: mx.array, scale: mx.array, shift: mx.array, mask: mx.array
) -> mx.array:
    y = (x - mean) / mx.sqrt(variance + _EPS) * (1 + scale) + shift
    return mx.where(y > 0, y, 0.2 * y) * mask


@mx.compile
def _styled_snake(
    x: mx.array, mean: mx.array, variance: mx.array, scale: mx.array, shift: mx.array, alpha: mx.array, mask: mx.array
) -> mx.array:
    y = (x - mean) / mx.sqrt(variance + _EPS) * (1 + scale) + shift
    wave = mx.sin(alpha * y)
    return (y + wave * wave / alpha) * mask


class StyledBlock:
    """A residual block of the prosody predictor and the decoder (``AdainResBlk1d``), which may double the rate."""

    def __init__(self, module: Any) -> None:
        self.doubles = module.upsample_type != "none"
        self._norm1, self._norm2 = StyledNorm(module.norm1), StyledNorm(module.norm2)
        self._conv1, self._conv2 = Conv(module.conv1), Conv(module.conv2)
        self._shortcut = Conv(module.conv1x1) if module.learned_sc else None
        self._pool = Conv(module.pool) if self.doubles else None

    def arrays(self) -> list[mx.array]:
        convs = [self._conv1, self._conv2, self._shortcut, self._pool]
        return [array for conv in convs if conv is not None for array in conv.arrays()]

    def __call__(self, x: mx.array, style: mx.array, span: Span) -> tuple[mx.array, Span]:
        """The result is zero past each row's end."""
        y = _styled_leaky(x, *self._norm1(x, style, span), span.mask)
        out = span.scaled(2) if self.doubles else span
        if self._pool is not None:
            y = self._spread(y, self._pool) * out.mask
            x = mx.repeat(x, 2, axis=1)
        y = self._conv1(y)
        y = _styled_leaky(y, *self._norm2(y, style, out), out.mask)
        y = self._conv2(y)
        kept = x if self._shortcut is None else self._shortcut(x)
        return (y + kept) / math.sqrt(2) * out.mask, out

    @staticmethod
    def _spread(x: mx.array, pool: Conv) -> mx.array:
        """A transposed convolution of each channel alone, three taps, stride 2, its first sample dropped: written
        out, as a grouped one is slow."""
        first, middle, last = (pool.weight[:, tap, 0] for tap in range(3))
        following = mx.pad(x[:, 1:], [(0, 0), (0, 1), (0, 0)])
        pairs = mx.stack([middle * x, first * following + last * x], axis=2)
        y = pairs.reshape(x.shape[0], -1, x.shape[2])
        return y if pool.bias is None else y + pool.bias


class SnakeBlock:
    """A residual block of the vocoder (``AdaINResBlock1``). The result is not masked: its readers do that."""

    def __init__(self, module: Any) -> None:
        self._layers = [
            (Conv(conv1), Conv(conv2), StyledNorm(norm1), StyledNorm(norm2), _per_channel(alpha1), _per_channel(alpha2))
            for conv1, conv2, norm1, norm2, alpha1, alpha2 in zip(
                *(module.convs1, module.convs2, module.adain1, module.adain2, module.alpha1, module.alpha2), strict=True
            )
        ]

    def arrays(self) -> list[mx.array]:
        return [a for conv1, conv2, _, _, *alphas in self._layers for a in (*conv1.arrays(), *conv2.arrays(), *alphas)]

    def __call__(self, x: mx.array, style: mx.array, span: Span) -> mx.array:
        for conv1, conv2, norm1, norm2, alpha1, alpha2 in self._layers:
            y = conv1(_styled_snake(x, *norm1(x, style, span), alpha1, span.mask))
            y = conv2(_styled_snake(y, *norm2(y, style, span), alpha2, span.mask))
            x = x + y
        return x


def _per_channel(alpha: mx.array) -> mx.array:
    return alpha.astype(mx.float32).reshape(1, 1, -1)
