"""Kokoro's forward pass for a padded batch, in two halves: text to frames, frames to samples.

The weights and modules are mlx-audio's (its loader knows every published checkpoint); the forward pass is ours, since
theirs takes one row and compiles for its exact length. A row's result is that of the row alone and unpadded, up to the
rounding of float32 (:mod:`engines.tts.mlx_kokoro_parts` says why). The noise of the source is a fixed table from the
start of each row, where theirs is drawn anew: so a row comes out the same in every batch and every bucket. Measured on
the CPU at the real size: 2e-6 of the peak from the library given the same source (random weights); padded by 16 frames,
a sentence is 114 dB from itself alone (published weights).

Import this on the MLX thread only. Weights are used in float32: norms and phases need it, and 330 MB are affordable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx.utils import tree_map

from engines.tts.mlx_kokoro_parts import BiLstm, Conv, SnakeBlock, Span, StyledBlock

MAX_FRAMES_A_PHONEME = 100
_NOISE_SAMPLES = 1 << 17
"""5.5 s of noise at -30 dB and below, then again from the start."""
_NOISE_SEED = 0
_STYLE = 128
"""The first half of a voice's vector styles the decoder, the second the prosody."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """One row between the halves. ``durations`` are frames an id, on the host; the arrays are (ids, channels)."""

    durations: npt.NDArray[np.int32]
    prosody: mx.array
    text: mx.array
    style: mx.array

    @property
    def frames(self) -> int:
        return int(self.durations.sum())


class KokoroNet:
    """``model`` is a loaded ``mlx_audio.tts.models.kokoro.Model``; it is cast to float32."""

    def __init__(self, model: Any) -> None:
        model.update(tree_map(_to_float32, model.parameters()))
        model.eval()
        self._bert, self._bert_out = model.bert, model.bert_encoder
        self._text = _TextEncoder(model.text_encoder)
        self._prosody = _Prosody(model.predictor)
        self._decoder = _Decoder(model.decoder)
        parts: list[Any] = [self._text, self._prosody, self._decoder]
        mx.eval(model.parameters(), [part.arrays() for part in parts])

    @property
    def frame_samples(self) -> int:
        return 2 * int(self._decoder.vocoder.samples_a_pitch)

    def encode(
        self, ids: Sequence[Sequence[int]], styles: Sequence[mx.array], speeds: Sequence[float], bucket: int
    ) -> list[Spoken]:
        """Text to frames. ``ids`` with their boundaries, each at most ``bucket`` long; ``styles`` (2 x 128,) a row."""
        padded = np.zeros((len(ids), bucket), np.int32)
        for row, sequence in enumerate(ids):
            padded[row, : len(sequence)] = sequence
        span = Span.of(mx.array([len(sequence) for sequence in ids]), bucket)
        style = mx.stack(list(styles)).astype(mx.float32)
        tokens = mx.array(padded)
        hidden, _ = self._bert(tokens, attention_mask=span.mask[..., 0])
        prosody, logits = self._prosody.durations(self._bert_out(hidden), style[:, _STYLE:], span)
        text = self._text(tokens, span)
        frames = mx.sigmoid(logits).sum(axis=-1) / mx.array(list(speeds))[:, None]
        frames = mx.nan_to_num(frames, nan=1.0, posinf=MAX_FRAMES_A_PHONEME, neginf=1.0)
        frames = mx.clip(mx.round(frames), 1, MAX_FRAMES_A_PHONEME).astype(mx.int32)
        mx.eval(frames, prosody, text)
        counts = np.array(frames)
        return [
            Spoken(counts[row, : len(sequence)], prosody[row], text[row], styles[row])
            for row, sequence in enumerate(ids)
        ]

    def speak(self, rows: Sequence[Spoken], bucket: int) -> npt.NDArray[np.float32]:
        """Frames to samples: (rows, bucket x frame_samples), each row zero past its end. At most ``bucket`` frames."""
        span = Span.of(mx.array([row.frames for row in rows]), bucket)
        index = np.zeros((len(rows), bucket), np.int32)
        for at, row in enumerate(rows):
            index[at, : row.frames] = np.repeat(np.arange(len(row.durations)), row.durations)
        places = mx.array(index)
        prosody = mx.stack([row.prosody[places[at]] for at, row in enumerate(rows)]) * span.mask
        text = mx.stack([row.text[places[at]] for at, row in enumerate(rows)]) * span.mask
        style = mx.stack([row.style for row in rows]).astype(mx.float32)
        pitch, energy = self._prosody.curves(prosody, style[:, _STYLE:], span)
        return np.array(self._decoder(text, pitch, energy, style[:, :_STYLE], span))


class _TextEncoder:
    def __init__(self, module: Any) -> None:
        self._embedding = module.embedding
        self._convs = [(Conv(layers[0]), layers[1]) for layers in module.cnn]
        self._lstm = BiLstm(module.lstm)

    def arrays(self) -> list[mx.array]:
        return [*self._lstm.arrays(), *(array for conv, _ in self._convs for array in conv.arrays())]

    def __call__(self, tokens: mx.array, span: Span) -> mx.array:
        x = self._embedding(tokens) * span.mask
        for conv, norm in self._convs:
            x = _leaky(norm(conv(x)), 0.2) * span.mask
        return self._lstm(x, span) * span.mask


