"""``offhook bench scheduler``: its table, its JSON, its check."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from engines.bench import command, scheduler
from engines.bench.command import add_bench_commands
from engines.executor.tables import TABLES


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.callback()(lambda: None)
    add_bench_commands(made)
    return made


def run(app: typer.Typer, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["bench", "scheduler", *arguments])
    return result.exit_code, result.output


def test_every_table_has_its_name_on_the_command_line(app: typer.Typer) -> None:
    for name in TABLES:
        code, output = run(app, "--costs", name, "--calls", "1", "--seconds", "60")
        assert code == 0
        assert name in output
        assert "lock" in output


def test_json_says_for_each_policy_how_many_calls(app: typer.Typer) -> None:
    code, output = run(app, "--calls", "8", "--seconds", "60", "--json")
    assert code == 0
    results = json.loads(output)
    assert list(results) == ["edf", "fifo", "lock"]
    assert results["edf"]["max_calls"] == 8
    assert results["lock"]["max_calls"] == 0
    assert results["edf"]["turns_per_s"] > 0


def test_without_a_number_of_calls_it_looks_for_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(scheduler, "max_calls", lambda name, table, **options: seen.append(name))
    scheduler.compare("mac")
    assert seen == ["edf", "fifo", "lock"]


def test_check_counts_what_broke(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(app, "--check", "2") == (0, "2 random runs, 0 broke a property\n")
    monkeypatch.setattr(scheduler, "broken_property", lambda seed: "it starved" if seed else None)
    code, output = run(app, "--check", "2")
    assert code == 1
    assert "run 1: it starved" in output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--calls", "8,many"), "whole numbers separated by commas, not '8,many'"),
        (("--phonemes", "45"), "two numbers, such as 45,105"),
        (("--policies", "edf,lifo"), "no policy lifo; there are: edf, fifo, lock"),
    ],
)
def test_a_wrong_option_of_the_gpu_bench_says_what_is_right(
    app: typer.Typer, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(app, ["bench", "gpu", *arguments])
    assert result.exit_code == 2
    assert said in result.output


def test_the_gpu_bench_says_what_it_lacks(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "mlx_whisper" else object())
    result = CliRunner().invoke(app, ["bench", "gpu"])
    assert result.exit_code == 1
    assert "error (missing_extra): this needs mlx_whisper: make .venv/.installed-speech-mlx" in result.output
