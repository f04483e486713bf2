"""``offhook models``: the list, and fetching by model, by backend, by preset, by repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import engines.weights
from engines.api import EngineError
from engines.registry import HubRepo, Weights, weights_name
from gateway.cli import application


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFHOOK_CACHE", str(tmp_path))


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Weights]:
    asked: list[Weights] = []

    def ensure(weights: Weights, progress: Any) -> Path:
        asked.append(weights)
        if weights == "g2p-en":
            raise EngineError("model_fetch_failed", "offline")
        progress(weights_name(weights), 1, 2)
        return tmp_path / weights_name(weights)

    monkeypatch.setattr(engines.weights, "ensure", ensure)
    return asked


def offhook(*arguments: str) -> Any:
    return CliRunner().invoke(application(), ["models", *arguments])


def test_the_list(tmp_path: Path) -> None:
    rows = {row["name"]: row for row in json.loads(offhook("list", "--json").output)}
    assert rows["whisper-tiny.en"]["backends"] == ["faster-whisper-tiny.en"]
    assert rows["kokoro-82m-mlx"]["pinned"] == "commit a71e4d38b236"
    assert rows["smollm2-ctranslate2-int8-1"]["pinned"] == "made from smollm2-gguf"
    assert rows["misaki-en"]["memory_mb"] == 0
    assert {row["state"] for row in rows.values()} == {"missing"}
    text = offhook("list").output
    assert len(text.splitlines()) == len(rows) + 1
    assert str(tmp_path) in text.splitlines()[-1]
    assert "commit 7f0dc925e0d0; Llama 3.2 Community License; llama-3.2-3b-mlx" in text


def test_a_model_a_backend_and_a_repository(fetched: list[Weights], tmp_path: Path) -> None:
    result = offhook("fetch", "silero-vad", "faster-whisper-base", "org/name@v1", "silero")
    assert result.exit_code == 0
    assert fetched == ["silero-vad", "whisper-base", HubRepo("org/name", "v1")]
    assert result.stdout.splitlines()[0] == str(tmp_path / "silero-vad")


def test_a_preset_with_what_stands_in(fetched: list[Weights]) -> None:
    assert offhook("fetch", "--preset", "mac").exit_code == 1  # the last one cannot be had
    assert list(map(weights_name, fetched))[:4] == [
        "silero-vad",
        "smart-turn",
        "whisper-large-v3-turbo-mlx",
        "llama-3.2-3b-4bit",
    ]


def test_what_cannot_be_fetched(fetched: list[Weights]) -> None:
    failed = offhook("fetch", "g2p-en")
    assert (failed.exit_code, "error (model_fetch_failed): offline" in failed.stderr) == (1, True)
    unknown = offhook("fetch", "nonesuch")
    assert (unknown.exit_code, "no model 'nonesuch'; there are: silero-vad" in unknown.stderr) == (2, True)
    assert offhook("fetch").exit_code == 2
    assert fetched == ["g2p-en"]
