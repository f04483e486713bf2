"""Whisper from CTranslate2's layout to the one mlx-whisper loads, with NumPy alone.

Sources: CTranslate2's model serialisation (binary version 6: u32 version; spec name; u32 revision; u32 count; for each
variable its name, u8 rank, u32 dimensions, u8 type, u32 bytes, the data; then aliases, strings being u16-length and
NUL-terminated), mlx-whisper's parameter names, the safetensors format. The same input gives the same bytes.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engines.api import EngineError

F32 = npt.NDArray[np.float32]

_BINARY_VERSION = 6
_SPEC = "WhisperSpec"
_TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)
_AUDIO_POSITIONS = 1500


def whisper_mlx(ctranslate2_dir: Path, out: Path) -> None:
    """Write ``config.json`` and ``weights.safetensors`` (float32) into ``out``, for ``mlx_whisper.load_models``.

    ``ctranslate2_dir`` holds ``model.bin``, float or int8. Raises :class:`EngineError` (``bad_weights``) when it is not
    what we know.
    """
    try:
        variables = _read(ctranslate2_dir / "model.bin")
        checkpoint = _Checkpoint(variables, {})
        config = checkpoint.convert()
    except (OSError, KeyError, ValueError, IndexError, struct.error) as error:
        message = f"{ctranslate2_dir} holds no CTranslate2 Whisper of a layout we know: {error!r}"
        raise EngineError("bad_weights", message) from error
    _write_safetensors(out / "weights.safetensors", checkpoint.tensors)
    (out / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True))


def _read(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    reader = _Reader(path.read_bytes())
    version, spec = reader.number("I"), reader.text()
    if version != _BINARY_VERSION or spec != _SPEC:
        raise ValueError(f"binary version {version}, model {spec!r}")
    reader.number("I")  # the spec's revision
    variables: dict[str, npt.NDArray[np.generic]] = {}
    for _ in range(reader.number("I")):
        name = reader.text()
        shape = tuple(reader.number("I") for _ in range(reader.number("B")))
        kind = _TYPES[reader.number("B")]
        variables[name] = np.frombuffer(reader.take(reader.number("I")), kind).reshape(shape)
    for _ in range(reader.number("I")):
        alias = reader.text()
        variables[alias] = variables[reader.text()]
    return variables


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def take(self, count: int) -> memoryview:
        if self._at + count > len(self._data):
            raise ValueError("the file ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, format_: str) -> int:
        (value,) = struct.unpack("<" + format_, self.take(struct.calcsize(format_)))
        return int(value)

    def text(self) -> str:
        return bytes(self.take(self.number("H"))).rstrip(b"\0").decode()


@dataclass(slots=True)
class _Checkpoint:
    """``tensors`` fills as the parts are converted."""

    variables: dict[str, npt.NDArray[np.generic]]
    tensors: dict[str, F32]

    def convert(self) -> dict[str, int | str]:
        """All tensors; returns the configuration."""
        for name in ("conv1", "conv2"):
            # (out, in, width) to MLX's (out, width, in)
            self.tensors[f"encoder.{name}.weight"] = self._get(f"encoder/{name}/weight").transpose(0, 2, 1)
            self.tensors[f"encoder.{name}.bias"] = self._get(f"encoder/{name}/bias")
        layers = {side: self._layers(side) for side in ("encoder", "decoder")}
        for side, count in layers.items():
            for index in range(count):
                self._block(f"{side}.blocks.{index}", f"{side}/layer_{index}")
        self._norm("encoder.ln_post", "encoder/layer_norm")
        self._norm("decoder.ln", "decoder/layer_norm")
        embedding = self._get("decoder/embeddings/weight")
        positions = self._get("decoder/position_encodings/encodings")
        self.tensors["decoder.token_embedding.weight"] = embedding
        self.tensors["decoder.positional_embedding"] = positions
        return {
            "model_type": "whisper",
            "n_mels": int(self.variables["encoder/conv1/weight"].shape[1]),
            "n_audio_ctx": _AUDIO_POSITIONS,
            "n_audio_state": embedding.shape[1],
            "n_audio_head": int(self.variables["encoder/num_heads"]),
            "n_audio_layer": layers["encoder"],
            "n_vocab": embedding.shape[0],
            "n_text_ctx": positions.shape[0],
            "n_text_state": embedding.shape[1],
            "n_text_head": int(self.variables["decoder/num_heads"]),
            "n_text_layer": layers["decoder"],
        }

    def _layers(self, side: str) -> int:
        prefix = f"{side}/layer_"
        numbers = [name[len(prefix) :].split("/")[0] for name in self.variables if name.startswith(prefix)]
        return 1 + max(int(number) for number in numbers if number.isdigit())

    def _block(self, to: str, source: str) -> None:
        own = f"{source}/self_attention"
        self._norm(f"{to}.attn_ln", f"{own}/layer_norm")
        # The keys' bias is stored as zeros: Whisper has none.
        for part, name in enumerate(("query", "key", "value")):
            self._linear(f"{to}.attn.{name}", f"{own}/linear_0", part, 3, bias=name != "key")
        self._linear(f"{to}.attn.out", f"{own}/linear_1")
        if to.startswith("decoder"):
            cross = f"{source}/attention"
            self._norm(f"{to}.cross_attn_ln", f"{cross}/layer_norm")
            self._linear(f"{to}.cross_attn.query", f"{cross}/linear_0")
            self._linear(f"{to}.cross_attn.key", f"{cross}/linear_1", 0, 2, bias=False)
            self._linear(f"{to}.cross_attn.value", f"{cross}/linear_1", 1, 2)
            self._linear(f"{to}.cross_attn.out", f"{cross}/linear_2")
        self._norm(f"{to}.mlp_ln", f"{source}/ffn/layer_norm")
        self._linear(f"{to}.mlp1", f"{source}/ffn/linear_0")
        self._linear(f"{to}.mlp2", f"{source}/ffn/linear_1")

    def _linear(self, to: str, source: str, part: int = 0, parts: int = 1, *, bias: bool = True) -> None:
        weight = self._get(f"{source}/weight")
        rows = slice(part * weight.shape[0] // parts, (part + 1) * weight.shape[0] // parts)
        self.tensors[f"{to}.weight"] = weight[rows]
        if bias:
            self.tensors[f"{to}.bias"] = self._get(f"{source}/bias")[rows]

    def _norm(self, to: str, source: str) -> None:
        self.tensors[f"{to}.weight"] = self._get(f"{source}/gamma")
        self.tensors[f"{to}.bias"] = self._get(f"{source}/beta")

    def _get(self, name: str) -> F32:
        values = self.variables[name]
        real = values.astype(np.float32)
        if np.issubdtype(values.dtype, np.integer):
            scale = self.variables[f"{name}_scale"].astype(np.float32)  # one a row: real = stored / scale
            real = real / scale.reshape(scale.shape + (1,) * (real.ndim - scale.ndim))
        return real


def _write_safetensors(path: Path, tensors: dict[str, F32]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    at = 0
    for name, values in sorted(tensors.items()):
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    encoded = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)))
        file.write(encoded)
        for _, values in sorted(tensors.items()):
            file.write(np.ascontiguousarray(values).tobytes())
