"""A Whisper of two layers with random weights in CTranslate2's layout, as the converter takes it: the real vocabulary
and the real shapes, loaded in a fraction of a second. Its words mean nothing, but each depends on the audio and on all
words before it, so a wrong cache or mask shows in the next token."""

from __future__ import annotations

import importlib.util
import os
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

os.environ.setdefault("MLX_DISABLE_COMPILE", "1")  # else each new kernel costs a run of the C++ compiler

needs_mlx_whisper = pytest.mark.skipif(
    importlib.util.find_spec("mlx") is None or importlib.util.find_spec("mlx_whisper") is None,
    reason="mlx and mlx-whisper are not installed (no wheels for this platform)",
)

ENGLISH_TOKENS, MULTILINGUAL_TOKENS = 51_864, 51_865
_MELS, _STATE, _HEADS, _LAYERS = 80, 32, 2, 2
_TYPES = {"float32": 0, "int8": 1, "int32": 3, "float16": 4}

Variables = dict[str, npt.NDArray[np.generic]]


def tiny_variables(tokens: int = ENGLISH_TOKENS) -> Variables:
    random = np.random.default_rng(11)
    made: Variables = {}

    def matrix(*shape: int, gain: float = 1.0) -> npt.NDArray[np.float16]:
        return np.asarray(random.standard_normal(shape) * gain / np.sqrt(np.prod(shape[1:])), np.float16)

    def linear(name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        made[f"{name}/weight"] = matrix(rows, columns, gain=gain)
        made[f"{name}/bias"] = matrix(rows, 1, gain=0.1)[:, 0]

    def norm(name: str) -> None:
        made[f"{name}/gamma"] = np.ones(_STATE, np.float16)
        made[f"{name}/beta"] = np.zeros(_STATE, np.float16)

    made["encoder/conv1/weight"], made["encoder/conv1/bias"] = matrix(_STATE, _MELS, 3), matrix(_STATE, 1)[:, 0]
    made["encoder/conv2/weight"], made["encoder/conv2/bias"] = matrix(_STATE, _STATE, 3), matrix(_STATE, 1)[:, 0]
    for side in ("encoder", "decoder"):
        made[f"{side}/num_heads"] = np.array(_HEADS, np.int32)
        norm(f"{side}/layer_norm")
        for layer in range(_LAYERS):
            name = f"{side}/layer_{layer}"
            for part in ("self_attention", "attention") if side == "decoder" else ("self_attention",):
                norm(f"{name}/{part}/layer_norm")
            linear(f"{name}/self_attention/linear_0", 3 * _STATE, _STATE, 2.0)
            made[f"{name}/self_attention/linear_0/bias"][_STATE : 2 * _STATE] = 0  # the keys have none
            linear(f"{name}/self_attention/linear_1", _STATE, _STATE, 2.0)
            if side == "decoder":
                linear(f"{name}/attention/linear_0", _STATE, _STATE, 3.0)
                linear(f"{name}/attention/linear_1", 2 * _STATE, _STATE, 3.0)
                made[f"{name}/attention/linear_1/bias"][:_STATE] = 0
                linear(f"{name}/attention/linear_2", _STATE, _STATE, 3.0)
            norm(f"{name}/ffn/layer_norm")
            linear(f"{name}/ffn/linear_0", 4 * _STATE, _STATE)
            linear(f"{name}/ffn/linear_1", _STATE, 4 * _STATE)
    made["decoder/embeddings/weight"] = matrix(tokens, _STATE, gain=4.0)
    made["decoder/position_encodings/encodings"] = matrix(448, _STATE, gain=12.0)
    return made


def write_tiny_whisper(folder: Path, variables: Variables | None = None) -> Path:
    """``model.bin`` as CTranslate2 writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    variables = tiny_variables() if variables is None else variables

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    parts = [struct.pack("<I", 6), text("WhisperSpec"), struct.pack("<II", 3, len(variables))]
    for name, values in variables.items():
        parts += [text(name), struct.pack(f"<B{values.ndim}I", values.ndim, *values.shape)]
        parts += [struct.pack("<BI", _TYPES[values.dtype.name], values.nbytes), values.tobytes()]
    parts += [struct.pack("<I", 1), text("decoder/projection/weight"), text("decoder/embeddings/weight")]
    (folder / "model.bin").write_bytes(b"".join(parts))
    return folder
