"""The tables of telephone exchanges: what makes no sense is refused with a clear word."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gateway.bridge_settings import AsteriskSettings, AudioSocketSettings, FreeswitchSettings
from gateway.settings import ConfigurationError, load_settings

ID = "40325ec2-5efd-4bd3-805f-53576e581d13"


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ({"allowed": ("10.0.0.1/8",)}, "is not an address or a network"),
        ({"allowed": ("pbx.example.com",)}, "is not an address or a network"),
        ({"allowed": ()}, "at least 1"),
        ({"uuids": {"nonsense": "sales"}}, "is not a UUID"),
        ({"uuids": {ID: " "}}, "has no agent"),
        ({"uuids": {ID: "a", ID.upper(): "b"}}, "are the same UUID"),
        ({"port": 70_000}, "less than or equal to 65535"),
        ({"enabled": True, "calls": "any", "allowed": ("10.0.0.0/8",)}, "for loopback only"),
        ({"calls": "some"}, "'any' or 'known'"),
        ({"secret": "x"}, "Extra inputs"),
    ],
)
def test_audiosocket(table: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        AudioSocketSettings(**table)


def test_audiosocket_lets_in_this_machine_and_calls_it_knows() -> None:
    table = AudioSocketSettings()
    assert (table.enabled, table.host, table.calls) == (False, "127.0.0.1", "known")
    assert table.allowed == ("127.0.0.0/8", "::1/128")
    AudioSocketSettings(enabled=True, calls="any", allowed=("127.0.0.1", "::1"))
    AudioSocketSettings(enabled=True, host="10.0.0.5", allowed=("10.0.0.0/24",))


@pytest.mark.parametrize(
    ("kind", "table", "word"),
    [
        (AsteriskSettings, {"enabled": True}, "needs asterisk.password"),
        (AsteriskSettings, {"enabled": True, "password": "short"}, "16 characters"),
        (FreeswitchSettings, {"enabled": True}, "needs freeswitch.stream_token"),
        (FreeswitchSettings, {"enabled": True, "stream_token": "0123456789abcdef", "rate_hz": 11_025}, "8000 or 16000"),
    ],
)
def test_streams_need_a_secret(kind: type[Any], table: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        kind(**table)


def test_they_come_from_the_environment_too() -> None:
    environ = {
        "OFFHOOK_PRESET": "null",
        "OFFHOOK_AUDIOSOCKET__ENABLED": "true",
        "OFFHOOK_AUDIOSOCKET__ALLOWED": "10.0.0.0/8,127.0.0.1",
        "OFFHOOK_AUDIOSOCKET__UUIDS": f'{{"{ID}": "sales"}}',
    }
    table = load_settings(environ=environ).audiosocket
    assert (table.enabled, table.allowed, table.uuids) == (True, ("10.0.0.0/8", "127.0.0.1"), {ID: "sales"})
    with pytest.raises(ConfigurationError, match="OFFHOOK_AUDIOSOCKET__ALLOWED"):
        load_settings(environ=environ | {"OFFHOOK_AUDIOSOCKET__ALLOWED": "everybody"})
