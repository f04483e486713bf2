"""Repositories of a hub: fetched whole at one commit, and kept at it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines import fetch, hub
from engines.api import EngineError

FIRST, SECOND = "a" * 40, "b" * 40


class Hub:
    """What of the hub's client is used. ``head`` is where names without a commit stand."""

    def __init__(self) -> None:
        self.head = FIRST
        self.fetched: list[tuple[str, str]] = []
        self.files = {"config.json": b"{}", "model.safetensors": b"w" * 1000, "README.md": b"x", "onnx/m.onnx": b"x"}
        self.fault: Exception | None = None

    def HfApi(self) -> Hub:  # noqa: N802 (the client's name)
        return self

    def model_info(self, repo: str, *, revision: str | None = None, files_metadata: bool = False) -> Any:
        if self.fault is not None:
            raise self.fault
        siblings = [SimpleNamespace(rfilename=name, size=len(content)) for name, content in self.files.items()]
        return SimpleNamespace(sha=self.head, siblings=siblings)

    def hf_hub_download(self, repo: str, path: str, *, revision: str, local_dir: str, tqdm_class: Any) -> str:
        self.fetched.append((path, revision))
        with tqdm_class(total=len(self.files[path]), initial=0, name="x", desc=path, unit="B") as bar:
            for _ in range(2):
                bar.update(len(self.files[path]) // 2)
        target = Path(local_dir, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(self.files[path])
        (Path(local_dir) / ".cache").mkdir(exist_ok=True)
        return str(target)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("OFFHOOK_CACHE", str(tmp_path))
    client = Hub()
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    return client


def test_a_name_stands_for_the_commit_that_was_found_first(client: Hub) -> None:
    assert hub.pinned("org/name") is None
    folder = hub.ensure_repo("org/name")
    assert sorted(path.name for path in folder.iterdir()) == [fetch.MANIFEST, "config.json", "model.safetensors"]
    assert client.fetched == [("config.json", FIRST), ("model.safetensors", FIRST)]
    client.head = SECOND
    assert hub.pinned("org/name") == FIRST
    client.fault = ConnectionError("offline")  # what is here is not asked for
    assert hub.ensure_repo("org/name") == folder


def test_a_branch_is_pinned_too_and_a_commit_is_one(client: Hub) -> None:
    main = hub.ensure_repo("org/name", "main")
    assert main == hub.ensure_repo("org/name", FIRST)
    client.head = SECOND
    assert hub.ensure_repo("org/name", "main") == main
    assert hub.ensure_repo("org/name", SECOND) != main
    assert hub.pinned("org/name", SECOND) == SECOND


def test_progress_is_in_bytes_and_can_stop_it(client: Hub) -> None:
    told: list[tuple[str, int, int]] = []
    hub.ensure_repo("org/name", progress=lambda *now: told.append(now))
    assert told[0] == ("org/name", 0, 1002)
    assert ("org/name", 502, 1002) in told
    assert told[-1] == ("org/name", 1002, 1002)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)

    def stop(name: str, done_bytes: int, total_bytes: int) -> None:
        if done_bytes > 500:
            raise fetch.CancelledFetchError

    with pytest.raises(fetch.CancelledFetchError):
        hub.ensure_repo("org/other", progress=stop)
    assert client.fetched[-1][0] == "model.safetensors"


def test_a_hub_that_cannot_be_reached(client: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    client.fault = ConnectionError("offline")
    with pytest.raises(EngineError, match="cannot find org/name: offline") as caught:
        hub.ensure_repo("org/name")
    assert caught.value.code == "model_fetch_failed"
    assert hub.pinned("org/name") is None
    with pytest.raises(EngineError, match=f"cannot list org/name at {FIRST}"):
        hub.ensure_repo("org/name", FIRST)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(EngineError) as caught:
        hub.ensure_repo("org/name")
    assert caught.value.code == "missing_extra"


def test_a_pin_that_is_damaged_is_none(client: Hub, tmp_path: Path) -> None:
    hub.ensure_repo("org/name")
    (pin,) = (tmp_path / "models" / "pins").iterdir()
    pin.write_text("main")
    assert hub.pinned("org/name") is None


@pytest.mark.parametrize(
    ("name", "is_one"), [("org/name", True), ("o-1/n.m@main", True), ("name", False), ("a/b/c", False)]
)
def test_what_looks_like_a_repository(name: str, is_one: bool) -> None:
    assert hub.is_repo(name) is is_one