class _Prosody:
    def __init__(self, module: Any) -> None:
        layers = module.text_encoder.lstms
        self._layers = [(BiLstm(layers[at]), layers[at + 1]) for at in range(0, len(layers), 2)]
        self._lstm, self._shared = BiLstm(module.lstm), BiLstm(module.shared)
        self._out = module.duration_proj
        self._pitch = [StyledBlock(block) for block in module.F0]
        self._energy = [StyledBlock(block) for block in module.N]
        self._pitch_out, self._energy_out = module.F0_proj, module.N_proj

    def arrays(self) -> list[mx.array]:
        parts: list[Any] = [self._lstm, self._shared, *(lstm for lstm, _ in self._layers), *self._pitch, *self._energy]
        return [array for part in parts for array in part.arrays()]

    def durations(self, x: mx.array, style: mx.array, span: Span) -> tuple[mx.array, mx.array]:
        """The styled text (rows, ids, hidden + style) and its duration logits (rows, ids, max_dur)."""
        styles = mx.broadcast_to(style[:, None, :], (*x.shape[:2], style.shape[-1]))
        x = mx.concatenate([x, styles], axis=-1) * span.mask
        for lstm, norm in self._layers:
            x = self._layer_norm(lstm(x, span), style, norm)
            x = mx.concatenate([x, styles], axis=-1) * span.mask
        return x, self._out(self._lstm(x, span))

    def curves(self, x: mx.array, style: mx.array, span: Span) -> tuple[mx.array, mx.array]:
        """Pitch in Hz and energy, (rows, 2 x frames, 1), zero past each row's end."""
        x = self._shared(x, span)
        curves: list[mx.array] = []
        for blocks, out in ((self._pitch, self._pitch_out), (self._energy, self._energy_out)):
            y, fine = x * span.mask, span
            for block in blocks:
                y, fine = block(y, style, fine)
            curves.append(out(y) * fine.mask)
        return curves[0], curves[1]

    @staticmethod
    def _layer_norm(x: mx.array, style: mx.array, norm: Any) -> mx.array:
        scale, shift = mx.split(norm.fc(style)[:, None, :], 2, axis=-1)
        return mx.fast.layer_norm(x, None, None, norm.eps) * (1 + scale) + shift


class _Decoder:
    def __init__(self, module: Any) -> None:
        self._pitch, self._energy = Conv(module.F0_conv), Conv(module.N_conv)
        self._text = Conv(module.asr_res[0])
        self._encode = StyledBlock(module.encode)
        self._decode = [StyledBlock(block) for block in module.decode]
        self.vocoder = _Vocoder(module.generator)

    def arrays(self) -> list[mx.array]:
        parts: list[Any] = [self._pitch, self._energy, self._text, self._encode, *self._decode, self.vocoder]
        return [array for part in parts for array in part.arrays()]

    def __call__(self, text: mx.array, pitch: mx.array, energy: mx.array, style: mx.array, span: Span) -> mx.array:
        beside = [self._pitch(pitch) * span.mask, self._energy(energy) * span.mask]
        x, _ = self._encode(mx.concatenate([text, *beside], axis=-1), style, span)
        beside = [self._text(text) * span.mask, *beside]
        for block in self._decode:
            x, out = block(mx.concatenate([x, *beside], axis=-1), style, span)
        return self.vocoder(x, pitch, style, out)


