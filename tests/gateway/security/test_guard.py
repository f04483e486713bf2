from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr
from starlette.requests import HTTPConnection

from gateway.security.credentials import same
from gateway.security.guard import Denial, Guard
from gateway.security.keys import presented_key, select_subprotocol
from gateway.settings import Settings

KEY = "correct horse"


def connection(
    headers: dict[str, str] | None = None,
    *,
    charset: str = "utf-8",
    scheme: str = "ws",
    subprotocols: tuple[str, ...] = (),
) -> HTTPConnection:
    given = {"host": "127.0.0.1:8080", **(headers or {})}
    scope: dict[str, Any] = {
        "type": "websocket",
        "scheme": scheme,
        "path": "/v1/realtime",
        "headers": [(name.encode(), value.encode(charset)) for name, value in given.items()],
        "subprotocols": list(subprotocols),
    }
    return HTTPConnection(scope)


def refusal(settings: Settings, *args: Any, **kwargs: Any) -> str | None:
    denial = Guard(settings).authorize(connection(*args, **kwargs))
    return None if denial is None else denial.code


def test_a_program_on_this_machine_needs_nothing() -> None:
    assert refusal(Settings()) is None


def test_a_page_on_loopback_needs_a_known_origin() -> None:
    assert refusal(Settings(), {"origin": "http://127.0.0.1:8080"}) is None
    assert refusal(Settings(), {"origin": "https://evil.example"}) == "origin_not_allowed"
    friend = Settings(allowed_origins=("https://friend.example",))
    assert refusal(friend, {"origin": "https://friend.example"}) is None


def test_a_rebound_name_cannot_read_along_without_an_origin() -> None:
    assert refusal(Settings(), {"host": "evil.example:8080"}) == "host_not_allowed"
    assert refusal(Settings(), {"host": ""}) == "host_not_allowed"


def test_a_rebound_page_is_of_one_origin_with_its_host_and_still_refused() -> None:
    rebound = {"host": "evil.example:8080", "origin": "http://evil.example:8080"}
    assert refusal(Settings(), rebound) == "host_not_allowed"
    assert refusal(Settings(key=SecretStr(KEY)), rebound) == "missing_api_key"


def test_with_a_key_any_host_name_will_do() -> None:
    keyed = Settings(key=SecretStr(KEY))
    headers = {"host": "voice.example", "authorization": f"Bearer {KEY}"}
    assert refusal(keyed, headers) is None
    assert refusal(keyed, {**headers, "origin": "https://voice.example"}, scheme="wss") is None
    assert refusal(keyed, {**headers, "origin": "https://voice.example"}, scheme="ws") == "origin_not_allowed"


@pytest.mark.parametrize(
    ("headers", "subprotocols", "code"),
    [
        ({}, (), "missing_api_key"),
        ({"authorization": f"Bearer {KEY}"}, (), None),
        ({"authorization": f"bearer  {KEY} "}, (), None),
        ({"authorization": "Bearer wrong"}, (), "invalid_api_key"),
        ({"authorization": "Bearer "}, (), "missing_api_key"),
        ({"authorization": f"Basic {KEY}"}, (), "missing_api_key"),
        ({}, ("realtime", f"openai-insecure-api-key.{KEY}"), None),
        ({}, ("realtime", "openai-insecure-api-key.wrong"), "invalid_api_key"),
        ({}, ("realtime",), "missing_api_key"),
    ],
)
def test_the_key(headers: dict[str, str], subprotocols: tuple[str, ...], code: str | None) -> None:
    assert refusal(Settings(key=SecretStr(KEY)), headers, subprotocols=subprotocols) == code


@pytest.mark.parametrize("key", ["schlüssel", "ключ", "🔑 и ключ"])
def test_a_key_beyond_ascii_comes_as_utf8_or_as_latin1(key: str) -> None:
    settings = Settings(key=SecretStr(key))
    assert refusal(settings, {"authorization": f"Bearer {key}"}) is None
    assert refusal(settings, {"authorization": f"Bearer {key}x"}) == "invalid_api_key"
    if key == "schlüssel":
        assert refusal(settings, {"authorization": f"Bearer {key}"}, charset="latin-1") is None


def test_a_key_does_not_open_the_door_to_other_origins() -> None:
    headers = {"origin": "https://evil.example", "authorization": f"Bearer {KEY}"}
    assert refusal(Settings(key=SecretStr(KEY)), headers) == "origin_not_allowed"


def test_behind_a_proxy_the_own_origin_is_https() -> None:
    settings = Settings(allowed_origins=("https://voice.example",))
    headers = {"host": "voice.example", "origin": "https://voice.example"}
    assert refusal(settings, headers, scheme="wss") is None


def test_only_realtime_is_ever_selected() -> None:
    assert select_subprotocol(connection(subprotocols=("openai-insecure-api-key.x", "realtime"))) == "realtime"
    assert select_subprotocol(connection(subprotocols=("openai-insecure-api-key.x",))) is None
    assert select_subprotocol(connection()) is None


def test_keys_of_any_content_compare() -> None:
    assert same("ключ\udc80", "ключ\udc80")
    assert not same("ключ", "ключ ")
    assert presented_key(connection({"authorization": "Bearer a b"})) == "a b"


def test_a_denial_says_so_in_json() -> None:
    denial = Denial(401, "missing_api_key", "A bearer key is needed.", "authentication_error", {"X-A": "b"})
    response = denial.response()
    assert response.status_code == 401
    assert response.headers["x-a"] == "b"
    assert b'"code":"missing_api_key"' in bytes(response.body)
