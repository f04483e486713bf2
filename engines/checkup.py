"""Whether backends and presets would run here: tried, not guessed, and each in a process of its own.

For a preset to run, each backend that serves must be importable (those of other services: answer), its weights be here
or within reach, and its memory be available. What only stands in is told, and decides nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines import fetch, hub
from engines.api import EngineError
from engines.catalogue import MODELS, HubRevision, SplitWheels, WheelFile
from engines.memory import PRESSURE_FACTOR, Reading, refusal
from engines.probe import LAST_LINE
from engines.registry import BackendSpec, Derived, HubRepo, Lineup, Weights, check_installed, weights_name
from engines.weights import WeightsReport, report

PROBE_S = 120.0
REACH_S = 30.0
AT_ONCE = 3
ROOT = Path(__file__).parents[1]

Python = Callable[[BackendSpec], Path | None]
"""The interpreter that a backend's host has, if it has one of its own."""


@dataclass(frozen=True, slots=True)
class BackendCheck:
    name: str
    stage: str
    why_not: str
    """Empty: it is usable, once its weights are here."""
    memory_mb: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """``problems`` empty: it would run. ``to_fetch`` are the weights that would be fetched first."""

    name: str
    problems: tuple[str, ...]
    to_fetch: tuple[str, ...]
    fetch_bytes: int
    memory_mb: int
    notes: tuple[str, ...]

    @property
    def runs(self) -> bool:
        return not self.problems


class Checkup:
    """What is tried once and asked often. ``probe`` and ``reach`` are replaced in tests. Blocks."""

    def __init__(
        self,
        memory: Reading,
        reserve_mb: float,
        *,
        python: Python = lambda spec: None,
        probe: Callable[[Mapping[str, Any], Path | None], dict[str, Any]] | None = None,
        reach: Callable[[Weights], str] | None = None,
        disk_free: Callable[[], int] | None = None,
    ) -> None:
        self._memory = memory
        self._reserve_mb = reserve_mb * (PRESSURE_FACTOR if memory.under_pressure else 1)
        self._python = python
        self._probe = probe or run_probe
        self._reach = reach or reach_source
        self._disk_free = disk_free or free_bytes
        self._why_not: dict[str, str] = {}
        self._reached: dict[str, str] = {}

    def try_backends(self, specs: Iterable[BackendSpec]) -> list[BackendCheck]:
        """Each once, several at a time."""
        specs = list(specs)
        new = {key: (spec, what) for spec in specs if (key := str(what := self._to_try(spec))) not in self._why_not}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = pool.map(lambda of: self._try_backend(*of), new.values())
            self._why_not.update(zip(new, answers, strict=True))
        return [
            BackendCheck(spec.name, spec.kind, self._why_not[str(self._to_try(spec))], spec.memory_mb) for spec in specs
        ]

    def judge(self, lineup: Lineup) -> Verdict:
        problems: list[str] = []
        for spec, check in zip(lineup.first(), self.try_backends(lineup.first()), strict=True):
            if check.why_not:
                problems.append(f"{spec.kind}: {spec.name}: {check.why_not}")
        reports = [self._report(weights, problems) for spec in lineup.first() for weights in spec.weights]
        to_fetch = {told.name: told for told in reports if told is not None and told.state != "fetched"}
        memory_mb = sum(spec.memory_mb for spec in lineup.first())
        if memory_mb and memory_mb + self._reserve_mb > self._memory.available_mb:
            problems.append(refusal(lineup.name, memory_mb, self._reserve_mb, self._memory.available_mb, self._memory))
        notes = [
            f"{check.name} cannot stand in: {check.why_not}"
            for check in self.try_backends(lineup.standing_by())
            if check.why_not
        ]
        size = sum(told.download_bytes for told in to_fetch.values())
        if size > (free := self._disk_free()):
            problems.append(f"{size / 1e9:.1f} GB are to be fetched, and the disk has {free / 1e9:.1f} GB")
        if to_fetch and not can_keep():
            problems.append(
                f"weights are to be fetched, and cannot be kept in {fetch.cache_folder()}: set OFFHOOK_CACHE"
            )
        return Verdict(lineup.name, tuple(problems), tuple(to_fetch), size, memory_mb, tuple(notes))

    def _to_try(self, spec: BackendSpec) -> dict[str, Any]:
        """What tells one backend from another here: not its weights. Another service's engine has nothing to load, and
        says when it starts whether it is there."""
        start = spec.takes == "name"
        return {
            "python": self._python(spec),
            "platforms": spec.platforms,
            "imports": spec.imports,
            "factory": spec.factory,
            "cuda": spec.options.get("device") == "cuda",
            "start": start,
            "options": dict(spec.options) if start else {},
        }

    def _try_backend(self, spec: BackendSpec, what: dict[str, Any]) -> str:
        python = what.pop("python")
        try:
            if python is None:
                check_installed(spec)
        except EngineError as error:
            return str(error)
        if spec.extra is None and not what["start"]:
            return ""  # it is of this project and imports nothing else
        answer = self._probe(what, python)
        return "" if answer["ok"] else str(answer["why"])

    def _report(self, weights: Weights, problems: list[str]) -> WeightsReport | None:
        told = report(weights)
        if told.state != "fetched":
            key = weights_name(weights)
            if key not in self._reached:
                self._reached[key] = self._reach(weights)
            if self._reached[key]:
                problems.append(f"{key} is not here, and {self._reached[key]}")
        return told


