"""SmolLM2 from its GGUF to the two layouts our engines load, with NumPy alone: no torch, no transformers.

Sources: the GGUF specification (ggml), the llama.cpp converter's row order of rotary projections, the CTranslate2
``specs`` package, the safetensors format (8-byte header length, JSON header, raw tensors). Both conversions hold one
dequantised tensor at a time beside their result, and give the same bytes for the same input.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engines.api import EngineError
from engines.llm.chatml import CHAT_TEMPLATE, END, START

if TYPE_CHECKING:
    from gguf import GGUFReader

F32 = npt.NDArray[np.float32]

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"

_CONTROL_TOKEN = 3
"""``tokenizer.ggml.token_type`` of tokens that are never text."""

_HF_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def smollm2_ctranslate2(gguf_dir: Path, out: Path) -> None:
    """Write a CTranslate2 int8 model, ``tokenizer.json`` and ``config.json`` into ``out``.

    ``gguf_dir`` holds :data:`GGUF_NAME`. Raises :class:`EngineError` (``bad_weights``) when it is not what we know.
    """
    from ctranslate2.specs import common_spec, transformer_spec

    source = SmolLm2Source.open(gguf_dir)
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        source.layers,
        source.heads,
        activation=common_spec.Activation.SWISH,
        pre_norm=True,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=0,
        rotary_interleave=False,
        rotary_base=source.rope_base,
        num_heads_kv=source.kv_heads,
    )
    decoder = spec.decoder
    decoder.scale_embeddings = False
    _set_int8(decoder.embeddings, source.tensor("token_embd.weight"))
    decoder.layer_norm.gamma = source.tensor("output_norm.weight")
    if source.tied:
        decoder.projection.weight = decoder.embeddings.weight
        decoder.projection.weight_scale = decoder.embeddings.weight_scale
    else:
        _set_int8(decoder.projection, source.tensor("output.weight"))
    for index, layer in enumerate(decoder.layer):
        part = source.layer(index)
        attention, ffn = layer.self_attention, layer.ffn
        attention.layer_norm.gamma = part("attn_norm")
        ffn.layer_norm.gamma = part("ffn_norm")
        _set_int8(attention.linear[0], np.concatenate([part("attn_q"), part("attn_k"), part("attn_v")]))
        _set_int8(attention.linear[1], part("attn_output"))
        _set_int8(ffn.linear_0, part("ffn_gate"))
        _set_int8(ffn.linear_0_noact, part("ffn_up"))
        _set_int8(ffn.linear_1, part("ffn_down"))
    spec.register_vocabulary(source.tokens)
    spec.config.layer_norm_epsilon = source.rms_epsilon
    spec.config.bos_token = START
    spec.config.eos_token = END
    spec.config.unk_token = source.tokens[0]
    spec.validate()
    spec.optimize(quantization=None)  # aliases equal variables: the tied projection is stored once
    out.mkdir(parents=True, exist_ok=True)
    spec.save(str(out))
    write_tokenizer(source, out)


def smollm2_mlx(gguf_dir: Path, out: Path) -> None:
    """Write a float32 checkpoint that ``mlx_lm.load`` takes: ``model.safetensors``, ``config.json`` and the tokenizer
    with its chat template. Float32, because 16-bit kernels of MLX on a CPU are scalar loops.
    """
    source = SmolLm2Source.open(gguf_dir)
    out.mkdir(parents=True, exist_ok=True)
    names = sorted((_hf_name(name), name) for name in source.names)
    _write_safetensors(
        out / "model.safetensors",
        [(hf, source.shape(name)) for hf, name in names],
        (source.tensor(name) for _, name in names),
    )
    eos, bos, pad = (source.fact(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "bos", "padding"))
    ids = {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": source.fact("llama.embedding_length"),
        "intermediate_size": source.fact("llama.feed_forward_length"),
        "max_position_embeddings": source.fact("llama.context_length"),
        "model_type": "llama",
        "num_attention_heads": source.heads,
        "num_hidden_layers": source.layers,
        "num_key_value_heads": source.kv_heads,
        "rms_norm_eps": source.rms_epsilon,
        "rope_theta": source.rope_base,
        "tie_word_embeddings": source.tied,
        "torch_dtype": "float32",
        "vocab_size": len(source.tokens),
        **ids,
    }
    _write_json(out / "config.json", config)
    _write_json(out / "generation_config.json", ids)
    write_tokenizer(source, out)
    _write_json(
        out / "tokenizer_config.json",
        {
            "add_bos_token": False,
            "bos_token": source.tokens[bos],
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "eos_token": source.tokens[eos],
            "model_max_length": source.fact("llama.context_length"),
            "pad_token": source.tokens[pad],
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": source.tokens[0],
        },
    )


@dataclass(frozen=True)
class SmolLm2Source:
    """A llama-shaped GGUF, read tensor by tensor (the file is memory-mapped)."""

    reader: GGUFReader
    tokens: list[str]
    heads: int
    kv_heads: int
    layers: int

    @classmethod
    def open(cls, gguf_dir: Path) -> SmolLm2Source:
        from gguf import GGUFReader

        path = gguf_dir / GGUF_NAME
        try:
            reader = GGUFReader(path)
            facts = {name: field.contents for name, field in reader.fields.items()}
            if facts["general.architecture"]() != "llama" or facts["tokenizer.ggml.pre"]() != "smollm":
                raise EngineError("bad_weights", f"{path} is not a SmolLM2 GGUF")
            template = facts["tokenizer.chat_template"]()
            if START not in template or END not in template:
                raise EngineError("bad_weights", f"{path} does not use the ChatML prompt format")
            return cls(
                reader,
                facts["tokenizer.ggml.tokens"](),
                int(facts["llama.attention.head_count"]()),
                int(facts["llama.attention.head_count_kv"]()),
                int(facts["llama.block_count"]()),
            )
        except (OSError, ValueError, KeyError) as error:
            raise EngineError("bad_weights", f"{path} could not be read: {error}") from error

    def fact(self, name: str) -> Any:
        return self.reader.fields[name].contents()

    @property
    def names(self) -> list[str]:
        return [tensor.name for tensor in self.reader.tensors]

    @property
    def tied(self) -> bool:
        return "output.weight" not in self.names

    @property
    def rope_base(self) -> float:
        return float(self.fact("llama.rope.freq_base"))

    @property
    def rms_epsilon(self) -> float:
        """Rounded to the decimal it was meant to be: the file holds it in single precision."""
        return float(f"{self.fact('llama.attention.layer_norm_rms_epsilon'):.6g}")

    def shape(self, name: str) -> tuple[int, ...]:
        found = next(tensor for tensor in self.reader.tensors if tensor.name == name)
        return tuple(int(size) for size in reversed(found.shape))

    def tensor(self, name: str) -> F32:
        """Dequantised, rows of rotary projections in the half-split order that Hugging Face and CTranslate2 use."""
        from gguf import dequantize

        found = next(tensor for tensor in self.reader.tensors if tensor.name == name)
        value: F32 = dequantize(found.data, found.tensor_type).astype(np.float32)
        if name.endswith(".attn_q.weight"):
            return _half_split_rows(value, self.heads)
        if name.endswith(".attn_k.weight"):
            return _half_split_rows(value, self.kv_heads)
        return value

    def layer(self, index: int) -> Callable[[str], F32]:
        return lambda part: self.tensor(f"blk.{index}.{part}.weight")


def _half_split_rows(weight: F32, heads: int) -> F32:
    """llama GGUFs keep the rows of q and k as (head, pair, half); the others want (head, half, pair)."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, half, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def _set_int8(layer: Any, weight: F32) -> None:
    """Quantise per output row, as CTranslate2 does: scale = 127 / max|row|."""
    largest = np.abs(weight).max(axis=1)
    largest[largest == 0] = 127.0
    scale = (127.0 / largest).astype(np.float32)
    layer.weight = np.rint(weight * scale[:, None]).astype(np.int8)
    layer.weight_scale = scale


def _hf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    top = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    if stem in top:
        return f"{top[stem]}.weight"
    _, index, part = stem.split(".")
    return f"model.layers.{index}.{_HF_LAYER_NAMES[part]}.weight"


def _write_safetensors(path: Path, shapes: list[tuple[str, tuple[int, ...]]], tensors: Iterator[F32]) -> None:
    """Tensors one after another, never all in memory."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    offset = 0
    for name, shape in shapes:
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # readers map the data: keep it aligned
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)))
        file.write(encoded)
        for value, (_, shape) in zip(tensors, shapes, strict=True):
            assert value.shape == shape
            file.write(np.ascontiguousarray(value, dtype="<f4").data)


def write_tokenizer(source: SmolLm2Source, out: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    merges = [tuple(merge.split(" ", 1)) for merge in source.fact("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(source.tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = source.fact("tokenizer.ggml.token_type")
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(source.tokens, types, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(out / "tokenizer.json"))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
