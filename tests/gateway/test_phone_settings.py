"""Which agent answers which number."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.agents.agent import check_agents_known
from gateway.app import create_app
from gateway.phone_settings import PhoneSettings, plain_number
from gateway.settings import AgentSettings, ConfigurationError, Settings, describe, load_settings


@pytest.mark.parametrize(
    ("dialled", "plain"),
    [
        ("+1 (555) 123-4567", "15551234567"),
        ("15551234567", "15551234567"),
        (" 555.123/4567 ", "5551234567"),
        ("Sales", "sales"),
        ("+", "+"),
        ("1555abc", "1555abc"),
        ("", ""),
        ("*21#", "*21#"),
    ],
)
def test_one_spelling_of_a_number(dialled: str, plain: str) -> None:
    assert plain_number(dialled) == plain


def test_numbers_of_a_file_and_of_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "offhook.toml"
    file.write_text('[phone]\nagent = "sales"\n[phone.numbers]\n"+1 555 1" = "sales"\n[agents.sales]\n', "utf-8")
    settings = load_settings(file=file, environ={})
    check_agents_known(settings)
    assert (settings.phone.agent_of("15551"), settings.phone.agent_of("15552")) == ("sales", None)
    shown = tmp_path / "shown.toml"
    shown.write_text("\n".join(line for line in describe(settings) if "=" in line or line.startswith("[")), "utf-8")
    assert load_settings(file=shown, environ={}).phone == settings.phone
    environ = {"OFFHOOK_PHONE__NUMBERS": '{"+15559": "default"}'}
    assert load_settings(file=file, environ=environ).phone.agent_of("+15559") == "default"


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"+1 555 1": "a", "15551": "b"}, "are the same number"),
        ({" ": "a"}, "is not a number"),
        ({"+15551": " "}, "has no agent"),
    ],
)
def test_a_phone_book_that_makes_no_sense(numbers: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PhoneSettings(numbers=numbers)


def test_an_agent_that_there_is_not_is_named_with_its_place() -> None:
    phone = PhoneSettings(agent="nobody", numbers={"+15551": "anna", "+15552": "ana"})
    settings = Settings(preset="null", agents={"anna": AgentSettings()}, phone=phone)
    with pytest.raises(ConfigurationError) as wrong:
        check_agents_known(settings)
    assert wrong.value.code == "unknown_agent"
    assert [problem.partition(":")[0] for problem in wrong.value.problems] == ["phone.agent", "phone.numbers +15552"]
    with pytest.raises(ConfigurationError, match="there is no agent 'nobody'; there are anna, default"):
        create_app(settings)
