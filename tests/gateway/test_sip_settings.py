from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.settings import ConfigurationError, describe, load_settings
from gateway.sip_settings import SipSettings, TrunkSettings


def sip(**values: Any) -> SipSettings:
    return SipSettings.model_validate(values)


def test_off_and_local_unless_told() -> None:
    settings = sip()
    assert not settings.enabled
    assert settings.is_open_to_none


@pytest.mark.parametrize("who", [{"allow": "192.0.2.0/24"}, {"users": {"alice": "secret"}}, {"anyone": True}])
def test_to_listen_beyond_this_machine_says_who_may_call(who: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"sip\.allow or sip\.users"):
        sip(enabled=True, host="0.0.0.0")
    assert sip(enabled=True, host="0.0.0.0", **who).enabled


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"host": ""}, "is an address"),
        ({"host": "localhost"}, "not an IP address"),
        ({"transports": ""}, "at least 1"),
        ({"transports": "udp,udp"}, "twice"),
        ({"transports": "sctp"}, "udp"),
        ({"tls_cert": "cert.pem"}, "go together"),
        ({"users": {"alice": ""}}, "empty password"),
        ({"users": {"a b": "x"}}, "not a name"),
        ({"allow": "192.0.2.300"}, "not an address or a network"),
        ({"realm": 'a"b'}, "without quotes"),
        ({"realm": ""}, "realm"),
        ({"session_expires_s": 30}, "at least 90"),
        ({"codecs": "gsm"}, "opus"),
        ({"digest": ""}, "at least 1"),
        ({"digest": "md5,md5"}, "named twice"),
        ({"digest": "sha-512"}, "md5"),
        ({"srtp": "maybe"}, "accepted"),
        ({"trunks": {"main": {"server": "sip.example", "user": "x", "transport": "tls"}}}, "does not name"),
        ({"trunks": {"main": {"server": "sip.example:0", "user": "x"}}}, "not a host"),
        ({"trunks": {"main": {"server": "sip.example:99999", "user": "x"}}}, "not a host"),
        ({"trunks": {"main": {"server": "http://x", "user": "x"}}}, "not a host"),
        ({"trunks": {"main": {"server": "sip.example", "user": "x", "domain": "a b"}}}, "not a host"),
        ({"trunks": {"main": {"server": "sip.example"}}}, "required"),
    ],
)
def test_nonsense_is_refused(values: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        sip(**values)


def test_networks_are_written_as_people_do_and_widened_by_none() -> None:
    assert sip(allow="192.0.2.0/24, 2001:db8::1").allow == ("192.0.2.0/24", "2001:db8::1")
    with pytest.raises(ValidationError, match="not an address or a network"):
        sip(allow="192.0.2.7/24")


@pytest.mark.parametrize(
    ("server", "transport", "host_port", "domain"),
    [
        ("sip.example", "udp", ("sip.example", 5060), "sip.example"),
        ("sip.example:5070", "udp", ("sip.example", 5070), "sip.example"),
        ("sip.example", "tls", ("sip.example", 5061), "sip.example"),
        ("[2001:db8::1]", "udp", ("2001:db8::1", 5060), "[2001:db8::1]"),
        ("[2001:db8::1]:5070", "tcp", ("2001:db8::1", 5070), "[2001:db8::1]"),
    ],
)
def test_a_trunk_s_server(server: str, transport: Any, host_port: tuple[str, int], domain: str) -> None:
    trunk = TrunkSettings.model_validate({"server": server, "user": "x", "transport": transport})
    assert trunk.host_port == host_port
    assert trunk.our_domain == domain
    other = TrunkSettings.model_validate({"server": server, "user": "x", "domain": "voice.example"})
    assert other.our_domain == "voice.example"


def test_a_misspelt_key_of_a_trunk_is_told_and_a_trunk_is_shown_as_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "offhook.toml"
    file.write_text('[sip.trunks.main]\nsever = "x"\nuser = "u"\n')
    with pytest.raises(ConfigurationError) as caught:
        load_settings(file=file, environ={})
    assert any("did you mean sip.trunks.main.server?" in problem for problem in caught.value.problems)
    file.write_text('[sip.trunks.main]\nserver = "x"\nuser = "u"\nregister = false\npassword = "hidden"\n')
    shown = "\n".join(describe(load_settings(file=file, environ={})))
    assert "register = false" in shown
    assert "hidden" not in shown
    assert tomllib.loads(shown)["sip"]["trunks"]["main"]["server"] == "x"
