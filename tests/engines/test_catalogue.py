"""The catalogue's own rules."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest

from engines import catalogue
from engines.api import EngineError
from engines.catalogue import MODELS, HubRevision, Model, WheelFile

SHA256 = re.compile(r"[0-9a-f]{64}")


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_everything_is_pinned_and_described(model: Model) -> None:
    assert model.licence
    assert model.download_bytes > 0
    assert model.memory_mb > 0
    assert model.source.files
    if isinstance(model.source, WheelFile):
        assert SHA256.fullmatch(model.source.wheel_sha256)
        assert all(SHA256.fullmatch(str(sha256)) for sha256 in model.source.files.values())
        names = [PurePosixPath(path).name for path in model.source.files]
        assert len(set(names)) == len(names), "two files would land under one name"
    else:
        assert re.fullmatch(r"[0-9a-f]{40}", model.source.revision), "a branch name is no pin"


def test_the_embedded_models_are_there() -> None:
    assert set(MODELS) >= {
        "silero-vad",
        "smart-turn",
        "whisper-tiny.en",
        "smollm2-gguf",
        "piper-joe",
        "misaki-en",
        "g2p-en",
    }


def test_version_is_the_wheels_or_the_commit() -> None:
    assert catalogue.find("silero-vad").version == "6.2.3"
    hub = Model("hub", HubRevision("o/n", "a" * 40, {"f": None}), "MIT", 1, 1)
    assert hub.version == "a" * 40


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(EngineError, match="silero-vad") as caught:
        catalogue.find("no-such-model")
    assert caught.value.code == "unknown_model"
