"""A Kokoro checkpoint as its model's own code would have saved it, from an ONNX export quantised to 8 bits.

The hub's checkpoint is out of reach where only a package index is; the export is not. Names and shapes are PyTorch's
(``decoder.decode.0.conv1.weight_g``), so that both Kokoro engines take the result; what quantisation lost stays lost
(speech reads back the same). Facts used: ONNX's protobuf layout (onnx.proto3), and that the exporter folds weight
normalisation, transposes linear layers and orders an LSTM's gates input, output, forget, cell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

SOURCE_MODEL = "kokoro-v1.0.int8.onnx"
SOURCE_VOICES = "voices_ja.npz"
SOURCE_VOCAB = "vocab.json"
CHECKPOINT = "kokoro-v1_0.safetensors"

CONFIG: dict[str, Any] = {
    "istftnet": {
        "upsample_kernel_sizes": [20, 12],
        "upsample_rates": [10, 6],
        "gen_istft_hop_size": 5,
        "gen_istft_n_fft": 20,
        "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
        "resblock_kernel_sizes": [3, 7, 11],
        "upsample_initial_channel": 512,
    },
    "dim_in": 64,
    "dropout": 0.2,
    "hidden_dim": 512,
    "max_conv_dim": 512,
    "max_dur": 50,
    "multispeaker": True,
    "n_layer": 3,
    "n_mels": 80,
    "n_token": 178,
    "style_dim": 128,
    "text_encoder_kernel_size": 5,
    "plbert": {
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 2048,
        "max_position_embeddings": 512,
        "num_hidden_layers": 12,
        "dropout": 0.1,
    },
}
"""Kokoro-82M v1.0's, without its vocabulary."""

_ALBERT = "bert.encoder.albert_layer_groups.0.albert_layers.0"
_LINEAR = {
    "onnx::MatMul_6547": "bert.encoder.embedding_hidden_mapping_in",
    "onnx::MatMul_6548": f"{_ALBERT}.attention.query",
    "onnx::MatMul_6551": f"{_ALBERT}.attention.key",
    "onnx::MatMul_6554": f"{_ALBERT}.attention.value",
    "onnx::MatMul_6558": f"{_ALBERT}.attention.dense",
    "onnx::MatMul_6559": f"{_ALBERT}.ffn",
    "onnx::MatMul_6560": f"{_ALBERT}.ffn_output",
    "onnx::MatMul_6704": "bert_encoder",
    "onnx::MatMul_6886": "predictor.duration_proj.linear_layer",
    "onnx::MatMul_6993": "decoder.generator.m_source.l_linear",
}
"""Linear layers lost their names; the file is pinned by its hash, so these are theirs."""
_LSTM = {
    "/encoder/text_encoder/lstm/": "text_encoder.lstm",
    "/encoder/predictor/text_encoder/lstms.0/": "predictor.text_encoder.lstms.0",
    "/encoder/predictor/text_encoder/lstms.2/": "predictor.text_encoder.lstms.2",
    "/encoder/predictor/text_encoder/lstms.4/": "predictor.text_encoder.lstms.4",
    "/encoder/predictor/lstm/": "predictor.lstm",
    "/encoder/shared/": "predictor.shared",
}
_TYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64}


def kokoro_from_onnx(source: Path, into: Path) -> None:
    """``source`` holds the export, a table of voices and the vocabulary; ``into`` gets ``config.json``, the
    checkpoint and ``voices/NAME.safetensors`` (key ``voice``, shape (510, 1, 256)).

    Raises KeyError or ValueError if the export is another one.
    """
    from safetensors.numpy import save_file

    vocab = json.loads((source / SOURCE_VOCAB).read_text(encoding="utf-8"))["vocab"]
    (into / "config.json").write_text(json.dumps({**CONFIG, "vocab": vocab}), encoding="utf-8")
    save_file(Export((source / SOURCE_MODEL).read_bytes()).checkpoint(), into / CHECKPOINT)
    (into / "voices").mkdir()
    with np.load(source / SOURCE_VOICES) as voices:
        for name in voices.files:
            save_file({"voice": voices[name].astype(np.float32)}, into / "voices" / f"{name}.safetensors")


