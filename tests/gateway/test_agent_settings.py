"""What an agent can be told of its tools, its transfers and its keypad, and what is refused of it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from gateway.agents.agent import Agents
from gateway.settings import AgentSettings, ConfigurationError, Settings, describe, load_settings
from streaming.config import KeypadRules
from streaming.tools import TOOL_NAMES, definitions

WHOLE = """
[agents.ben]
tools = ["end_call", "transfer", "send_dtmf", "hold"]
transfer_targets = { sales = "sip:sales@pbx.example", "night desk" = "+15551234567", lobby = "*62#" }
goodbye = "See you."
keypad_pause_ms = 4000
keypad_end_key = "*"
"""


def loaded(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "offhook.toml"
    file.write_text(text, "utf-8")
    return load_settings(file=file, environ={})


def test_an_agent_s_tools_become_its_session_s(tmp_path: Path) -> None:
    settings = loaded(tmp_path, WHOLE)
    config = Agents.from_settings(settings).get("ben").session_config()
    assert config.tools == TOOL_NAMES
    assert config.transfer_targets == (
        ("sales", "sip:sales@pbx.example"),
        ("night desk", "+15551234567"),
        ("lobby", "*62#"),
    )
    assert (config.goodbye, config.keypad) == ("See you.", KeypadRules(4_000, "*"))
    assert [tool.name for tool in definitions(config)] == list(TOOL_NAMES)
    assert not any("pbx.example" in tool.parameters for tool in definitions(config)), "the model knows names only"
    table = tomllib.loads("\n".join(describe(settings)))["agents"]["ben"]
    assert AgentSettings(**table) == settings.agents["ben"]


def test_nothing_is_given_that_was_not_asked_for() -> None:
    config = Agents.from_settings(Settings()).get("default").session_config()
    assert (config.tools, definitions(config), config.keypad) == ((), (), KeypadRules())


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ('tools = ["transfer"]', "transfer needs transfer_targets"),
        ('tools = ["transfer"]\ntransfer_targets = {}', "transfer needs transfer_targets"),
        ('tools = ["fly"]', "'end_call', 'transfer', 'send_dtmf' or 'hold'"),
        ('transfer_targets = { sales = "https://evil.example" }', "neither a number"),
        ('transfer_targets = { sales = "sip:a b" }', "neither a number"),
        ('transfer_targets = { sales = "sip:a\\r\\nX: y" }', "neither a number"),
        ('transfer_targets = { sales = "+1555abc" }', "neither a number"),
        ('transfer_targets = { sales = "" }', "neither a number"),
        ('transfer_targets = { "" = "+15551234567" }', "at least 1 character"),
        ('transfer_targets = { "a\\nb" = "+15551234567" }', "pattern"),
        ('transfer_targets = { Sales = "+1", sales = "+2" }', "by more than their case"),
        ("keypad_pause_ms = 10", "200"),
        ('keypad_end_key = "1"', "keypad_end_key"),
    ],
)
def test_nonsense_is_refused_with_its_reason(tmp_path: Path, line: str, word: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        loaded(tmp_path, f"[agents.ben]\n{line}\n")
    (problem,) = caught.value.problems
    assert problem.startswith("agents.ben")
    assert word in problem


def test_tools_from_the_environment_have_commas_between() -> None:
    settings = load_settings(environ={"OFFHOOK_AGENTS__BEN__TOOLS": "end_call, hold"})
    assert settings.agents["ben"].tools == ("end_call", "hold")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(environ={"OFFHOOK_AGENTS__BEN__TOOLS": "end_call,fly"})
    assert caught.value.problems[0].startswith("OFFHOOK_AGENTS__BEN__TOOLS (environment): ")
