from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.outbound_address import parse_destination
from gateway.outbound_settings import OutboundSettings, parse_pattern
from gateway.security.listening import check_listening
from gateway.settings import ConfigurationError, Settings, load_settings


@pytest.mark.parametrize(
    ("pattern", "destination", "named"),
    [
        ("+1 555", "sip:+15551234567@pbx", True),
        ("+1556", "sip:+15551234567@pbx", False),
        ("pbx.example.com", "sip:a@pbx.example.com", True),
        ("sip:pbx.example.com", "sip:a@pbx.example.com:5060", True),
        ("pbx.example.com", "sip:a@pbx.example.com:5061", True),
        ("pbx.example.com", "sip:a@pbx.example.com:22", False),
        ("pbx.example.com:5070", "sip:a@pbx.example.com:5070", True),
        ("pbx.example.com:5070", "sip:a@pbx.example.com", False),
        ("PBX.example.com", "sip:a@evil.pbx.example.com", False),
        ("*.example.com", "sip:a@pbx.example.com", True),
        ("*.example.com", "sip:a@example.com", False),
        ("*.example.com", "sip:a@evilexample.com", False),
        ("*.example.com", "sip:a@pbx.example.com:22", False),
        ("10.0.0.0/8", "sip:a@10.1.2.3", True),
        ("10.0.0.0/8", "sip:a@11.1.2.3", False),
        ("10.0.0.0/8", "sip:a@10.1.2.3.example.com", False),
        ("10.0.0.0/8", "sip:a@10.1.2.3:25", False),
        ("[fd00::]/8", "sip:a@[fd00::1]", True),
        ("127.0.0.1:5070", "sip:a@127.0.0.1:5070", True),
        ("[::1]:5070", "sip:a@[0:0::1]:5070", True),
    ],
)
def test_what_an_entry_names(pattern: str, destination: str, named: bool) -> None:
    entry, whom = parse_pattern(pattern), parse_destination(destination)
    assert (entry.names_number(whom) or entry.names_host(whom)) is named


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+",
        "+0",
        "+1555x",
        "+1234567890123456",
        "*",
        "*.com",
        "*.1.2.3",
        "*.example.com:5060",
        "10.0.0.1/8",
        "a b@c",
        "http://x",
    ],
)
def test_an_entry_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_pattern(text)


def test_it_is_off_unless_it_is_said_whereto() -> None:
    assert not OutboundSettings().enabled
    with pytest.raises(ValueError, match=r"needs outbound\.allow"):
        OutboundSettings(enabled=True)


def test_lists_come_from_the_environment_too(tmp_path: Path) -> None:
    file = tmp_path / "offhook.toml"
    file.write_text('[outbound]\nenabled = true\nallow = ["+1", "pbx.example.com"]\n')
    settings = load_settings(file=file, environ={"OFFHOOK_OUTBOUND__CALLERS": "+15550001111, desk"})
    assert settings.outbound.callers == ("+15550001111", "desk")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('allow = ["+1555x"]', "beginning of an international number"),
        ('allow = ["pbx/x"]', "pbx"),
        ('callers = ["Bob <sip:bob>"]', "not a number"),
        ("max_calls = 0", "greater than or equal to 1"),
        ("ring_s = 600", "less than or equal to 180"),
        ("max_cals = 1", "did you mean outbound.max_calls"),
    ],
)
def test_nonsense_is_refused_with_a_word(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "offhook.toml"
    file.write_text(f"[outbound]\n{line}\n")
    with pytest.raises(ConfigurationError, match="outbound") as caught:
        load_settings(file=file, environ={})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({}, "key_required"),
        ({"key": "k"}, "sip_required"),
        ({"key": "k", "sip": {"enabled": True}, "outbound": {"trunk": "carier"}}, "unknown_trunk"),
        ({"key": "k", "sip": {"enabled": True}, "outbound": {"trunk": "carrier"}}, None),
    ],
)
def test_what_placing_calls_needs_even_on_loopback(more: dict[str, Any], code: str | None) -> None:
    outbound = {"enabled": True, "allow": ["+1"], **more.get("outbound", {})}
    sip = {**more.get("sip", {}), "trunks": {"carrier": {"server": "sip.example.com", "user": "us"}}}
    settings = Settings.model_validate({**more, "outbound": outbound, "sip": sip})
    if code is None:
        check_listening(settings)
        return
    with pytest.raises(ConfigurationError, match="outbound") as caught:
        check_listening(settings)
    assert caught.value.code == code
