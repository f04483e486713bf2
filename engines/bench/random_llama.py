"""Llamas of several shapes with random weights: the cost of a real model's kernels without its download."""

from __future__ import annotations

from typing import Any

_START, _END = "<|im_start|>", "<|im_end|>"
_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + ' ' + m['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant ' }}{% endif %}"
)

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


def word(number: int) -> str:
    """The word of a token: one word, one token, as :func:`random_checkpoint`'s tokenizer has it."""
    return f"w{number}"


def random_checkpoint(shape: str) -> tuple[Any, Any]:
    """A model with a tokenizer for it, as ``mlx_lm.load`` gives them. It never stops by itself. For the MLX thread."""
    from mlx_lm.tokenizer_utils import TokenizerWrapper
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model = random_llama(shape)
    names = ["<unk>", _START, _END, "system", "user", "assistant"]
    names += [word(number) for number in range(len(names), int(model.args.vocab_size))]
    words = Tokenizer(models.WordLevel(vocab={name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens([AddedToken(name, special=True) for name in names[:3]])
    make: Any = PreTrainedTokenizerFast  # it has no types
    fast = make(
        tokenizer_object=words,
        unk_token="<unk>",
        bos_token=_START,
        clean_up_tokenization_spaces=False,
        chat_template=_TEMPLATE,
    )
    return model, TokenizerWrapper(fast)
