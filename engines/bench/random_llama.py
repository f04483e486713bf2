"""Llamas of several shapes with random weights: the cost of a real model's kernels without its download."""

from __future__ import annotations

from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
    },
    "small": {
        "hidden_size": 512,
        "num_hidden_layers": 8,
        "intermediate_size": 1536,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 4096,
    },
    "3b": {
        "hidden_size": 3072,
        "num_hidden_layers": 28,
        "intermediate_size": 8192,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
    },
}
"""Arguments of mlx-lm's llama; ``3b`` is Llama-3.2-3B's."""


def random_llama(shape: str) -> Any:
    """An mlx-lm model, evaluated; bfloat16 for ``3b``, else float32 (the CPU's kernels are slow for less). For the MLX
    thread."""
    import mlx.core as mx
    from mlx_lm.models import llama

    arguments = {
        "model_type": "llama",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
    }
    mx.random.seed(7)
    model = llama.Model(llama.ModelArgs.from_dict(arguments | SHAPES[shape]))
    if shape == "3b":
        model.set_dtype(mx.bfloat16)
    mx.eval(model.parameters())
    return model
