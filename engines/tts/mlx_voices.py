"""What a checkpoint folder of a streaming voice says about itself, read without MLX."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_POCKET, _QWEN = "pocket_tts", "qwen3_tts"
_QWEN_LANGUAGES = {
    "zh": "chinese",
    "en": "english",
    "de": "german",
    "it": "italian",
    "pt": "portuguese",
    "es": "spanish",
    "ja": "japanese",
    "ko": "korean",
    "fr": "french",
    "ru": "russian",
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``voice_files`` are the voices that are files (Pocket TTS), ``speakers`` those that are names (Qwen3-TTS
    CustomVoice); ``languages`` maps a language code to the model's word for it."""

    folder: Path
    model_type: str
    voice_files: Mapping[str, Path] = field(default_factory=dict)
    speakers: tuple[str, ...] = ()
    languages: Mapping[str, str] = field(default_factory=dict)
    clones: bool = True
    rate_hz: int = 24_000

    def voices(self, cloned: Iterable[str]) -> tuple[str, ...]:
        """All voices, the cloned ones first: who names one wants it as the default."""
        return tuple(dict.fromkeys([*cloned, *self.voice_files, *self.speakers]))


def read_checkpoint(folder: Path) -> Checkpoint:
    """Raises OSError, ValueError or KeyError if it is none of a streaming voice."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model_type = config.get("model_type")
    if model_type == _POCKET:
        rate_hz = int(config.get("mimi", {}).get("sample_rate", 24_000))
        return Checkpoint(folder, _POCKET, _pocket_voices(folder), languages={"en": "en"}, rate_hz=rate_hz)
    if model_type == _QWEN:
        return _qwen(folder, config)
    raise ValueError(f"{folder / 'config.json'} is of a {model_type!r}, not of {_POCKET} or {_QWEN}")


def _pocket_voices(folder: Path) -> dict[str, Path]:
    return {
        path.stem: path for name in ("voices", "embeddings") for path in sorted((folder / name).glob("*.safetensors"))
    }


def _qwen(folder: Path, config: dict[str, Any]) -> Checkpoint:
    kind = config.get("tts_model_type", "base")
    if kind not in ("base", "custom_voice"):
        raise ValueError(f"{folder} is a {kind} model: Base and CustomVoice ones can be used")
    talker = config["talker_config"]
    known = talker.get("codec_language_id") or {}
    return Checkpoint(
        folder,
        _QWEN,
        speakers=tuple(talker.get("spk_id") or {}) if kind == "custom_voice" else (),
        languages={code: name for code, name in _QWEN_LANGUAGES.items() if name in known},
        clones=kind == "base",
        rate_hz=int(config.get("sample_rate", 24_000)),
    )