class Export:
    """The tensors and nodes of an ONNX file."""

    def __init__(self, content: bytes) -> None:
        self._tensors: dict[str, Array] = {}
        self._nodes: list[tuple[str, str, list[str], list[str]]] = []
        (graph,) = [value for number, value in _fields(memoryview(content)) if number == 7]
        for number, value in _fields(graph):
            if number == 1:
                self._nodes.append(_node(value))
            elif number == 5:
                name, tensor = _tensor(value)
                self._tensors[name] = tensor

    def checkpoint(self) -> dict[str, Floats]:
        out: dict[str, Floats] = {}
        for name, tensor in self._tensors.items():
            target = _named(name)
            if target is not None and tensor.dtype == np.float32:
                out[target] = np.asarray(tensor, np.float32)
        for operation, name, inputs, _ in self._nodes:
            if operation == "DynamicQuantizeLSTM":
                out.update(self._lstm(name, inputs))
            elif operation in ("MatMulInteger", "ConvInteger") and inputs[1] in self._tensors:
                self._put(out, inputs[1].removesuffix("_quantized"), self._unquantised(inputs[1], inputs[3]))
            elif operation == "DequantizeLinear":
                (gather,) = [node for node in self._nodes if inputs[0] in node[3]]
                self._put(out, gather[2][0].removesuffix("_quantized"), self._unquantised(gather[2][0], inputs[2]))
        for name, tensor in self._tensors.items():
            if tensor.dtype == np.float32 and (name in _LINEAR or _folded(name)):
                self._put(out, name, tensor)
        # Nothing uses the pooler, so no export has it; loaders that count their tensors want it there.
        out["bert.pooler.weight"] = np.zeros((768, 768), np.float32)
        out["bert.pooler.bias"] = np.zeros(768, np.float32)
        return {name: np.ascontiguousarray(value) for name, value in out.items()}

    def _put(self, out: dict[str, Floats], name: str, weight: Floats) -> None:
        """File a dequantised or folded weight under its layer's name, as that layer keeps it."""
        linear = _LINEAR.get(re.sub(r"_\d$", "", name) if name.startswith("onnx::MatMul") else "")
        layer = _folded(name)
        if linear is not None:
            out[f"{linear}.weight"] = weight.T
        elif layer is not None:
            length = np.sqrt(np.square(weight).sum(axis=(1, 2), keepdims=True))
            # Rounding left some channels nothing: length 0, in any direction but none.
            out[f"{layer}.weight_v"] = np.where(length > 0, weight, np.float32(1))
            out[f"{layer}.weight_g"] = length
        else:
            target = _named(name)
            if target is None:
                raise KeyError(f"a weight of no known layer: {name}")
            out[target] = weight.T if target.endswith(".fc.weight") else weight

    def _unquantised(self, name: str, zero_name: str) -> Floats:
        scale = self._tensors[name.removesuffix("_quantized") + "_scale"]
        zero = self._tensors[zero_name].astype(np.int32)
        values: Floats = ((self._tensors[name].astype(np.int32) - zero) * scale).astype(np.float32)
        return values

    def _lstm(self, name: str, inputs: list[str]) -> dict[str, Floats]:
        (layer,) = [layer for path, layer in _LSTM.items() if name.startswith(path)]
        out: dict[str, Floats] = {}
        scales = {"weight_ih": (1, 8, 9), "weight_hh": (2, 10, 11)}
        for weight, (values, scale, zero) in scales.items():
            tensor = self._tensors[inputs[values]].astype(np.float32)
            shift = self._tensors[inputs[zero]].astype(np.float32).reshape(2, 1, 1)
            tensor = (tensor - shift) * self._tensors[inputs[scale]].reshape(2, 1, 1)
            for direction, suffix in enumerate(("", "_reverse")):
                out[f"{layer}.{weight}_l0{suffix}"] = _gates(tensor[direction].T)
        biases = self._tensors[inputs[3]].reshape(2, 2, -1)
        for direction, suffix in enumerate(("", "_reverse")):
            for part, bias in enumerate(("bias_ih", "bias_hh")):
                out[f"{layer}.{bias}_l0{suffix}"] = _gates(biases[direction, part])
        return out


