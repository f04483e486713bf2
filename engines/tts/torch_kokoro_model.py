"""Kokoro's network in PyTorch, for inference of one text at a time: phoneme ids and a style to samples.

The architecture is StyleTTS 2 (Li et al., 2023) with an ALBERT text encoder (Lan et al., 2019) and an iSTFTNet
vocoder (Kaneko et al., 2022) driven by a harmonic source (Wang et al., 2019); sizes and tensor names are the published
checkpoint's. Written as functions over a table of tensors rather than modules: weight normalisation is folded once at
load, and no package but torch is needed (the model's own one brings a GPL phonemiser).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

RATE_HZ = 24_000
STYLE_SIZE = 256
"""Of a style: its first half shapes the voice, its second half the prosody."""

_HARMONICS = 9
_SINE_AMPLITUDE = 0.1
_NOISE = 0.003
_VOICED_HZ = 10.0
_ALBERT = "bert.encoder.albert_layer_groups.0.albert_layers.0"
_SOURCE_DILATIONS = (1, 3, 5)

_MLX_LSTM = {
    f"{ours}_{direction}": f"{theirs}_l0{suffix}"
    for ours, theirs in (
        ("Wx", "weight_ih"),
        ("Wh", "weight_hh"),
        ("bias_ih", "bias_ih"),
        ("bias_hh", "bias_hh"),
    )
    for direction, suffix in (("forward", ""), ("backward", "_reverse"))
}


class TooLongError(Exception):
    """The network wants more frames than allowed: it has lost its way, or its weights are no speech."""


class KokoroNet:
    """``weights`` are the checkpoint's tensors by full name, ``config`` its ``config.json``. Thread-safe: it holds
    nothing between two calls.

    Raises KeyError or RuntimeError for tensors that are missing or have another shape.
    """

    def __init__(self, weights: Mapping[str, Tensor], config: Mapping[str, Any], device: str) -> None:
        self.device = torch.device(device)
        self._w = {name: value.to(self.device, torch.float32) for name, value in _folded(weights).items()}
        self._heads = int(config["plbert"]["num_attention_heads"])
        self._layers = int(config["plbert"]["num_hidden_layers"])
        net = config["istftnet"]
        self._rates: list[int] = list(net["upsample_rates"])
        self._dilations: list[list[int]] = list(net["resblock_dilation_sizes"])
        self._fft: int = net["gen_istft_n_fft"]
        self._hop: int = net["gen_istft_hop_size"]
        self._depth = int(config["n_layer"])
        self._decoder_blocks = sum(name.startswith("decoder.decode.") and "conv1.bias" in name for name in weights)
        self._window = torch.hann_window(self._fft, device=self.device)
        self.frame_samples: int = 2 * self._hop * math.prod(self._rates)
        """One frame of the predicted durations: 25 ms in the published model."""
        self._lstms = {name: self._make_lstm(name) for name in self._lstm_names()}

    def speak(
        self, ids: list[int], style: Tensor, speed: float, *, seed: int, max_frames: int
    ) -> tuple[Tensor, list[int]]:
        """Samples at 24 kHz, shape (n,), on the CPU; and how many frames each id lasts. ``ids`` has the
        boundary at both ends, ``style`` the shape (256,). ``seed`` decides the noise of unvoiced sounds.

        Raises:
            TooLongError: more than ``max_frames``.
        """
        with torch.inference_mode():
            return self._speak(ids, style, speed, seed, max_frames)

    def _speak(
        self, ids: list[int], style: Tensor, speed: float, seed: int, max_frames: int
    ) -> tuple[Tensor, list[int]]:
        tokens = torch.tensor(ids, device=self.device)
        style = style.to(self.device, torch.float32)
        voice, prosody = style[: STYLE_SIZE // 2], style[STYLE_SIZE // 2 :]
        encoded = self._durations_encoded(self._linear("bert_encoder", self._albert(tokens)), prosody)
        spread = self._linear("predictor.duration_proj.linear_layer", self._lstm("predictor.lstm", encoded))
        frames = torch.round(torch.sigmoid(spread).sum(dim=-1) / speed).clamp(min=1).long().cpu()
        total = int(frames.sum())
        if total > max_frames:
            raise TooLongError(f"{total} frames of speech")
        aligned = torch.repeat_interleave(torch.arange(len(ids)), frames).to(self.device)
        shared = self._lstm("predictor.shared", encoded[aligned]).T[None]
        pitch, energy = (self._curve(name, shared, prosody) for name in ("F0", "N"))
        sounds = self._text(tokens)[aligned].T[None]
        samples = self._vocoder(self._decoded(sounds, pitch, energy, voice), voice, pitch, seed)
        return samples.float().cpu(), frames.tolist()

    # --- text to prosody -------------------------------------------------------------------------------------

    def _albert(self, tokens: Tensor) -> Tensor:
        """Shape (ids, 768)."""
        w = self._w
        x = w["bert.embeddings.word_embeddings.weight"][tokens]
        x = x + w["bert.embeddings.position_embeddings.weight"][: len(tokens)]
        x = self._norm("bert.embeddings.LayerNorm", x + w["bert.embeddings.token_type_embeddings.weight"][0])
        x = self._linear("bert.encoder.embedding_hidden_mapping_in", x)
        for _ in range(self._layers):  # one layer's weights, used again and again
            q, k, v = (
                self._linear(f"{_ALBERT}.attention.{part}", x).view(len(x), self._heads, -1).transpose(0, 1)
                for part in ("query", "key", "value")
            )
            mixed = F.scaled_dot_product_attention(q[None], k[None], v[None])[0].transpose(0, 1).flatten(1)
            x = self._norm(f"{_ALBERT}.attention.LayerNorm", x + self._linear(f"{_ALBERT}.attention.dense", mixed))
            inner = F.gelu(self._linear(f"{_ALBERT}.ffn", x), approximate="tanh")
            x = self._norm(f"{_ALBERT}.full_layer_layer_norm", x + self._linear(f"{_ALBERT}.ffn_output", inner))
        return x

    def _durations_encoded(self, x: Tensor, style: Tensor) -> Tensor:
        """Shape (ids, 640): the style stands beside each id's features."""
        beside = style.expand(len(x), -1)
        x = torch.cat((x, beside), dim=1)
        for index in range(self._depth):
            x = self._lstm(f"predictor.text_encoder.lstms.{2 * index}", x)
            scale, shift = self._style(f"predictor.text_encoder.lstms.{2 * index + 1}", style)
            x = torch.cat((F.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift, beside), dim=1)
        return x

    def _curve(self, name: str, shared: Tensor, style: Tensor) -> Tensor:
        """Pitch in Hz or energy, two values a frame, shape (1, 1, 2 * frames)."""
        x = shared
        for index in range(3):
            x = self._block(f"predictor.{name}.{index}", x, style)
        return self._conv(f"predictor.{name}_proj", x)

    def _text(self, tokens: Tensor) -> Tensor:
        """Shape (ids, 512)."""
        x = self._w["text_encoder.embedding.weight"][tokens].T[None]
        for index in range(self._depth):
            x = self._conv(f"text_encoder.cnn.{index}.0", x, padding="same").transpose(1, 2)
            gamma, beta = (self._w[f"text_encoder.cnn.{index}.1.{part}"] for part in ("gamma", "beta"))
            x = F.leaky_relu(F.layer_norm(x, x.shape[-1:], gamma, beta), 0.2).transpose(1, 2)
        return self._lstm("text_encoder.lstm", x[0].T)

    # --- prosody to sound ------------------------------------------------------------------------------------

    def _decoded(self, sounds: Tensor, pitch: Tensor, energy: Tensor, style: Tensor) -> Tensor:
        """Shape (1, 512, 2 * frames)."""
        curves = [
            self._conv("decoder.F0_conv", pitch, stride=2, padding=1),
            self._conv("decoder.N_conv", energy, stride=2, padding=1),
        ]
        x = self._block("decoder.encode", torch.cat((sounds, *curves), dim=1), style)
        residual = self._conv("decoder.asr_res.0", sounds)
        for index in range(self._decoder_blocks):
            x = self._block(f"decoder.decode.{index}", torch.cat((x, residual, *curves), dim=1), style)
        return x

    def _vocoder(self, x: Tensor, style: Tensor, pitch: Tensor, seed: int) -> Tensor:
        spectrum = torch.stft(
            self._source(pitch[0, 0], seed), self._fft, self._hop, window=self._window, return_complex=True
        )
        harmonics = torch.cat((spectrum.abs(), spectrum.angle()))[None]
        for index, rate in enumerate(self._rates):
            last = index == len(self._rates) - 1
            stride = 1 if last else self._rates[index + 1]
            source = self._conv(
                f"decoder.generator.noise_convs.{index}",
                harmonics,
                stride=stride,
                padding=0 if last else (stride + 1) // 2,
            )
            source = self._snake_block(f"decoder.generator.noise_res.{index}", source, style, _SOURCE_DILATIONS)
            x = self._up(f"decoder.generator.ups.{index}", F.leaky_relu(x, 0.1), rate)
            if last:
                x = F.pad(x, (1, 0), mode="reflect")
            x = x + source
            first = index * len(self._dilations)
            parts = [
                self._snake_block(f"decoder.generator.resblocks.{first + part}", x, style, dilations)
                for part, dilations in enumerate(self._dilations)
            ]
            x = torch.stack(parts).mean(dim=0)
        x = self._conv("decoder.generator.conv_post", F.leaky_relu(x), padding="same")[0]
        bins = self._fft // 2 + 1
        spectrum = torch.polar(torch.exp(x[:bins]), torch.sin(x[bins:]))
        return torch.istft(spectrum, self._fft, self._hop, window=self._window)

    def _source(self, pitch: Tensor, seed: int) -> Tensor:
        """A buzz at the pitch and its harmonics where it is voiced, noise elsewhere; shape (samples,)."""
        step = self.frame_samples // 2
        noise = torch.Generator().manual_seed(seed)
        pitch = pitch.repeat_interleave(step)
        turns = (torch.outer(torch.arange(1, _HARMONICS + 1, device=self.device), pitch) / RATE_HZ) % 1
        start = torch.rand(_HARMONICS, generator=noise)
        start[0] = 0
        turns[:, 0] += start.to(self.device)
        # Summed at the frame rate and stretched, as in training: the phase drifts otherwise.
        coarse = F.interpolate(turns[None], scale_factor=1 / step, mode="linear")
        phase = F.interpolate(torch.cumsum(coarse, dim=-1) * step, scale_factor=float(step), mode="linear")
        voiced = (pitch > _VOICED_HZ).float()
        level = voiced * _NOISE + (1 - voiced) * _SINE_AMPLITUDE / 3
        hiss = torch.randn(_HARMONICS, len(pitch), generator=noise).to(self.device)
        sines = torch.sin(phase[0] * (2 * torch.pi)) * _SINE_AMPLITUDE * voiced + level * hiss
        return torch.tanh(self._linear("decoder.generator.m_source.l_linear", sines.T))[:, 0]

    # --- the layers ------------------------------------------------------------------------------------------

    def _block(self, name: str, x: Tensor, style: Tensor) -> Tensor:
        """A residual block whose channels the style scales and shifts; with a pool, at twice the steps."""
        pooled = f"{name}.pool.weight" in self._w
        inner = F.leaky_relu(self._adapt(f"{name}.norm1", x, style), 0.2)
        if pooled:
            inner = F.conv_transpose1d(
                inner,
                self._w[f"{name}.pool.weight"],
                self._w[f"{name}.pool.bias"],
                stride=2,
                padding=1,
                output_padding=1,
                groups=inner.shape[1],
            )
        inner = self._conv(f"{name}.conv1", inner, padding="same")
        inner = F.leaky_relu(self._adapt(f"{name}.norm2", inner, style), 0.2)
        inner = self._conv(f"{name}.conv2", inner, padding="same")
        if pooled:
            x = x.repeat_interleave(2, dim=-1)
        if f"{name}.conv1x1.weight" in self._w:
            x = self._conv(f"{name}.conv1x1", x)
        return (inner + x) * 2**-0.5

    def _snake_block(self, name: str, x: Tensor, style: Tensor, dilations: Sequence[int]) -> Tensor:
        for index, dilation in enumerate(dilations):
            inner = self._adapt(f"{name}.adain1.{index}", x, style)
            inner = self._snake(f"{name}.alpha1.{index}", inner)
            inner = self._conv(f"{name}.convs1.{index}", inner, padding="same", dilation=dilation)
            inner = self._adapt(f"{name}.adain2.{index}", inner, style)
            inner = self._snake(f"{name}.alpha2.{index}", inner)
            x = x + self._conv(f"{name}.convs2.{index}", inner, padding="same")
        return x

    def _snake(self, name: str, x: Tensor) -> Tensor:
        alpha = self._w[name]
        return x + torch.sin(alpha * x).square() / alpha

    def _adapt(self, name: str, x: Tensor, style: Tensor) -> Tensor:
        scale, shift = self._style(name, style)
        x = F.instance_norm(x, weight=self._w.get(f"{name}.norm.weight"), bias=self._w.get(f"{name}.norm.bias"))
        return x * (1 + scale)[:, None] + shift[:, None]

    def _style(self, name: str, style: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift = self._linear(f"{name}.fc", style).chunk(2)
        return scale, shift

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self._w[f"{name}.weight"], self._w[f"{name}.bias"], 1e-12)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self._w[f"{name}.weight"], self._w[f"{name}.bias"])

    def _conv(self, name: str, x: Tensor, **options: Any) -> Tensor:
        return F.conv1d(x, self._w[f"{name}.weight"], self._w.get(f"{name}.bias"), **options)

    def _up(self, name: str, x: Tensor, rate: int) -> Tensor:
        weight = self._w[f"{name}.weight"]
        padding = (weight.shape[-1] - rate) // 2
        return F.conv_transpose1d(x, weight, self._w[f"{name}.bias"], stride=rate, padding=padding)

    def _lstm(self, name: str, x: Tensor) -> Tensor:
        result: Tensor = self._lstms[name](x[None])[0]
        return result[0]

    def _lstm_names(self) -> list[str]:
        inner = [f"predictor.text_encoder.lstms.{2 * index}" for index in range(self._depth)]
        return ["text_encoder.lstm", "predictor.lstm", "predictor.shared", *inner]

    def _make_lstm(self, name: str) -> torch.nn.LSTM:
        tensors = {
            key.removeprefix(f"{name}."): self._w.pop(key) for key in list(self._w) if key.startswith(f"{name}.")
        }
        hidden, size = tensors["weight_hh_l0"].shape[1], tensors["weight_ih_l0"].shape[1]
        lstm = torch.nn.LSTM(size, hidden, batch_first=True, bidirectional=True)
        lstm.load_state_dict(tensors)
        return lstm.to(self.device).eval()


def _torch_name(name: str) -> str:
    """MLX's name of a tensor as PyTorch's: checkpoints of both kinds are about."""
    layer, _, tensor = name.rpartition(".")
    if layer.startswith("text_encoder.cnn.") and layer.endswith(".1"):
        tensor = {"weight": "gamma", "bias": "beta"}.get(tensor, tensor)
    return f"{layer}.{_MLX_LSTM.get(tensor, tensor)}"


def _folded(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weight normalisation computed once: a direction ``weight_v`` and a length ``weight_g`` to ``weight``."""
    out: dict[str, Tensor] = {}
    weights = {_torch_name(name): value for name, value in weights.items()}
    for name, value in weights.items():
        if name.endswith(".weight_v"):
            layer = name.removesuffix(".weight_v")
            direction = value.float()
            length = direction.flatten(1).norm(dim=1).view(-1, 1, 1)
            out[f"{layer}.weight"] = direction * (weights[f"{layer}.weight_g"].float() / length)
        elif not name.endswith(".weight_g"):
            out[name] = value
    return out
