"""What a checkpoint folder says about its voices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.tts.mlx_voices import read_checkpoint
from tests.engines.tts.tiny_voices import POCKET, QWEN


def _write(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_pocket_voices_are_files(tmp_path: Path) -> None:
    for name in ("embeddings/marius", "embeddings/alba", "voices/eve"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.safetensors").touch()
    found = read_checkpoint(_write(tmp_path, POCKET))
    assert found.voices(["bob"]) == ("bob", "eve", "alba", "marius")
    assert found.languages == {"en": "en"}
    assert found.rate_hz == 24_000


def test_qwen_speakers_are_names_or_recordings(tmp_path: Path) -> None:
    found = read_checkpoint(_write(tmp_path, QWEN))
    assert found.voices([]) == ("vivian", "ryan")
    assert found.languages == {"en": "english"}
    assert not found.clones
    base = read_checkpoint(_write(tmp_path, {**QWEN, "tts_model_type": "base"}))
    assert base.voices(["bob"]) == ("bob",)
    assert base.clones


@pytest.mark.parametrize("config", [{}, {"model_type": "kokoro"}, {**QWEN, "tts_model_type": "voice_design"}])
def test_other_models_are_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=str(tmp_path)):
        read_checkpoint(_write(tmp_path, config))