class _Vocoder:
    """HiFi-GAN with a harmonic source, whose last layer is an inverse STFT (iSTFTNet)."""

    def __init__(self, module: Any) -> None:
        source = module.m_source.l_sin_gen
        self._rate_hz, self.samples_a_pitch = source.sampling_rate, source.upsample_scale
        self._harmonics, self._loudness = source.dim, source.sine_amp
        self._noise_level, self._voiced_hz = source.noise_std, source.voiced_threshold
        self._merge = module.m_source.l_linear
        self._noise = mx.random.normal((_NOISE_SAMPLES, source.dim), key=mx.random.key(_NOISE_SEED))
        self._ups = [Conv(up, transposed=True) for up in module.ups]
        self._rates = [int(up.stride) for up in module.ups]
        self._source_convs = module.noise_convs
        self._source_blocks = [SnakeBlock(block) for block in module.noise_res]
        self._blocks = [SnakeBlock(block) for block in module.resblocks]
        self._out = Conv(module.conv_post)
        self._size, self._hop, self._window = module.stft.filter_length, module.stft.hop_length, module.stft.window

    def arrays(self) -> list[mx.array]:
        parts: list[Any] = [*self._ups, *self._source_blocks, *self._blocks, self._out]
        return [self._noise, self._window, *(array for part in parts for array in part.arrays())]

    def __call__(self, x: mx.array, pitch: mx.array, style: mx.array, span: Span) -> mx.array:
        source = self._spectrum(self._source(pitch), span)
        kinds = len(self._blocks) // len(self._ups)
        for level, up in enumerate(self._ups):
            last = level == len(self._ups) - 1
            span = span.scaled(self._rates[level])
            x = up(_leaky(x, 0.1)) * span.mask
            if last:  # one frame more at the start, as an STFT has
                span = span.scaled(1, more=1)
                x = mx.pad(x, [(0, 0), (1, 0), (0, 0)])
            beside = self._source_convs[level](source)
            x = x + self._source_blocks[level](beside, style, span)
            blocks = self._blocks[level * kinds : (level + 1) * kinds]
            x = _added([block(x, style, span) for block in blocks]) / kinds * span.mask
        x = self._out(_leaky(x, 0.01)) * span.mask
        bins = self._size // 2 + 1
        return self._samples(mx.exp(x[..., :bins]), mx.sin(x[..., bins:]), span)

    def _source(self, pitch: mx.array) -> mx.array:
        """(rows, samples): sines of the pitch and its harmonics where voiced, noise elsewhere.

        The phase is kept in turns and wrapped at each frame: a running sum of radians loses the float32 precision that
        a comparison with the row alone needs.
        """
        rows, frames, _ = pitch.shape
        step = self.samples_a_pitch
        turns = (pitch * mx.arange(1, self._harmonics + 1) / self._rate_hz) % 1 * step
        phase = mx.cumsum(turns % 1, axis=1) % 1
        early = mx.concatenate([mx.zeros_like(turns[:, :1]), turns[:, 1:]], axis=1)
        late = mx.concatenate([turns[:, 1:], mx.zeros_like(turns[:, :1])], axis=1)
        # A frame's value stands at its middle; between two middles the phase runs evenly.
        part = ((mx.arange(step) + 0.5) / step - 0.5)[:, None]
        half = step // 2
        before = phase[:, :, None] + part[:half] * early[:, :, None]
        after = phase[:, :, None] + part[half:] * late[:, :, None]
        sines = mx.sin(2 * math.pi * mx.concatenate([before, after], axis=2)) * self._loudness
        voiced = (pitch > self._voiced_hz).astype(mx.float32)[:, :, None]
        level = voiced * self._noise_level + (1 - voiced) * self._loudness / 3
        noise = mx.tile(self._noise, (math.ceil(frames * step / _NOISE_SAMPLES), 1))[: frames * step]
        waves = sines * voiced + level * noise.reshape(1, frames, step, self._harmonics)
        return mx.tanh(self._merge(waves.reshape(rows, frames * step, self._harmonics)))[..., 0]

    def _spectrum(self, samples: mx.array, span: Span) -> mx.array:
        """Magnitudes and phases (rows, frames, 2 x bins) of an STFT that mirrors each row at its own two ends."""
        size, hop = self._size, self._hop
        at = mx.arange(samples.shape[1] + size)[None, :] - size // 2
        end = span.lengths[:, None] * self.samples_a_pitch
        at = mx.abs(mx.where(at < end, at, 2 * (end - 1) - at))
        padded = mx.take_along_axis(samples, at, axis=1).reshape(samples.shape[0], -1, hop)
        frames = samples.shape[1] // hop + 1
        windows = mx.concatenate([padded[:, shift : shift + frames] for shift in range(size // hop)], axis=-1)
        bins = mx.fft.rfft(windows * self._window)
        inside = Span.of(end[:, 0] // hop + 1, frames)
        return mx.concatenate([mx.abs(bins), mx.arctan2(mx.imag(bins), mx.real(bins))], axis=-1) * inside.mask

    def _samples(self, magnitude: mx.array, phase: mx.array, span: Span) -> mx.array:
        """Inverse STFT (rows, samples): overlap-add over a row's own frames, divided by the windows' energy there."""
        size, hop = self._size, self._hop
        bins = magnitude * mx.cos(phase) + 1j * (magnitude * mx.sin(phase))
        pieces = mx.fft.irfft(bins, n=size) * self._window * span.mask
        energy = mx.broadcast_to(self._window * self._window, (1, span.time, size)) * span.mask
        summed, weight = (_overlap(part, hop) for part in (pieces, energy))
        samples = summed / mx.where(weight > 1e-10, weight, 1.0)
        skip = size // 2 // hop
        samples = samples[:, skip : skip + span.time - 1] * span.mask[:, 1:]
        return samples.reshape(samples.shape[0], -1)


def _overlap(pieces: mx.array, hop: int) -> mx.array:
    """(rows, frames, size) to the sums (rows, frames + size / hop - 1, hop)."""
    rows, frames, size = pieces.shape
    parts = pieces.reshape(rows, frames, size // hop, hop)
    count = size // hop
    shifted = [mx.pad(parts[:, :, at], [(0, 0), (at, count - 1 - at), (0, 0)]) for at in range(count)]
    return _added(shifted)


def _added(arrays: Sequence[mx.array]) -> mx.array:
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    return total


def _leaky(x: mx.array, slope: float) -> mx.array:
    return mx.where(x > 0, x, slope * x)


def _to_float32(array: mx.array) -> mx.array:
    """Packed (quantised) weights stay as they are."""
    return array.astype(mx.float32) if array.dtype in (mx.float16, mx.bfloat16) else array
