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


def _field(number: int, value: bytes | str | int) -> bytes:
    """One protobuf field; lengths under 128 but for the graph's."""
    if isinstance(value, int):
        return bytes([number << 3, value]) if number < 16 else bytes([(number << 3) & 0x7F | 0x80, number >> 4, value])
    payload = value.encode() if isinstance(value, str) else value
    length = [len(payload)] if len(payload) < 128 else [len(payload) & 0x7F | 0x80, len(payload) >> 7]
    return bytes([number << 3 | 2, *length]) + payload


def _tensor(name: str, kind: int, *dims: str) -> bytes:
    shape = b"".join(_field(1, _field(2, dim)) for dim in dims)
    return _field(1, name) + _field(2, _field(1, _field(1, kind) + _field(2, shape)))


def _node(op: str, source: str, target: str, attribute: bytes = b"") -> bytes:
    return _field(1, source) + _field(2, target) + _field(4, op) + attribute


def _tiny_model(durations: str) -> bytes:
    """A graph with a Piper voice's names whose samples, and durations, are the ids as floats."""
    to_float = _field(5, _field(1, "to") + _field(3, 1) + _field(20, 2))
    graph = _field(1, _node("Cast", "input", "output", to_float)) + _field(1, _node("Ceil", "output", durations))
    graph += _field(2, "voice")
    for name, kind, dims in (("input", 7, ("b", "n")), ("input_lengths", 7, ("b",)), ("scales", 1, ("s",))):
        graph += _field(11, _tensor(name, kind, *dims))
    graph += _field(12, _tensor("output", 1, "b", "n"))
    return _field(1, 8) + _field(8, _field(1, "") + _field(2, 13)) + _field(7, graph)


@pytest.mark.parametrize(("durations", "word_ends"), [("/Ceil_output_0", (6, 12)), ("other", ())])
def test_durations_are_made_an_output_of_the_graph_if_it_has_them(
    tmp_path: Path, durations: str, word_ends: tuple[int, ...]
) -> None:
    inference = {"noise_scale": 0.1, "length_scale": 1, "noise_w": 0.2}
    config = {"audio": {"sample_rate": 16000}, "inference": inference, "phoneme_id_map": _IDS}
    (tmp_path / "voice.onnx").write_bytes(_tiny_model(durations))
    (tmp_path / "voice.onnx.json").write_text(json.dumps(config), encoding="utf-8")
    voice = PiperVoice.load(tmp_path)
    speech = voice.speak(_WORDS, speed=1.0)
    assert voice.rate_hz == 16_000
    assert speech.samples.tolist() == [1, 0, 5, 0, 6, 0, 4, 0, 3, 0, 5, 0, 2]
    assert speech.word_ends == word_ends  # 13 samples over 26 frames: ends at frames 12 and 24
