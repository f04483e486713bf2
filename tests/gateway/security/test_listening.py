from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.security.listening import check_listening
from gateway.security.networks import is_loopback
from gateway.settings import ConfigurationError, Settings

KEY = SecretStr("k")


def refusal(**settings: Any) -> str | None:
    try:
        check_listening(Settings(**settings))
    except ConfigurationError as error:
        return error.code
    return None


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("localhost", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.4", False),
        ("my-machine", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    assert (refusal(host=host) is None) is loopback


def test_beyond_loopback_a_key_and_tls_are_needed(tmp_path: Path) -> None:
    pem = tmp_path / "some.pem"
    pem.touch()
    assert refusal(host="0.0.0.0") == "key_required"
    assert refusal(host="0.0.0.0", tls_cert=pem, tls_key=pem) == "key_required"
    assert refusal(host="0.0.0.0", key=KEY) == "tls_required"
    assert refusal(host="0.0.0.0", key=KEY, tls_cert=pem, tls_key=pem) is None
    assert refusal(host="0.0.0.0", key=KEY, trusted_proxies=("10.0.0.0/8",)) is None


def test_half_of_tls_is_none(tmp_path: Path) -> None:
    pem = tmp_path / "some.pem"
    pem.touch()
    assert refusal(tls_cert=pem) == "tls_incomplete"
    assert refusal(tls_key=pem) == "tls_incomplete"
    assert refusal(tls_cert=pem, tls_key=tmp_path / "none.pem") == "tls_unreadable"


def test_an_empty_key_is_refused() -> None:
    assert refusal(key=SecretStr(" ")) == "key_empty"


def test_keys_that_open_nothing_or_too_much_are_refused() -> None:
    assert refusal(key=KEY, page_key=SecretStr("p"), console_key=SecretStr("c")) is None
    assert refusal(key=KEY, page_key=SecretStr(" ")) == "key_empty"
    assert refusal(page_key=SecretStr("p")) == "key_required"
    assert refusal(console_key=SecretStr("c")) == "key_required"
    assert refusal(key=KEY, page_key=KEY) == "keys_equal"
    assert refusal(key=KEY, page_key=SecretStr("p"), console_key=SecretStr("p")) == "keys_equal"
    assert refusal(key=SecretStr("ek_1")) == "key_reserved"


def test_sip_over_tls_has_a_certificate_of_its_own_or_the_gateway_s(tmp_path: Path) -> None:
    pem = tmp_path / "some.pem"
    pem.touch()
    tls = ("udp", "tls")
    assert refusal(sip={"transports": tls}) is None
    assert refusal(sip={"enabled": True}) is None
    assert refusal(sip={"enabled": True, "transports": tls}) == "tls_incomplete"
    assert refusal(sip={"enabled": True, "transports": tls}, tls_cert=pem, tls_key=pem) is None
    own = {"enabled": True, "transports": tls, "tls_cert": pem, "tls_key": tmp_path / "none.pem"}
    assert refusal(sip=own) == "tls_unreadable"
