"""Verdicts that are tried: what a backend needs, what its weights need, and what memory and disk allow."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from engines import catalogue, checkup, hub
from engines.api import EngineError
from engines.catalogue import HubRevision, Model, WheelFile
from engines.checkup import Checkup, reach_source, run_probe
from engines.memory import Reading
from engines.registry import BackendSpec, Derived, Folder, HubRepo, Lineup
from engines.weights import WeightsReport

PLENTY = Reading(100_000)


class Tried:
    def __init__(self, why_not: Mapping[str, str] = MappingProxyType({})) -> None:
        self.why_not = why_not
        self.asked: list[str] = []

    def __call__(self, what: Mapping[str, Any], python: Path | None) -> dict[str, Any]:
        self.asked.append(f"{what['factory']} {'cuda' if what['cuda'] else ''}{python or ''}")
        why = self.why_not.get(what["factory"])
        return {"ok": why is None, "why": why}


def spec(name: str, kind: Any = "llm", **fields: Any) -> BackendSpec:
    return BackendSpec(name, kind, f"m:{name}", "extra", **fields)


def lineup(*chain: BackendSpec) -> Lineup:
    none: tuple[BackendSpec, ...] = ()
    return Lineup("mine", {"vad": none, "turn": none, "stt": none, "llm": chain, "tts": none})


def checked(tried: Tried | None = None, memory: Reading = PLENTY, **fields: Any) -> Checkup:
    return Checkup(memory, 1000, probe=tried or Tried(), **fields)


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> dict[str, WeightsReport]:
    """What is told of weights, by name."""
    told: dict[str, WeightsReport] = {}
    monkeypatch.setattr(checkup, "report", lambda weights: told[weights])
    return told


def test_a_preset_whose_parts_are_there_runs() -> None:
    verdict = checked().judge(lineup(spec("a", memory_mb=500), spec("b")))
    assert (verdict.runs, verdict.memory_mb, verdict.notes) == (True, 500, ())


def test_what_serves_decides_and_what_stands_in_is_told() -> None:
    tried = Tried({"m:b": "broken"})
    assert checked(tried).judge(lineup(spec("b"), spec("a"))).problems == ("llm: b: broken",)
    verdict = checked(tried).judge(lineup(spec("a"), spec("b")))
    assert verdict.runs
    assert verdict.notes == ("b cannot stand in: broken",)


def test_the_same_is_tried_once() -> None:
    tried = Tried()
    check = checked(tried)
    check.try_backends([spec("a"), spec("a", memory_mb=7), spec("b"), spec("a", options={"device": "cuda"})])
    check.judge(lineup(spec("a")))
    assert sorted(tried.asked) == ["m:a ", "m:a cuda", "m:b "]


def test_nothing_is_run_for_what_is_not_installed_or_only_ours() -> None:
    tried = Tried()
    told = checked(tried).try_backends(
        [spec("a", imports=("no_such_package_at_all",)), BackendSpec("ours", "llm", "m:ours"), spec("c", platforms=())]
    )
    assert "no_such_package_at_all" in told[0].why_not
    assert told[1].why_not == ""
    assert "does not run on" in told[2].why_not
    assert tried.asked == []


def test_a_host_with_its_own_interpreter_is_tried_with_that() -> None:
    tried = Tried()
    python = Path("/opt/python")
    check = checked(tried, python=lambda spec: python if spec.host == "mlx" else None)
    told = check.try_backends([spec("a", host="mlx", imports=("no_such_package_at_all",))])
    assert (told[0].why_not, tried.asked) == ("", ["m:a /opt/python"])


def test_weights_that_are_not_here_must_be_within_reach(states: dict[str, WeightsReport]) -> None:
    states["w"] = WeightsReport("w", "missing", "commit", "MIT", 2_000_000_000)
    asked: list[Any] = []

    def reach(weights: Any) -> str:
        asked.append(weights)
        return "nobody answers" if fails else ""

    fails = False
    verdict = checked(reach=reach, disk_free=lambda: 3_000_000_000).judge(lineup(spec("a", weights=("w",))))
    assert (verdict.runs, verdict.to_fetch, verdict.fetch_bytes) == (True, ("w",), 2_000_000_000)
    verdict = checked(reach=reach, disk_free=lambda: 1_000_000_000).judge(lineup(spec("a", weights=("w",))))
    assert verdict.problems == ("2.0 GB are to be fetched, and the disk has 1.0 GB",)
    fails = True
    verdict = checked(reach=reach).judge(lineup(spec("a", weights=("w",))))
    assert verdict.problems == ("w is not here, and nobody answers",)
    states["w"] = WeightsReport("w", "fetched", "commit", "MIT", 2_000_000_000)
    asked.clear()
    assert checked(reach=reach).judge(lineup(spec("a", weights=("w",)))).runs
    assert asked == []


def test_where_models_are_kept_must_be_a_folder_that_takes_them(
    states: dict[str, WeightsReport], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    states["w"] = WeightsReport("w", "missing", "commit", "MIT", 1)
    (tmp_path / "file").touch()
    monkeypatch.setenv("OFFHOOK_CACHE", str(tmp_path / "file" / "cache"))
    verdict = checked(reach=lambda weights: "").judge(lineup(spec("a", weights=("w",))))
    assert [problem for problem in verdict.problems if "cannot be kept in" in problem and "OFFHOOK_CACHE" in problem]
    assert checked().judge(lineup(spec("a"))).runs  # nothing is to be fetched
    monkeypatch.setenv("OFFHOOK_CACHE", str(tmp_path / "not yet" / "cache"))
    assert checked(reach=lambda weights: "").judge(lineup(spec("a", weights=("w",)))).runs


def test_memory_is_judged_as_the_guard_does() -> None:
    chain = lineup(spec("a", memory_mb=1500))
    assert checked(memory=Reading(2500)).judge(chain).runs
    assert "short by" in checked(memory=Reading(2499)).judge(chain).problems[0]
    assert not checked(memory=Reading(2500, under_pressure=True)).judge(chain).runs
    assert checked(memory=Reading(0)).judge(lineup(spec("scripted"))).runs


def probing(factory: str, **fields: Any) -> dict[str, Any]:
    what = {"imports": (), "factory": factory, "options": {}, "cuda": False, "start": False, **fields}
    return run_probe(what)


def test_a_probe_imports_what_it_claims() -> None:
    assert probing("engines.llm.scripted:ScriptedLlm", imports=("json",)) == {"ok": True}
    assert "no_such_package" in probing("engines.llm.scripted:ScriptedLlm", imports=("no_such_package",))["why"]
    assert "AttributeError" in probing("engines.llm.scripted:Nobody")["why"]


def test_a_probe_starts_what_it_is_told_to() -> None:
    assert probing("engines.llm.scripted:ScriptedLlm", start=True) == {"ok": True}
    failing = probing("engines.llm.scripted:ScriptedLlm", start=True, options={"start_fails": True})
    assert failing["why"] == "scripted: the script says that this engine does not start"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ends the process (SIGSEGV)"),
        (
            "import sys; print('hello'); sys.stderr.write('no way\\n'); sys.stderr.flush(); import os; os._exit(3)",
            "no way",
        ),
    ],
)
def test_a_library_that_ends_its_process_ends_only_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    (tmp_path / "deadly.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert why in probing("engines.llm.scripted:ScriptedLlm", imports=("deadly",))["why"]


def test_a_probe_that_cannot_be_run_or_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cannot be run" in run_probe({}, Path("/nowhere/python"))["why"]
    monkeypatch.setattr(checkup, "PROBE_S", 0.0)
    assert "within 0 s" in run_probe({"mlx": True})["why"]


def test_mlx_tells_its_device() -> None:
    pytest.importorskip("mlx.core")
    found = run_probe({"mlx": True})
    assert found["ok"]
    assert found["device"].startswith("Device(")


COMMIT = "c" * 40


def test_a_hub_is_asked_at_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def check(repo: str, revision: str | None = None) -> None:
        asked.append((repo, revision))
        if repo == "org/gone":
            raise EngineError("model_fetch_failed", "cannot find org/gone: 404")

    monkeypatch.setattr(hub, "check", check)
    source = HubRevision("org/name", COMMIT, {"a": None})
    monkeypatch.setitem(catalogue.MODELS, "m", Model("m", source, "MIT", 1))
    assert reach_source("m") == ""
    assert reach_source(Derived("d", "m", "x:y")) == ""
    assert reach_source(HubRepo("org/gone")) == "cannot find org/gone: 404"
    assert asked == [("org/name", COMMIT), ("org/name", COMMIT), ("org/gone", None)]
    assert reach_source(Folder(Path("/nowhere"))) == "there is no such folder"


@pytest.mark.parametrize(
    ("code", "out", "why"),
    [
        (0, "tiny (1.0)\nAvailable versions: 1.0\n", ""),
        (0, "tiny (2.0)\nAvailable versions: 2.0, 1.0, 0.9\n", ""),
        (0, "tiny (2.0)\nAvailable versions: 2.0, 11.0\n", "the index has no tiny 1.0"),
        (1, "", "pip does not find tiny in its index"),
    ],
)
def test_an_index_is_asked_for_the_version(monkeypatch: pytest.MonkeyPatch, code: int, out: str, why: str) -> None:
    def run(command: list[str], **_: Any) -> Any:
        assert command[-3:] == ["index", "versions", "tiny"]
        return subprocess.CompletedProcess(command, code, out, "")

    monkeypatch.setattr(subprocess, "run", run)
    wheel = WheelFile("tiny", "1.0", "0" * 64, {})
    monkeypatch.setitem(catalogue.MODELS, "m", Model("m", wheel, "MIT", 1))
    assert reach_source("m") == why


def test_the_probe_is_a_program() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "engines.probe", json.dumps({"mlx": False, "imports": [], "factory": "json:loads"})],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    assert ended.stdout == 'offhook-probe {"ok": true}\n'
