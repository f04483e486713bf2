"""SmolLM2 from its GGUF to the ONNX graph that :mod:`engines.llm.onnx_model` runs, without the onnx package.

Sources: the field numbers of ``onnx.proto3``, the operators of onnxruntime's ``com.microsoft`` domain
(``docs/ContribOperators.md``). Weights are int8 in blocks of 32 with a scale each: what the GGUF holds as Q8_0 stays as
it is, and its Q4_1 loses less than by one scale a row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from engines.llm.convert import SmolLm2Source, write_tokenizer

GRAPH_NAME = "model.onnx"
WEIGHTS_NAME = "model.weights"
FACTS_NAME = "config.json"

BLOCK = 32
MAX_POSITIONS = 8192
"""The longest context the model was trained on."""

_FLOAT, _UINT8, _INT32, _INT64 = 1, 2, 6, 7
_DTYPES = {"float32": _FLOAT, "uint8": _UINT8, "int64": _INT64}
_MICROSOFT = "com.microsoft"
_ALIGNED = 4096
"""External data is memory-mapped, so it begins on a page."""

Attribute = int | float


def smollm2_onnx(gguf_dir: Path, out: Path) -> None:
    """Write graph, weights, ``tokenizer.json`` and ``config.json`` into ``out``. Raises as
    :func:`engines.llm.convert.smollm2_ctranslate2`."""
    source = SmolLm2Source.open(gguf_dir)
    out.mkdir(parents=True, exist_ok=True)
    with (out / WEIGHTS_NAME).open("wb") as weights:
        graph = _Graph(weights, source)
        (out / GRAPH_NAME).write_bytes(graph.model())
    hidden = int(source.fact("llama.embedding_length"))
    facts = {
        "layers": source.layers,
        "kv_heads": source.kv_heads,
        "head_size": hidden // source.heads,
        "hidden_size": hidden,
        "vocabulary": len(source.tokens),
        "embedding_at": graph.at["head.weight"],
        "embedding_scales_at": graph.at["head.scales"],
    }
    (out / FACTS_NAME).write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    write_tokenizer(source, out)


def quantized(weight: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """``weight`` (n, k) as (n, k / 32, 32) bytes around 128, and scales (n, k / 32)."""
    blocks = weight.reshape(weight.shape[0], -1, BLOCK)
    scales = (np.abs(blocks).max(axis=2) / 127).astype(np.float32)
    scales[scales == 0] = 1.0
    return (np.rint(blocks / scales[:, :, None]) + 128).astype(np.uint8), scales


class _Graph:
    """Nodes and weights as they are added; weights go to their file at once."""

    def __init__(self, weights: BinaryIO, source: SmolLm2Source) -> None:
        self.at: dict[str, int] = {}
        self._weights = weights
        self._source = source
        self._nodes: list[bytes] = []
        self._initializers: list[bytes] = []
        self._inputs: list[bytes] = []
        self._outputs: list[bytes] = []

    def model(self) -> bytes:
        self._build()
        graph = b"".join(
            [
                *(_field(1, node) for node in self._nodes),
                _text(2, "smollm2"),
                *(_field(5, tensor) for tensor in self._initializers),
                *(_field(11, value) for value in self._inputs),
                *(_field(12, value) for value in self._outputs),
            ]
        )
        opsets = _field(8, _text(1, "") + _number(2, 17)) + _field(8, _text(1, _MICROSOFT) + _number(2, 1))
        return _number(1, 8) + _field(7, graph) + opsets

    def _build(self) -> None:
        source = self._source
        hidden, heads, kv_heads = int(source.fact("llama.embedding_length")), source.heads, source.kv_heads
        size = hidden // heads
        self._rotary(size)
        self._input("x", _FLOAT, (None, None, hidden))
        self._input("last", _INT32, (None,))
        self._input("total", _INT32, ())
        skip, out = "x", ""
        for index in range(source.layers):
            part, name = source.layer(index), f"layer{index}."
            skip, normal = self._norm(name + "attention_norm", skip, out, part("attn_norm"))
            qkv = np.concatenate([part("attn_q"), part("attn_k"), part("attn_v")])
            past = [f"past_{kind}_{index}" for kind in ("key", "value")]
            present = [f"present_{kind}_{index}" for kind in ("key", "value")]
            for value in past:
                self._input(value, _FLOAT, (None, kv_heads, None, size))
            for value in present:
                self._output(value, (None, kv_heads, None, size))
            self._node(
                "GroupQueryAttention",
                [self._product(name + "qkv", normal, qkv), "", "", *past, "last", "total", "cosines", "sines"],
                [name + "attention", *present],
                domain=_MICROSOFT,
                num_heads=heads,
                kv_num_heads=kv_heads,
                do_rotary=1,
            )
            out = self._product(name + "attention_out", name + "attention", part("attn_output"))
            skip, normal = self._norm(name + "ffn_norm", skip, out, part("ffn_norm"))
            gate = self._product(name + "gate", normal, part("ffn_gate"))
            up = self._product(name + "up", normal, part("ffn_up"))
            self._node("QuickGelu", [gate], [name + "silu"], domain=_MICROSOFT, alpha=1.0)
            self._node("Mul", [name + "silu", up], [name + "gated"])
            out = self._product(name + "down", name + "gated", part("ffn_down"))
        _, normal = self._norm("norm", skip, out, source.tensor("output_norm.weight"))
        self._tensor("end", np.array(-1, np.int64))
        self._node("Gather", [normal, "end"], ["newest"], axis=1)
        self._output(self._product("head", "newest", self._head(), to="logits"), (None, len(source.tokens)))

    def _head(self) -> npt.NDArray[np.float32]:
        return self._source.tensor("token_embd.weight" if self._source.tied else "output.weight")

    def _norm(self, name: str, skip: str, out: str, gamma: npt.NDArray[np.float32]) -> tuple[str, str]:
        """The residual stream after ``out`` was added, and its RMS norm."""
        self._tensor(name + ".gamma", gamma)
        epsilon = self._source.rms_epsilon
        if not out:
            self._node("SimplifiedLayerNormalization", [skip, name + ".gamma"], [name], epsilon=epsilon, axis=-1)
            return skip, name
        inputs, outputs = [out, skip, name + ".gamma"], [name, "", "", name + ".sum"]
        self._node("SkipSimplifiedLayerNormalization", inputs, outputs, domain=_MICROSOFT, epsilon=epsilon)
        return name + ".sum", name

    def _product(self, name: str, value: str, weight: npt.NDArray[np.float32], to: str = "") -> str:
        quants, scales = quantized(weight)
        self._tensor(name + ".weight", quants)
        self._tensor(name + ".scales", scales)
        rows, columns = weight.shape
        self._node(
            "MatMulNBits",
            [value, name + ".weight", name + ".scales"],
            [to or name],
            domain=_MICROSOFT,
            K=columns,
            N=rows,
            bits=8,
            block_size=BLOCK,
            accuracy_level=4,  # activations in int8 too, as CTranslate2 has them
        )
        return to or name

    def _rotary(self, size: int) -> None:
        steps = self._source.rope_base ** (-np.arange(0, size, 2, dtype=np.float64) / size)
        angles = np.arange(MAX_POSITIONS)[:, None] * steps
        self._tensor("cosines", np.cos(angles).astype(np.float32))
        self._tensor("sines", np.sin(angles).astype(np.float32))

    def _node(
        self, operator: str, inputs: Iterable[str], outputs: Sequence[str], *, domain: str = "", **attributes: Attribute
    ) -> None:
        parts = [*(_text(1, name) for name in inputs), *(_text(2, name) for name in outputs)]
        parts += [_text(3, outputs[0] + ":" + operator), _text(4, operator)]
        parts += [_field(5, _attribute(name, value)) for name, value in attributes.items()]
        self._nodes.append(b"".join([*parts, _text(7, domain)]))

    def _tensor(self, name: str, value: npt.NDArray[np.generic]) -> None:
        start = -(-self._weights.tell() // _ALIGNED) * _ALIGNED
        self._weights.write(b"\0" * (start - self._weights.tell()))
        data = np.ascontiguousarray(value).tobytes()
        self._weights.write(data)
        self.at[name] = start
        where = {"location": WEIGHTS_NAME, "offset": str(start), "length": str(len(data))}
        parts = [_number(1, size) for size in value.shape]
        parts += [_number(2, _DTYPES[value.dtype.name]), _text(8, name)]
        parts += [_field(13, _text(1, key) + _text(2, text)) for key, text in where.items()]
        self._initializers.append(b"".join([*parts, _number(14, 1)]))

    def _input(self, name: str, kind: int, shape: tuple[int | None, ...]) -> None:
        self._inputs.append(_value(name, kind, shape))

    def _output(self, name: str, shape: tuple[int | None, ...]) -> None:
        self._outputs.append(_value(name, _FLOAT, shape))


def _value(name: str, kind: int, shape: tuple[int | None, ...]) -> bytes:
    sizes = b"".join(_field(1, b"" if size is None else _number(1, size)) for size in shape)
    return _text(1, name) + _field(2, _field(1, _number(1, kind) + _field(2, sizes)))


def _attribute(name: str, value: Attribute) -> bytes:
    if isinstance(value, float):
        return _text(1, name) + _key(2, 5) + np.float32(value).tobytes() + _number(20, 1)
    return _text(1, name) + _number(3, value) + _number(20, 2)


def _key(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _number(number: int, value: int) -> bytes:
    return _key(number, 0) + _varint(value % 2**64)


def _text(number: int, value: str) -> bytes:
    return _field(number, value.encode())


def _field(number: int, content: bytes) -> bytes:
    return _key(number, 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
