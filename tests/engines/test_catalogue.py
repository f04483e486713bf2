"""The catalogue's own rules."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest

from engines import catalogue
from engines.api import EngineError
from engines.catalogue import MODELS, HubRevision, Model, SplitWheels

SHA256 = re.compile(r"[0-9a-f]{64}")


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_everything_is_pinned_and_described(model: Model) -> None:
    assert model.licence
    assert model.download_bytes > 0
    if isinstance(model.source, HubRevision):
        assert model.source.files
        assert re.fullmatch(r"[0-9a-f]{40}", model.source.revision), "a branch name is no pin"
        return
    wheels = model.source.wheels if isinstance(model.source, SplitWheels) else (model.source,)
    files = [item for wheel in wheels for item in wheel.files.items()]
    assert all(SHA256.fullmatch(sha256) for sha256 in (*(w.wheel_sha256 for w in wheels), *(s for _, s in files)))
    names = [PurePosixPath(path).name for path, _ in files]
    assert names
    assert len(set(names)) == len(names), "two files would land under one name"
    if isinstance(model.source, SplitWheels):
        assert SHA256.fullmatch(model.source.joined_sha256)
        assert len(wheels) > 1
        assert {wheel.version for wheel in wheels} == {model.version}
        assert set(model.source.pieces) < set(names)
        assert model.source.joined not in names


def test_the_models_of_the_presets_and_the_callers_ears_are_there() -> None:
    assert set(MODELS) >= {
        "silero-vad",
        "smart-turn",
        "whisper-tiny.en",
        "whisper-base",
        "smollm2-gguf",
        "piper-joe",
        "misaki-en",
        "g2p-en",
    }


def test_version_is_the_wheels_or_the_commit() -> None:
    assert catalogue.find("silero-vad").version == "6.2.3"
    assert catalogue.find("whisper-base").version == "1.0.0"
    hub = Model("hub", HubRevision("o/n", "a" * 40, {"f": None}), "MIT", 1)
    assert hub.version == "a" * 40


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(EngineError, match="silero-vad") as caught:
        catalogue.find("no-such-model")
    assert caught.value.code == "unknown_model"
