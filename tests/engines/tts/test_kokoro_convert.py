"""An ONNX file written by hand, read without ONNX: layouts, gate order, names. The real export is a model test's."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from engines.tts.kokoro_convert import Export, _folded, _named

_CODES = {np.dtype(np.float32): 1, np.dtype(np.uint8): 2, np.dtype(np.int8): 3, np.dtype(np.int64): 7}


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(name: str, values: Any) -> bytes:
    shape = b"".join(field(1, size) for size in values.shape)
    return field(5, shape + field(2, _CODES[values.dtype]) + field(8, name) + field(9, values.tobytes()))


def node(operation: str, name: str, inputs: list[str], outputs: list[str]) -> bytes:
    parts = [*(field(1, each) for each in inputs), *(field(2, each) for each in outputs)]
    return field(1, b"".join(parts) + field(3, name) + field(4, operation))


def model(*graph: bytes) -> bytes:
    return field(1, 8) + field(2, "by hand") + field(7, b"".join(graph))


def f32(*values: Any) -> Any:
    return np.array(values, np.float32)


def test_layers_come_back_as_their_model_keeps_them() -> None:
    conv = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    conv[1] = 7  # the zero point: a channel that rounding left nothing
    checkpoint = Export(
        model(
            tensor("onnx::MatMul_6704_quantized", np.arange(6, dtype=np.int8).reshape(3, 2)),
            tensor("onnx::MatMul_6704_scale", f32(0.5, 2.0)),
            tensor("zero", np.zeros(2, np.int8)),
            tensor("/encoder/F0.1/Mul_1_output_0_quantized", conv),
            tensor("/encoder/F0.1/Mul_1_output_0_scale", np.array(0.1, np.float32)),
            tensor("seven", np.array(7, np.uint8)),
            tensor("/decoder/decoder/generator/Mul_output_0", np.ones((2, 3, 4), np.float32)),
            tensor("encoder.bert_encoder.bias", f32(1, 2)),
            tensor("decoder.decoder.generator.stft.istft.stft.inverse_basis", f32(1)),
            tensor("encoder.text_encoder.embedding.weight_quantized", np.array([[1], [3]], np.int8)),
            tensor("encoder.text_encoder.embedding.weight_scale", np.array(0.25, np.float32)),
            tensor("one", np.array(1, np.int8)),
            node("MatMulInteger", "m", ["x", "onnx::MatMul_6704_quantized", "xz", "zero"], ["y"]),
            node("ConvInteger", "c", ["x", "/encoder/F0.1/Mul_1_output_0_quantized", "xz", "seven"], ["z"]),
            node("Gather", "g", ["encoder.text_encoder.embedding.weight_quantized", "ids"], ["rows"]),
            node("DequantizeLinear", "d", ["rows", "encoder.text_encoder.embedding.weight_scale", "one"], ["embedded"]),
        )
    ).checkpoint()
    assert checkpoint["bert_encoder.weight"].tolist() == [[0, 1, 2], [2, 6, 10]]  # outputs first
    assert checkpoint["bert_encoder.bias"].tolist() == [1, 2]
    assert checkpoint["text_encoder.embedding.weight"].tolist() == [[0], [0.5]]
    length, direction = (checkpoint[f"predictor.F0.1.conv1.weight_{part}"] for part in "gv")
    assert length.shape == (2, 1, 1)
    folded = direction * length / np.sqrt(np.square(direction).sum(axis=(1, 2), keepdims=True))
    assert np.allclose(folded, (conv.astype(np.float32) - 7) * 0.1)
    assert length[1] == 0
    assert np.allclose(checkpoint["decoder.generator.ups.0.weight_g"], np.sqrt(12))
    assert not any("stft" in name for name in checkpoint)


def test_an_lstm_has_pytorchs_order_of_gates() -> None:
    # Units of one: each gate's row holds its own letter's number. ONNX: input, output, forget, cell.
    onnx_order = np.array([1, 4, 2, 3], np.int8)
    weights = np.stack([onnx_order, onnx_order + 10]).reshape(2, 1, 4)
    biases = np.concatenate([onnx_order, onnx_order + 20, onnx_order + 40, onnx_order + 60])
    names = ["x", "W", "R", "B", "", "", "", "", "Ws", "Wz", "Rs", "Rz"]
    checkpoint = Export(
        model(
            tensor("W", weights),
            tensor("R", weights),
            tensor("B", biases.astype(np.float32).reshape(2, 8)),
            tensor("Ws", f32(1, 2)),
            tensor("Wz", np.array([0, 10], np.int8)),
            tensor("Rs", f32(1, 1)),
            tensor("Rz", np.zeros(2, np.int8)),
            node("DynamicQuantizeLSTM", "/encoder/shared/LSTM_quant", names, ["y"]),
        )
    ).checkpoint()
    found = {name.removeprefix("predictor.shared."): value.ravel().tolist() for name, value in checkpoint.items()}
    assert found["weight_ih_l0"] == [1, 2, 3, 4]
    assert found["weight_ih_l0_reverse"] == [2, 4, 6, 8]
    assert found["weight_hh_l0_reverse"] == [11, 12, 13, 14]
    assert found["bias_ih_l0"] == [1, 2, 3, 4]
    assert found["bias_hh_l0"] == [21, 22, 23, 24]
    assert found["bias_ih_l0_reverse"] == [41, 42, 43, 44]
    assert found["bias_hh_l0_reverse"] == [61, 62, 63, 64]


@pytest.mark.parametrize(
    ("constant", "layer"),
    [
        ("/encoder/text_encoder/cnn.2/Mul_output_0", "text_encoder.cnn.2.0"),
        ("/encoder/N.1/Mul_output_0", "predictor.N.1.pool"),
        ("/encoder/N.1/Mul_3_output_0", "predictor.N.1.conv1x1"),
        ("/encoder/F0.0/Mul_1_output_0", "predictor.F0.0.conv2"),
        ("/decoder/decoder/Mul_1_output_0", "decoder.N_conv"),
        ("/decoder/decoder/decode.3/Mul_output_0", "decoder.decode.3.pool"),
        ("/decoder/decoder/decode.0/Mul_2_output_0", "decoder.decode.0.conv1x1"),
        ("/decoder/decoder/generator/resblocks.5/Mul_8_output_0", "decoder.generator.resblocks.5.convs1.1"),
        ("/decoder/decoder/generator/noise_res.0/Mul_17_output_0", "decoder.generator.noise_res.0.convs2.2"),
        ("/decoder/decoder/generator/noise_res.0/Mul_4_output_0", None),
        ("/decoder/decoder/generator/Mul_2_output_0", "decoder.generator.conv_post"),
        ("/encoder/bert/Mul_1_output_0", None),
        ("decoder.decoder.generator.ups.0.bias", None),
    ],
)
def test_which_layer_a_folded_constant_was(constant: str, layer: str | None) -> None:
    assert _folded(constant) == layer


def test_names_that_were_kept() -> None:
    assert _named("encoder.predictor.F0_proj.bias") == "predictor.F0_proj.bias"
    assert _named("decoder.decoder.generator.m_source.l_linear.bias") == "decoder.generator.m_source.l_linear.bias"
    assert _named("onnx::LSTM_1") is None


@pytest.mark.parametrize("content", [b"\xff" * 20, b"not a model at all, surely", struct.pack("<I", 7)])
def test_what_is_no_export(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (of any kind)
        Export(content)


def test_a_weight_of_no_known_layer() -> None:
    odd = model(
        tensor("odd_quantized", np.zeros((1, 1), np.int8)),
        tensor("odd_scale", f32(1)),
        tensor("zero", np.zeros(1, np.int8)),
        node("MatMulInteger", "m", ["x", "odd_quantized", "xz", "zero"], ["y"]),
    )
    with pytest.raises(KeyError, match="odd"):
        Export(odd).checkpoint()
