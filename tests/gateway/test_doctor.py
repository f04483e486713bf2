"""``offhook doctor``: what it tells, and its exit code."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import gateway.doctor
from engines.checkup import Checkup
from engines.memory import Reading
from gateway.cli import application
from gateway.doctor import examine, lines
from gateway.settings import Settings


@pytest.fixture(autouse=True)
def no_tries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is run and nobody is asked: all that is imported works, but for OpenAI's services."""

    def probe(what: Mapping[str, Any], python: Path | None = None) -> dict[str, Any]:
        if what.get("mlx"):
            return {"ok": True, "device": "Device(cpu, 0)", "name": "a CPU", "memory_mb": 0, "blas": None}
        return {"ok": not what["start"], "why": "no_api_key: none"}

    monkeypatch.setattr("engines.checkup.run_probe", probe)
    monkeypatch.setattr(gateway.doctor, "run_probe", probe)
    monkeypatch.setattr("engines.checkup.reach_source", lambda weights: "")
    monkeypatch.setenv("OFFHOOK_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def offhook(*arguments: str) -> Any:
    return CliRunner().invoke(application(), ["doctor", "--port", "0", *arguments])


def test_the_chosen_preset_decides() -> None:
    assert offhook("--preset", "null").exit_code == 0
    cloud = offhook("--preset", "cloud")
    assert cloud.exit_code == 1
    assert "llm: openai-chat: no_api_key: none" in cloud.output
    unknown = offhook("--preset", "nonesuch")
    assert (unknown.exit_code, "there are: embedded" in unknown.stderr) == (2, True)


def test_all_of_it_as_json() -> None:
    told = json.loads(offhook("--preset", "null", "--json").output)
    assert told["well"] is True
    assert [verdict["name"] for verdict in told["presets"]] == ["embedded", "mlx-cpu", "mac", "cuda", "cloud", "null"]
    assert {verdict["name"] for verdict in told["presets"] if not verdict["runs"]} == {"cloud"}
    assert told["chosen"]["name"] == "null"
    assert told["port"] == {"free": True, "why_not": ""}
    assert {weights["state"] for weights in told["weights"]} == {"missing"}
    usable = {check["name"]: check["usable"] for check in told["backends"]}
    assert usable["piper-joe"]
    assert not usable["openai-chat"]


def test_memory_that_cannot_be_told_is_still_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.memory.read_memory", lambda: Reading(math.inf))

    def no_constants(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    told = json.loads(offhook("--preset", "null", "--json").output, parse_constant=no_constants)
    assert told["memory"]["available_mb"] is None
    assert "memory    cannot be told" in offhook("--preset", "null").output


def test_a_taken_port_is_no_good() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = examine(Settings(preset="null", port=taken.getsockname()[1]))
    assert not found.well
    assert any("cannot listen" in line for line in lines(found))


def test_for_people() -> None:
    text = "\n".join(lines(examine(Settings(preset="embedded", port=0), checkup=Checkup(Reading(9000), 1500))))
    assert "no OpenBLAS: 10 to 30 times slower" in text
    assert "+ embedded   would run" in text
    assert "after fetching" in text
    assert "commit 7f0dc925e0d0, Llama 3.2 Community License" in text


def test_little_memory_is_told_for_each_preset() -> None:
    found = examine(Settings(preset="null", port=0), checkup=Checkup(Reading(5000), 1500))
    assert {verdict.name for verdict in found.presets if "short by" in "".join(verdict.problems)} == {"mac", "cuda"}
    assert found.well
