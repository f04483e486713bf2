"""Streaming models of mlx-audio with random weights and a few hundred thousand parameters: the real sessions, without a
word that means anything. Each word depends on the audio and the words before it."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("MLX_DISABLE_COMPILE", "1")  # else each new kernel costs a run of the C++ compiler

needs_mlx_audio = pytest.mark.skipif(
    importlib.util.find_spec("mlx") is None or importlib.util.find_spec("mlx_audio") is None,
    reason="mlx and mlx-audio are not installed (no wheels for this platform)",
)

_PIECES = [first + last for first in "bdfgklmnprst" for last in ("a", "e", "i", "o", "u")]


def write_tiny_nemotron(folder: Path) -> None:
    """A Nemotron ASR checkpoint that hears in chunks of 160 ms. Needs the thread that MLX runs on."""
    from mlx_audio.stt.models.nemotron_asr.nemotron_asr import Model, ModelConfig

    vocabulary = ["<unk>", *("▁" + piece for piece in _PIECES)]
    config: dict[str, Any] = {
        "model_type": "nemotron_asr",
        "preprocessor": {"features": 32},
        "encoder": {
            "feat_in": 32,
            "n_layers": 2,
            "d_model": 32,
            "n_heads": 2,
            "ff_expansion_factor": 2,
            "subsampling_conv_channels": 8,
            "att_context_size": [[14, 1]],
        },
        "prompt": {"num_prompts": 4, "prompt_hidden": 32, "prompt_dictionary": {"auto": 0, "en-US": 1, "de-DE": 2}},
        "decoder": {"pred_hidden": 16, "pred_rnn_layers": 1, "vocab_size": len(vocabulary)},
        "joint": {"joint_hidden": 16, "encoder_hidden": 32, "pred_hidden": 16, "num_classes": len(vocabulary)},
        "vocabulary": vocabulary,
        "default_att_context_size": [14, 1],
        "max_symbols": 2,
    }
    model = Model(ModelConfig.from_dict(config))
    _write(folder, model, config)


def write_tiny_voxtral(folder: Path) -> None:
    """A Voxtral Realtime checkpoint. Needs the thread that MLX runs on."""
    from mlx_audio.stt.models.voxtral_realtime.config import ModelConfig
    from mlx_audio.stt.models.voxtral_realtime.voxtral_realtime import Model

    block = {"n_layers": 2, "n_heads": 2, "head_dim": 16, "n_kv_heads": 2, "hidden_dim": 48}
    config: dict[str, Any] = {
        "model_type": "voxtral_realtime",
        "encoder_args": {"dim": 32, "sliding_window": 64, **block, "audio_encoding_args": {}},
        "decoder": {
            "dim": 3072,  # what the encoder projects to, whatever its config says
            "vocab_size": 40 + len(_PIECES),
            "sliding_window": 256,
            "ada_rms_norm_t_cond_dim": 4,
            **block,
        },
        "transcription_delay_ms": 160,
        "n_left_pad_tokens": 4,
        "streaming_pad_token_id": 32,
    }
    model = Model(ModelConfig.from_dict(config))
    _write(folder, model, config)
    vocabulary = [{"token_bytes": base64.b64encode(f" {piece}".encode()).decode()} for piece in _PIECES]
    tekken = {"config": {"default_num_special_tokens": 40}, "vocab": vocabulary, "special_tokens": []}
    (folder / "tekken.json").write_text(json.dumps(tekken))


def _write(folder: Path, model: Any, config: dict[str, Any]) -> None:
    import mlx.core as mx
    from mlx.utils import tree_flatten

    random = np.random.default_rng(5)
    weights = {}
    for name, value in tree_flatten(model.parameters()):
        if value.ndim < 2:
            weights[name] = mx.ones(value.shape) if name.endswith("weight") else mx.zeros(value.shape)
        else:
            gain = 2.0 / np.sqrt(np.prod(value.shape[1:]))
            weights[name] = mx.array((random.standard_normal(value.shape) * gain).astype(np.float32))
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