def run_probe(what: Mapping[str, Any], python: Path | None = None) -> dict[str, Any]:
    """Run :mod:`engines.probe`. Always returns ``{"ok": bool, ...}``."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [str(python or sys.executable), "-P", "-m", "engines.probe", json.dumps(what)]
    try:
        ended = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"ok": False, "why": f"it was not imported within {PROBE_S:g} s"}
    except OSError as error:
        return {"ok": False, "why": f"{command[0]} cannot be run: {error.strerror}"}
    for line in reversed(ended.stdout.splitlines()):
        if line.startswith(LAST_LINE):
            answer: dict[str, Any] = json.loads(line.removeprefix(LAST_LINE))
            return answer
    if ended.returncode < 0:
        return {"ok": False, "why": f"importing it ends the process ({signal.Signals(-ended.returncode).name})"}
    last = ended.stderr.strip().splitlines()[-1:] or ["no reason given"]
    return {"ok": False, "why": f"importing it ends the process with code {ended.returncode}: {last[0]}"}


def free_bytes() -> int:
    """What the disk has left where models are kept."""
    return shutil.disk_usage(_existing(fetch.cache_folder())).free


def can_keep() -> bool:
    """Whether models could be written where they are kept."""
    folder = _existing(fetch.cache_folder())
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that there is."""
    while not folder.exists():
        folder = folder.parent
    return folder


def reach_source(weights: Weights) -> str:
    """Ask where weights come from whether they are there; why not, or empty. Downloads nothing."""
    name = weights.source if isinstance(weights, Derived) else weights
    if isinstance(name, HubRepo):
        return _reach_hub(name.repo, name.revision)
    if not isinstance(name, str):
        return "there is no such folder"
    source = MODELS[name].source
    if isinstance(source, HubRevision):
        return _reach_hub(source.repo, source.revision)
    wheels = source.wheels if isinstance(source, SplitWheels) else (source,)
    return next(filter(None, map(_reach_wheel, wheels)), "")


def _reach_hub(repo: str, revision: str | None) -> str:
    try:
        hub.check(repo, revision)
    except EngineError as error:
        return str(error)
    return ""


def _reach_wheel(wheel: WheelFile) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries=1", "--timeout=5"]
    try:
        ended = subprocess.run(
            [*command, "index", "versions", wheel.package],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=REACH_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"pip cannot be asked for it: {error}"
    if ended.returncode != 0:
        return f"pip does not find {wheel.package} in its index"
    if wheel.version not in ended.stdout.replace(",", " ").split() and f"({wheel.version})" not in ended.stdout:
        return f"the index has no {wheel.package} {wheel.version}"
    return ""
