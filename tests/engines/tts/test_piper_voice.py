"""Ids in, samples and word places out, over a session that stands for onnxruntime's."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engines.tts.g2p.english import SpokenWord
from engines.tts.piper_voice import PiperVoice, VoiceConfig, encode

_IDS = {"_": [0], "^": [1], "$": [2], " ": [3], ",": [4], "a": [5], "b": [6]}
_WORDS = [SpokenWord("ab", 2, ","), SpokenWord("aʘ", 5, "")]


class _Session:
    def __init__(self, durations: list[float] | None) -> None:
        self.durations = durations
        self.fed: dict[str, Any] = {}

    def get_outputs(self) -> list[SimpleNamespace]:
        names = ["output"] if self.durations is None else ["output", "/Ceil_output_0"]
        return [SimpleNamespace(name=name) for name in names]

    def run(self, outputs: list[str], feeds: dict[str, Any], _options: object) -> list[Any]:
        self.fed = feeds
        results = [np.full((1, 1, 1, 1000), 0.5, np.float32), np.array([[self.durations]], np.float32)]
        return results[: len(outputs)]


def _voice(session: _Session) -> PiperVoice:
    return PiperVoice(session, VoiceConfig(22_050, _IDS, noise=0.667, length=1.0, duration_noise=0.8))


def test_ids_are_padded_and_unknown_phonemes_left_out() -> None:
    sequence = encode(_WORDS, _IDS)
    assert sequence.ids == [1, 0, 5, 0, 6, 0, 4, 0, 3, 0, 5, 0, 2]
    assert sequence.word_ends == (6, 12)


def test_word_ends_are_where_the_durations_say() -> None:
    session = _Session([1.0] * 12 + [8.0])
    speech = _voice(session).speak(_WORDS, speed=2.0)
    assert speech.samples.shape == (1000,)
    assert speech.word_ends == (300, 600)
    assert session.fed["input"].shape == (1, 13)
    assert session.fed["input_lengths"].tolist() == [13]
    assert session.fed["scales"].tolist() == pytest.approx([0.667, 0.5, 0.8])


@pytest.mark.parametrize("durations", [None, [1.0] * 5, [0.0] * 13, [float("nan")] * 13])
def test_without_usable_durations_there_are_no_word_ends(durations: list[float] | None) -> None:
    assert _voice(_Session(durations)).speak(_WORDS, speed=1.0).word_ends == ()


def test_config_is_read_from_the_voices_json(tmp_path: Path) -> None:
    path = tmp_path / "voice.onnx.json"
    inference = {"noise_scale": 0.1, "length_scale": 1, "noise_w": 0.2}
    content = {"audio": {"sample_rate": 16000}, "inference": inference, "phoneme_id_map": {"a": [5]}}
    path.write_text(json.dumps(content), encoding="utf-8")
    assert VoiceConfig.read(path) == VoiceConfig(16_000, {"a": [5]}, 0.1, 1.0, 0.2)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PiperVoice.load(tmp_path)
