"""Any stage of a preset replaced: by name, by family and model, by weights of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.api import EngineError
from engines.registry import BACKENDS, Folder, HubRepo, Kind, find_lineup
from engines.selection import Choice, families, select


def first(kind: Kind, choice: Choice, preset: str = "embedded") -> Any:
    return select(preset, {kind: choice}).chains[kind][0]


def names(kind: Kind, choice: Choice, preset: str = "embedded") -> list[str]:
    return [spec.name for spec in select(preset, {kind: choice}).chains[kind]]


def test_nothing_chosen_is_the_preset() -> None:
    assert select("mac", {"stt": Choice(), "llm": Choice()}) == find_lineup("mac")


def test_a_backend_by_name_or_by_family_and_model() -> None:
    assert names("stt", Choice(("faster-whisper-base",))) == ["faster-whisper-base"]
    assert names("stt", Choice(("faster-whisper",), "base")) == ["faster-whisper-base"]
    assert names("stt", Choice(("faster-whisper",))) == ["faster-whisper-tiny.en"]
    assert names("llm", Choice(("mlx-lm",), "qwen3-4b")) == ["qwen3-4b-mlx"]
    # Without a backend, the model is one of the preset's own; what stands in stays.
    assert names("stt", Choice(model="base")) == ["faster-whisper-base"]
    assert names("llm", Choice(model="qwen3-4b"), "mac") == ["qwen3-4b-mlx", "smollm2-onnx"]
    assert names("stt", Choice(model="base"), "mlx-cpu") == ["faster-whisper-base"]


def test_a_chain_of_ones_own_has_nothing_of_the_presets() -> None:
    assert names("llm", Choice(("mlx-lm",)), "mac") == ["smollm2-mlx"]
    choice = Choice(("openai-compatible", "ctranslate2"), "any")
    assert names("llm", choice, "mac") == ["openai-chat", "smollm2-ctranslate2"]


def test_a_served_model_is_a_name_that_is_passed_on() -> None:
    spec = first("llm", Choice(("openai-compatible",), "qwen3:8b", {"base_url": "http://127.0.0.1:1/v1"}))
    assert spec.options == {"api_key_env": "", "model": "qwen3:8b", "base_url": "http://127.0.0.1:1/v1"}
    assert BACKENDS["openai-chat"].options["api_key_env"] == "OPENAI_API_KEY"
    assert first("llm", Choice(("openai-compatible",))).options["api_key_env"] == "OPENAI_API_KEY"
    named = Choice(("openai-compatible",), options={"base_url": "https://x/v1", "api_key_env": "X_KEY"})
    assert first("llm", named).options["api_key_env"] == "X_KEY"


def test_a_server_of_ones_own_has_models_of_its_own() -> None:
    url = {"base_url": "http://127.0.0.1:1/v1"}
    for kind in ("stt", "llm", "tts"):
        assert first(kind, Choice(("openai-compatible",), options=url)).options["model"] == ""
        assert first(kind, Choice(("openai-compatible",), "mine", url)).options["model"] == "mine"
    default = BACKENDS["openai-chat"].options["model"]
    for openai in (Choice(("openai-compatible",)), Choice((), "", {"base_url": "https://api.openai.com/v1"})):
        assert first("llm", openai, "cloud").options["model"] == default


def test_weights_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    for model in ("./mine", "mine", str(tmp_path / "mine")):
        spec = first("llm", Choice(("mlx-lm",), model))
        assert (spec.weights, spec.memory_mb) == ((Folder(tmp_path / "mine"),), 0)
    repo = first("llm", Choice(("mlx-lm",), "mlx-community/Qwen3-8B-4bit"))
    assert repo.weights == (HubRepo("mlx-community/Qwen3-8B-4bit", None),)
    pinned = first("stt", Choice(("faster-whisper",), "org/name@v1"))
    assert pinned.weights == (HubRepo("org/name", "v1"),)
    # A voice brings its own weights, not its language's.
    voice = first("tts", Choice(("mlx-kokoro",), "org/kokoro"))
    assert voice.weights == (HubRepo("org/kokoro", None), "misaki-en", "g2p-en")


@pytest.mark.parametrize(
    ("kind", "choice", "code", "said"),
    [
        ("llm", Choice(("gpt",)), "unknown_backend", r"no llm backend 'gpt'; there are: .*mlx-lm.*openai-compatible"),
        ("stt", Choice(("piper-joe",)), "unknown_backend", "no stt backend 'piper-joe'"),
        ("xyz", Choice(("piper-joe",)), "unknown_backend", "no stage 'xyz'"),
        ("stt", Choice(("faster-whisper",), "huge"), "unknown_model", r"tiny\.en, base.*; or a folder, or owner/name"),
        ("llm", Choice(("scripted-llm",), "org/name"), "unknown_model", "takes none"),
        (
            "llm",
            Choice(options={"base_url": "http://x"}),
            "bad_options",
            "takes no base_url; these do: openai-compatible",
        ),
    ],
)
def test_what_there_is_not_is_told_with_what_there_is(kind: Any, choice: Choice, code: str, said: str) -> None:
    with pytest.raises(EngineError, match=said) as caught:
        select("null" if kind == "xyz" else "embedded", {kind: choice})
    assert caught.value.code == code


def test_the_families_of_a_stage() -> None:
    assert families("stt")["faster-whisper"][:2] == ["tiny.en", "base"]
    assert families("vad") == {"silero": [], "energy": []}
