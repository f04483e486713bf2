"""``offhook doctor``: whether the chosen preset would run on this machine, and what else would."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import sys
from pathlib import Path
from typing import Any

from engines import fetch, memory
from engines.checkup import BackendCheck, Checkup, Verdict, run_probe
from engines.registry import BACKENDS, PRESETS, BackendSpec, Lineup, find_lineup
from engines.weights import WeightsReport, report
from gateway.server import StartError, listening_socket
from gateway.settings import Settings


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis:
    machine: dict[str, str]
    memory: memory.Reading
    port: str
    """Empty: it can be listened on."""
    address: str
    mlx: dict[str, Any]
    backends: list[BackendCheck]
    weights: list[WeightsReport]
    presets: list[Verdict]
    chosen: Verdict

    @property
    def well(self) -> bool:
        return self.chosen.runs and not self.port

    def as_dict(self) -> dict[str, Any]:
        def verdict(of: Verdict) -> dict[str, Any]:
            return {**dataclasses.asdict(of), "runs": of.runs}

        return {
            "well": self.well,
            "machine": self.machine,
            "memory": {
                **dataclasses.asdict(self.memory),
                # JSON has no infinity: null where it cannot be told.
                "available_mb": self.memory.available_mb if math.isfinite(self.memory.available_mb) else None,
            },
            "port": {"free": not self.port, "why_not": self.port},
            "mlx": self.mlx,
            "backends": [{**dataclasses.asdict(check), "usable": not check.why_not} for check in self.backends],
            "weights": [dataclasses.asdict(told) for told in self.weights],
            "presets": [verdict(each) for each in self.presets],
            "chosen": verdict(self.chosen),
        }


def examine(settings: Settings, *, checkup: Checkup | None = None) -> Diagnosis:
    """Try everything. Blocks for some seconds.

    Raises:
        ConfigurationError: as :meth:`gateway.settings.Settings.lineup`.
    """
    chosen = settings.lineup()
    reading = memory.read_memory()
    own = settings.engines

    def python(spec: BackendSpec) -> Path | None:
        return own.python(spec.host) if spec.host is not None else None

    check = checkup or Checkup(reading, own.memory_reserve_mb, python=python)
    backends = {spec.name: spec for spec in (*BACKENDS.values(), *chosen)}
    return Diagnosis(
        machine=_machine(),
        memory=reading,
        port=_port(settings),
        address=f"{settings.host}:{settings.port}",
        mlx=run_probe({"mlx": True}, own.python("mlx")),
        backends=check.try_backends(backends.values()),
        weights=[report(weights) for weights in _all_weights(chosen)],
        presets=[check.judge(find_lineup(name)) for name in PRESETS],
        chosen=check.judge(chosen),
    )


def lines(found: Diagnosis) -> list[str]:
    """For people."""
    machine, reading = found.machine, found.memory
    pressure = ", under pressure" if reading.under_pressure else ""
    system = f"{machine['system']} {machine['architecture']}"
    out = [
        f"machine   {system}, {machine['cores']} cores, Python {machine['python']}",
        f"memory    {_available(reading)}{pressure}",
        f"models    {machine['models']}",
        f"port      {found.port or f'{found.address} is free'}",
        f"mlx       {_mlx(found.mlx)}",
        "",
        "backends",
    ]
    out += [
        f"  {_mark(not c.why_not)} {c.stage:<5} {c.name:<36} {c.why_not or _mb(c.memory_mb)}" for c in found.backends
    ]
    out += ["", "weights"]
    out += [f"  {_mark(w.state == 'fetched')} {w.name:<36} {w.state}, {w.pinned}, {w.licence}" for w in found.weights]
    out += ["", "presets"]
    for verdict in found.presets:
        out += _judged(verdict)
    out += ["", "chosen", *_judged(found.chosen)]
    return out


def _judged(verdict: Verdict) -> list[str]:
    told = f"would run, {_mb(verdict.memory_mb)}" if verdict.runs else "would not run"
    if verdict.runs and verdict.to_fetch:
        told += f", after fetching {verdict.fetch_bytes / 1e6:.0f} MB ({', '.join(verdict.to_fetch)})"
    return [f"  {_mark(verdict.runs)} {verdict.name:<10} {told}"] + [
        f"      {line}" for problem in (*verdict.problems, *verdict.notes) for line in problem.splitlines()
    ]


def _machine() -> dict[str, str]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "cores": str(cores),
        "python": platform.python_version(),
        "executable": sys.executable,
        "models": str(fetch.cache_folder()),
    }


def _port(settings: Settings) -> str:
    try:
        listening_socket(settings.host, settings.port).close()
    except StartError as error:
        return str(error)
    return ""


def _all_weights(chosen: Lineup) -> list[Any]:
    found = {weights: None for spec in (*BACKENDS.values(), *chosen) for weights in spec.weights}
    return list(found)


def _mlx(found: dict[str, Any]) -> str:
    if not found["ok"]:
        return f"not usable: {found['why']}"
    blas = "" if found["device"] != "Device(cpu, 0)" else f", {found['blas'] or 'no OpenBLAS: 10 to 30 times slower'}"
    memory_mb = f", {_mb(found['memory_mb'])}" if found["memory_mb"] else ""
    return f"{found['device']} {found['name']}{memory_mb}{blas}"


def _available(reading: memory.Reading) -> str:
    if not math.isfinite(reading.available_mb):
        return "cannot be told"
    return f"{reading.available_mb / 1024:.1f} GB available ({reading.limit})"


def _mark(good: bool) -> str:
    return "+" if good else "-"


def _mb(mb: float) -> str:
    return f"{mb / 1024:.1f} GB" if mb >= 1024 else f"{mb:.0f} MB"
