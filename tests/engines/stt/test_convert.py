"""From CTranslate2's layout to MLX's: every tensor lands where mlx-whisper wants it, and nonsense is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from engines.api import EngineError
from engines.stt.convert import whisper_mlx
from tests.engines.stt.tiny_whisper import tiny_variables, write_tiny_whisper


def converted(tmp_path: Path) -> dict[str, npt.NDArray[np.float32]]:
    from safetensors.numpy import load_file

    out = tmp_path / "out"
    out.mkdir()
    whisper_mlx(tmp_path, out)
    loaded: dict[str, npt.NDArray[np.float32]] = load_file(out / "weights.safetensors")
    return loaded


def test_fused_projections_are_split_and_kernels_turned(tmp_path: Path) -> None:
    variables = tiny_variables()
    write_tiny_whisper(tmp_path, variables)
    tensors = converted(tmp_path)
    fused = variables["decoder/layer_1/self_attention/linear_0/weight"].astype(np.float32)
    for index, name in enumerate(("query", "key", "value")):
        assert np.array_equal(tensors[f"decoder.blocks.1.attn.{name}.weight"], fused[32 * index : 32 * (index + 1)])
    assert "decoder.blocks.1.attn.key.bias" not in tensors
    cross = variables["decoder/layer_0/attention/linear_1/weight"].astype(np.float32)
    assert np.array_equal(tensors["decoder.blocks.0.cross_attn.value.weight"], cross[32:])
    kernel = variables["encoder/conv1/weight"].astype(np.float32)
    assert np.array_equal(tensors["encoder.conv1.weight"], kernel.transpose(0, 2, 1))
    assert not any(".cross_attn" in name for name in tensors if name.startswith("encoder"))


def test_int8_rows_are_scaled_back(tmp_path: Path) -> None:
    variables = tiny_variables()
    name = "encoder/layer_0/ffn/linear_0/weight"
    real = variables[name].astype(np.float32)
    scale = 127 / np.abs(real).max(axis=1)
    variables[name] = np.rint(real * scale[:, None]).astype(np.int8)
    variables[f"{name}_scale"] = scale.astype(np.float32)
    write_tiny_whisper(tmp_path, variables)
    assert np.abs(converted(tmp_path)["encoder.blocks.0.mlp1.weight"] - real).max() <= 0.51 / scale.min()


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    write_tiny_whisper(tmp_path)
    written = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        whisper_mlx(tmp_path, tmp_path / name)
        written.append([(tmp_path / name / file).read_bytes() for file in ("weights.safetensors", "config.json")])
    assert written[0] == written[1]


@pytest.mark.parametrize("spoil", ["cut", "other", "missing", "none"])
def test_what_is_not_a_whisper_is_refused(tmp_path: Path, spoil: str) -> None:
    variables = tiny_variables()
    if spoil == "missing":
        del variables["decoder/layer_0/attention/linear_2/weight"]
    path = write_tiny_whisper(tmp_path, variables) / "model.bin"
    if spoil == "cut":
        path.write_bytes(path.read_bytes()[:-5000])
    elif spoil == "other":
        path.write_bytes(path.read_bytes().replace(b"WhisperSpec", b"WhimperSpec", 1))
    elif spoil == "none":
        path.unlink()
    with pytest.raises(EngineError) as raised:
        whisper_mlx(tmp_path, tmp_path)
    assert raised.value.code == "bad_weights"
    assert not (tmp_path / "weights.safetensors").exists()