def _gates(rows: Array) -> Floats:
    """From ONNX's order to PyTorch's: input, forget, cell, output."""
    i, o, f, c = np.split(rows, 4)
    return np.concatenate((i, f, c, o)).astype(np.float32)


def _named(name: str) -> str | None:
    """The layer's own name, of a tensor that kept it."""
    for prefix, target in (("encoder.", ""), ("decoder.decoder.", "decoder.")):
        if name.startswith(prefix) and not name.endswith(("_scale", "_zero_point", "_quantized", "_shape", "_basis")):
            return None if name.endswith("window_sum") else target + name.removeprefix(prefix)
    return None


def _folded(name: str) -> str | None:
    """The layer whose normalised weight was folded into this constant: they are numbered in the order of use."""
    found = re.fullmatch(r"/(encoder|decoder/decoder)(?:/(.+))?/Mul(?:_(\d+))?_output_0", name)
    if found is None:
        return None
    scope, path, number = found[1], found[2] or "", int(found[3] or 0)
    if re.fullmatch(r"text_encoder/cnn\.\d", path):
        return f"text_encoder.cnn.{path[-1]}.0"
    if re.fullmatch(r"[FN]0?\.\d", path):
        return f"predictor.{path}.{_block(path in ('F0.1', 'N.1'))[number]}"
    if scope == "encoder":
        return None
    if not path:
        return "decoder." + ("F0_conv", "N_conv")[number]
    if path == "asr_res":
        return "decoder.asr_res.0"
    if path == "generator":
        return "decoder.generator." + ("ups.0", "ups.1", "conv_post")[number]
    if re.fullmatch(r"generator/(resblocks|noise_res)\.\d", path):
        pair, rest = divmod(number - 2, 6)
        if rest not in (0, 3):
            return None
        return f"decoder.{path.replace('/', '.')}.{'convs2' if rest else 'convs1'}.{pair}"
    if re.fullmatch(r"encode|decode\.\d", path):
        return f"decoder.{path}.{_block(path == 'decode.3')[number]}"
    return None


def _block(upsamples: bool) -> tuple[str, ...]:
    return ("pool", "conv1", "conv2", "conv1x1") if upsamples else ("conv1", "conv2", "conv1x1")


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a protobuf message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            if kind != 2:
                raise ValueError("not a protobuf message")
            size, at = _varint(data, at)
        if at + size > len(data):
            raise ValueError("a protobuf message that is cut off")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a protobuf message that is cut off")


def _node(message: memoryview) -> tuple[str, str, list[str], list[str]]:
    """Operation, name, inputs, outputs."""
    found = [(number, bytes(value).decode()) for number, value in _fields(message) if number in (1, 2, 3, 4)]
    texts: dict[int, list[str]] = {number: [value for n, value in found if n == number] for number in (1, 2, 3, 4)}
    return texts[4][0], "".join(texts[3]), texts[1], texts[2]


def _tensor(message: memoryview) -> tuple[str, Array]:
    shape: list[int] = []
    kind, name, raw, floats, ints = 0, "", b"", b"", []
    for number, value in _fields(message):
        if number == 1:
            shape += [value] if isinstance(value, int) else _packed(value)
        elif number == 2:
            kind = value
        elif number == 4:
            floats += bytes(value)
        elif number in (5, 7):
            ints += [value] if isinstance(value, int) else _packed(value)
        elif number == 8:
            name = bytes(value).decode()
        elif number == 9:
            raw = bytes(value)
    if kind not in _TYPES:
        return name, np.zeros(0, np.int64)
    if raw:
        return name, np.frombuffer(raw, np.dtype(_TYPES[kind]).newbyteorder("<")).reshape(shape)
    if floats:
        return name, np.frombuffer(floats, "<f4").reshape(shape)
    return name, np.array(ints, np.uint64).astype(np.int64).astype(_TYPES[kind]).reshape(shape)


def _packed(data: memoryview) -> list[int]:
    values, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        values.append(value)
    return values
