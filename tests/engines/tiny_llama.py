"""A llama of two layers with random weights, written with NumPy: the real mlx-lm path, loaded in a fraction of a
second. Its words mean nothing, but each depends on all before it, so a wrong cache shows in the next token."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

os.environ.setdefault("MLX_DISABLE_COMPILE", "1")  # else each new kernel costs a run of the C++ compiler

needs_mlx = pytest.mark.skipif(
    importlib.util.find_spec("mlx") is None or importlib.util.find_spec("mlx_lm") is None,
    reason="mlx and mlx-lm are not installed (no wheels for this platform)",
)

START, END = "<|im_start|>", "<|im_end|>"
ROLES = ("system", "user", "assistant")
WORDS = tuple(first + last for first in "bdfgklmnprst" for last in ("a", "e", "i", "o", "u", "ay", "ow", "ie"))
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + ' ' + m['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant ' }}{% endif %}"
)


def write_tiny_llama(folder: Path, *, byte_level: bool = False, stops: bool = True) -> Path:
    """A checkpoint folder for ``mlx_lm.load``. One word, one token; or with ``byte_level`` one byte, one
    token. Without ``stops`` a reply ends only at its limit."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = _write_tokenizer(folder, byte_level)
    hidden, inner, heads, kv_heads = 64, 128, 4, 2
    random = np.random.default_rng(7)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> npt.NDArray[np.float32]:
        return np.asarray(random.standard_normal((rows, columns)) * gain / np.sqrt(columns), np.float32)

    kv = hidden // heads * kv_heads
    weights = {
        "model.embed_tokens.weight": matrix(vocabulary, hidden, 8.0),
        "lm_head.weight": matrix(vocabulary, hidden, 4.0),
        "model.norm.weight": np.ones(hidden, np.float32),
    }
    weights["lm_head.weight"][2] *= 1.2 if stops else 0.0  # END comes now and then, or never
    for layer in range(2):
        name = f"model.layers.{layer}."
        weights |= {
            name + "input_layernorm.weight": np.ones(hidden, np.float32),
            name + "post_attention_layernorm.weight": np.ones(hidden, np.float32),
            name + "self_attn.q_proj.weight": matrix(hidden, hidden, 1.5),
            name + "self_attn.k_proj.weight": matrix(kv, hidden, 1.5),
            name + "self_attn.v_proj.weight": matrix(kv, hidden, 4.0),
            name + "self_attn.o_proj.weight": matrix(hidden, hidden, 4.0),
            name + "mlp.gate_proj.weight": matrix(inner, hidden),
            name + "mlp.up_proj.weight": matrix(inner, hidden),
            name + "mlp.down_proj.weight": matrix(hidden, inner),
        }
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": 2,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocabulary,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _write_tokenizer(folder: Path, byte_level: bool) -> int:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    specials = ["<unk>", START, END]
    if byte_level:
        entries = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())]
        tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(entries)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        entries = [*specials, *ROLES, *WORDS]
        tokenizer = Tokenizer(models.WordLevel(vocab={token: i for i, token in enumerate(entries)}, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": START,
        "eos_token": END,
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(entries)
