"""A Kokoro of small widths and random weights, as a checkpoint folder that mlx-audio's loader takes.

Its decoder's widths are written into the library (1024, 512, 64), so the class is replaced by a narrow one while a
model is made; the layers, their order and the forward pass stay the library's. A frame is 200 samples, not 600.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("MLX_DISABLE_COMPILE", "1")  # else each new kernel costs a run of the C++ compiler

HIDDEN, STYLE = 16, 128
FRAME_SAMPLES = 200
LETTERS = " .,!?;:abcdefghijklmnopqrstuvwxyzˈˌæɑɔəɛɜɪʊʌɡŋðθʃʒʤʧɹTAIOWYᵊɐ"
CONFIG: dict[str, Any] = {
    "model_type": "kokoro",
    "istftnet": {
        "upsample_kernel_sizes": [11, 8],
        "upsample_rates": [5, 4],
        "gen_istft_hop_size": 5,
        "gen_istft_n_fft": 20,
        "resblock_dilation_sizes": [[1, 3, 5], [1, 2, 3]],
        "resblock_kernel_sizes": [3, 7],
        "upsample_initial_channel": HIDDEN,
    },
    "dim_in": 8,
    "dropout": 0.2,
    "hidden_dim": HIDDEN,
    "max_conv_dim": HIDDEN,
    "max_dur": 6,
    "multispeaker": True,
    "n_layer": 2,
    "n_mels": 8,
    "n_token": len(LETTERS) + 1,
    "style_dim": STYLE,
    "text_encoder_kernel_size": 5,
    "plbert": {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 512,
        "num_hidden_layers": 2,
        "dropout": 0.1,
    },
    "vocab": {letter: index for index, letter in enumerate(LETTERS, start=1)},
    "sample_rate": 24000,
}


def small_decoder() -> type:
    """The library's decoder class, but narrow."""
    from mlx_audio.tts.models.kokoro import istftnet

    class SmallDecoder(istftnet.Decoder):  # type: ignore[misc]
        def __init__(self, dim_in: int, style_dim: int, dim_out: int, **generator: Any) -> None:
            import mlx.core as mx
            import mlx.nn as nn

            nn.Module.__init__(self)
            wide, side = 2 * HIDDEN, 8
            block = istftnet.AdainResBlk1d
            self.encode = block(dim_in + 2, wide, style_dim, conv_type=mx.conv1d)
            self.decode = [block(wide + 2 + side, wide, style_dim, conv_type=mx.conv1d) for _ in range(2)]
            self.decode.append(block(wide + 2 + side, HIDDEN, style_dim, upsample=True, conv_type=mx.conv1d))
            self.F0_conv = istftnet.ConvWeighted(1, 1, kernel_size=3, stride=2, padding=1, groups=1)
            self.N_conv = istftnet.ConvWeighted(1, 1, kernel_size=3, stride=2, padding=1, groups=1)
            self.asr_res = [istftnet.ConvWeighted(dim_in, side, kernel_size=1, padding=0)]
            self.generator = istftnet.Generator(style_dim, **generator)

    return SmallDecoder


def patch_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlx_audio.tts.models.kokoro import kokoro

    monkeypatch.setattr(kokoro, "Decoder", small_decoder())


def write_tiny_kokoro(folder: Path, voices: tuple[str, ...] = ("af_heart", "am_adam")) -> Path:
    """Call with the decoder patched. The weights are made with NumPy, loud enough that every layer matters."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_audio.tts.models.kokoro import Model, ModelConfig
    from safetensors.numpy import save_file

    random = np.random.default_rng(11)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "voices").mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    weights: dict[str, Any] = {}
    for name, array in tree_flatten(Model(ModelConfig.from_dict(CONFIG)).parameters()):
        shape = array.shape
        if "alpha" in name or name.endswith("weight_g"):
            value = np.abs(random.standard_normal(shape)) * 0.3 + 0.7
        else:
            fan = max(1, int(np.prod(shape[1:])) if len(shape) > 1 else 4)
            value = random.standard_normal(shape) / np.sqrt(fan)
        weights[name] = value.astype(np.float32)
    weights["predictor.F0_proj.bias"] = np.array([180.0], np.float32)  # Hz: voiced, so the harmonics are heard
    weights["predictor.F0_proj.weight"] *= 40
    weights["decoder.generator.conv_post.weight_g"] *= 0.1
    weights["decoder.generator.conv_post.bias"] -= 1.5  # the spectrum is its exponential
    save_file({name: _stored(name, value) for name, value in weights.items()}, folder / "model.safetensors")
    for voice in voices:
        table = (random.standard_normal((510, 1, 2 * STYLE)) * 0.5).astype(np.float32)
        save_file({"voice": table}, folder / "voices" / f"{voice}.safetensors")
    mx.clear_cache()
    return folder


def _stored(name: str, value: Any) -> Any:
    """As PyTorch stores it: what the loader transposes, transposed."""
    if value.ndim == 3 and (name.endswith(("weight_v", "_proj.weight")) or "noise_convs" in name):
        return np.ascontiguousarray(value.transpose(0, 2, 1))
    return value
