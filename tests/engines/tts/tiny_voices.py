"""Streaming voices of random weights, as checkpoint folders that mlx-audio's loader takes: a Pocket TTS of 0.5 M
parameters and a Qwen3-TTS of 0.2 M. Their sounds mean nothing, but each depends on all before it in its stream."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming.audio.wav import encode_wav

os.environ.setdefault("MLX_DISABLE_COMPILE", "1")  # else each new kernel costs a run of the C++ compiler

_LAST = frozenset(("mimi.decoder.final_conv1d.conv.conv.weight", "decoder.decoder.6.conv.weight"))
"""The layers that make samples."""
_WORDS = (
    "[UNK]",
    ".",
    "!",
    "?",
    "...",
    ",",
    "Yes",
    "we",
    "are",
    "open",
    "on",
    "Saturday",
    "from",
    "nine",
    "to",
    "five",
)


def _numbers(text: str) -> dict[str, Any]:
    """``"a=1 b=2"`` as a dictionary."""
    return {name: int(value) for name, _, value in (pair.partition("=") for pair in text.split())}


POCKET: dict[str, Any] = {
    "model_type": "pocket_tts",
    "eos_threshold": 1e9,  # a segment ends at its limit, 12.5 frames a word and 25 more
    "flow_lm": _numbers(
        "d_model=64 num_heads=4 num_layers=2 dim_feedforward=128 max_period=10000 lut_dim=64 flow_dim=64 flow_depth=1"
        f" ldim=16 n_bins={len(_WORDS)}"
    ),
    "mimi": _numbers(
        "channels=1 sample_rate=24000 dimension=64 quantizer_dimension=16 quantizer_output_dimension=64 n_filters=8"
        " n_residual_layers=1 kernel_size=7 last_kernel_size=3 residual_kernel_size=3 dilation_base=2 compress=2"
        " transformer_d_model=64 transformer_num_heads=4 transformer_num_layers=1 transformer_context=64"
        " transformer_max_period=10000 transformer_dim_feedforward=128"
    )
    | {"frame_rate": 12.5, "ratios": [6, 5, 4], "transformer_layer_scale": 0.01},
}

_HEADS = _numbers(
    "hidden_size=32 intermediate_size=64 num_attention_heads=4 num_key_value_heads=2 head_dim=8 num_code_groups=4"
)
QWEN: dict[str, Any] = {
    "model_type": "qwen3_tts",
    "tts_model_type": "custom_voice",
    "tts_model_size": "0b6",
    "talker_config": _HEADS
    | _numbers(
        "vocab_size=1088 num_hidden_layers=2 text_hidden_size=32 text_vocab_size=40 codec_eos_token_id=1070"
        " codec_think_id=1071 codec_nothink_id=1072 codec_think_bos_id=1073 codec_think_eos_id=1074 codec_pad_id=1075"
        " codec_bos_id=1076"
    )
    | {
        "rope_scaling": {"interleaved": True, "mrope_section": [2, 1, 1], "rope_type": "default"},
        "codec_language_id": {"english": 1077},
        "spk_id": {"vivian": 1078, "ryan": 1079},
        "code_predictor_config": _HEADS | {"vocab_size": 64, "num_hidden_layers": 1},
    },
} | _numbers("im_start_token_id=1 im_end_token_id=2 tts_pad_token_id=3 tts_bos_token_id=4 tts_eos_token_id=5")
QWEN_CODEC = _numbers(
    "latent_dim=32 codebook_dim=16 codebook_size=64 decoder_dim=32 hidden_size=16 intermediate_size=32 head_dim=8"
    " num_attention_heads=2 num_hidden_layers=1 num_key_value_heads=2 num_quantizers=4 sliding_window=16"
    " vector_quantization_hidden_dimension=16"
)


def write_recording(path: Path, seconds: float = 2.0, rate_hz: int = 16_000, pitch_hz: float = 220.0) -> Path:
    at = np.arange(int(seconds * rate_hz)) / rate_hz
    path.write_bytes(encode_wav([(np.sin(2 * np.pi * pitch_hz * at) * 9000).astype(np.int16)], rate_hz))
    return path


def write_tiny_pocket(folder: Path) -> Path:
    from mlx_audio.tts.models.pocket_tts import Model, ModelConfig
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(_WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(POCKET))
    _save(Model(ModelConfig.from_dict({**POCKET, "model_path": str(folder)})), folder, gain=1.5, quieter=0.01)
    return folder


def write_tiny_qwen(folder: Path) -> Path:
    from mlx_audio.tts.models.qwen3_tts import Model, ModelConfig
    from mlx_audio.tts.models.qwen3_tts.config import Qwen3TTSTokenizerConfig
    from mlx_audio.tts.models.qwen3_tts.speech_tokenizer import Qwen3TTSSpeechTokenizer
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    codec = folder / "speech_tokenizer"
    codec.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(QWEN))
    (codec / "config.json").write_text(json.dumps({"decoder_config": QWEN_CODEC}))
    _save(Model(ModelConfig.from_dict({**QWEN, "model_path": str(folder)})), folder, gain=2.0)
    _save(Qwen3TTSSpeechTokenizer(Qwen3TTSTokenizerConfig(decoder_config=QWEN_CODEC)), codec, gain=1.5, quieter=0.02)
    specials = ["<|im_start|>", "<|im_end|>"]
    words = ["<unk>", *specials, "<pad>", "<bos>", "<eos>", "assistant", "\n", *_WORDS[1:]]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in specials])
    tokenizer.add_tokens([AddedToken("\n"), AddedToken("assistant")])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def patch_qwen_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader guesses a convolution's layout from its sizes, and guesses wrong for such small ones."""
    from mlx_audio.tts.models.qwen3_tts import qwen3_tts

    monkeypatch.setattr(qwen3_tts, "check_array_shape_qwen3", lambda array: True)


def _save(model: Any, folder: Path, gain: float, quieter: float = 1.0) -> None:
    """Weights made with NumPy, louder than the library's own: its sounds would be under -50 dB."""
    from mlx.utils import tree_flatten
    from safetensors.numpy import save_file

    random = np.random.default_rng(17)
    weights: dict[str, Any] = {}
    for name, array in tree_flatten(model.parameters()):
        value = np.array(array)
        if value.ndim > 1:
            value = (random.standard_normal(value.shape) * gain / np.sqrt(np.prod(value.shape[1:]))).astype(np.float32)
        weights[name] = value
    for name in _LAST & set(weights):
        weights[name] = weights[name] * np.float32(quieter)
    save_file(weights, folder / "model.safetensors")
