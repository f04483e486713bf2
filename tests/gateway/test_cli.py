from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import gateway.server
import gateway.telemetry.logs
from engines import fetch
from engines.api import EngineError
from gateway import cli
from gateway.cli import application, hearing_model
from gateway.engine_settings import EngineSettings
from gateway.server import StartError
from gateway.settings import Settings


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OFFHOOK_KEY", "OFFHOOK_PORT", "OFFHOOK_PRESET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(gateway.telemetry.logs, "configure_logs", lambda **_: None)


def offhook(*arguments: str) -> Result:
    return CliRunner().invoke(application(), list(arguments))


def serving(monkeypatch: pytest.MonkeyPatch, fault: Exception | None = None) -> list[Settings]:
    served: list[Settings] = []

    def serve(settings: Settings, *, announce: Callable[[str], None]) -> None:
        served.append(settings)
        announce("Listening on somewhere")
        if fault is not None:
            raise fault

    monkeypatch.setattr(gateway.server, "serve", serve)
    return served


def test_the_version() -> None:
    assert offhook("--version").output == f"offhook {importlib.metadata.version('offhook')}\n"


def test_every_command_is_there() -> None:
    output = offhook("--help").output
    assert all(command in output for command in ("serve", "call", "dial", "config", "models", "doctor", "bench"))


def test_serve_hands_over_what_it_was_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served = serving(monkeypatch)
    (tmp_path / "my.toml").write_text("port = 1\ndrain_s = 4\n", "utf-8")
    result = offhook("serve", "--config", "my.toml", "--preset", "null", "--port", "2", "--no-log-json")
    assert (result.exit_code, result.output) == (0, "Listening on somewhere\n")
    assert served == [Settings(preset="null", port=2, drain_s=4)]


def test_serve_takes_engines_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    served = serving(monkeypatch)
    result = offhook("serve", "--llm", "openai-compatible", "--llm-model", "m", "--stt", "faster-whisper", "--no-hosts")
    assert result.exit_code == 0
    engines = EngineSettings(llm=("openai-compatible",), llm_model="m", stt=("faster-whisper",), hosts=False)
    assert served == [Settings(engines=engines)]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (EngineError("missing_extra", "install it"), "error (missing_extra): install it"),
        (StartError("port_taken", "busy"), "error (port_taken): busy"),
    ],
)
def test_a_start_that_fails_is_a_line_and_one(monkeypatch: pytest.MonkeyPatch, fault: Exception, said: str) -> None:
    serving(monkeypatch, fault)
    result = offhook("serve")
    assert result.exit_code == 1
    assert said in result.stderr


def test_wrong_settings_are_lines_and_two(monkeypatch: pytest.MonkeyPatch) -> None:
    served = serving(monkeypatch)
    result = offhook("serve", "--port", "99999", "--log-level", "loud")
    assert result.exit_code == 2
    assert result.stderr.count("error (invalid_settings): ") == 2
    assert served == []


def test_config_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFHOOK_KEY", "hush-hush")
    result = offhook("config", "check")
    assert result.exit_code == 0
    assert "port = 8080" in result.output
    assert "hush-hush" not in result.output
    monkeypatch.setenv("OFFHOOK_HOST", "0.0.0.0")
    refused = offhook("config", "check")
    assert refused.exit_code == 2
    assert "error (tls_required): " in refused.stderr


@pytest.mark.parametrize(
    ("preset", "voice", "code"),
    [
        ("embedded", "joe", 0),
        ("embedded", "af_heart", 2),
        ("mac", "bm_lewis", 0),
        ("cloud", "joe", 2),
        ("null", "tone", 0),
    ],
)
def test_config_check_knows_the_voices_of_what_would_speak(tmp_path: Path, preset: str, voice: str, code: int) -> None:
    (tmp_path / "my.toml").write_text(f'preset = "{preset}"\n[agents.anna]\nvoice = "{voice}"\n', "utf-8")
    result = offhook("config", "check", "--config", "my.toml")
    assert result.exit_code == code
    if code:
        assert f"error (unknown_voice): agents.anna.voice: no voice {voice!r} in this preset; it has " in result.stderr


def test_config_check_leaves_voices_to_the_weights_and_servers_that_only_they_know(tmp_path: Path) -> None:
    agent = '[agents.anna]\nvoice = "whoever"\n'
    for engines in ('tts = ["pocket-tts"]', f'tts = ["piper"]\ntts_model = "{tmp_path}"'):
        (tmp_path / "my.toml").write_text(f"[engines]\n{engines}\n{agent}", "utf-8")
        result = offhook("config", "check", "--config", "my.toml")
        assert result.exit_code == 0, result.stderr
    own = '[engines]\ntts = ["openai-compatible"]\ntts_url = "http://127.0.0.1:1/v1"\ntts_voices = ["someone"]\n'
    (tmp_path / "my.toml").write_text(own + agent, "utf-8")
    assert "it has someone" in offhook("config", "check", "--config", "my.toml").stderr


def test_an_interrupt_before_a_command_has_begun_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> typer.Typer:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "application", interrupted)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 130


def test_config_keys() -> None:
    lines = offhook("config", "keys").output.splitlines()
    assert "port\t8080\tport to listen on; 0 picks a free one" in lines
    assert any(line.startswith("agents.NAME.greeting\t") for line in lines)


def test_the_caller_hears_with_the_embedded_model_if_it_can(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    def ensure(name: str, progress: Any) -> Path:
        asked.append(name)
        if len(asked) > 1:
            raise EngineError("model_fetch_failed", "offline")
        return tmp_path

    monkeypatch.setattr(fetch, "ensure", ensure)
    assert hearing_model() == tmp_path
    assert hearing_model() is None
    assert asked == ["whisper-tiny.en"] * 2
