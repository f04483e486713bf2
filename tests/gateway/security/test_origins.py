from __future__ import annotations

import pytest

from gateway.security.origins import Origin, OriginPolicy, parse_host, parse_origin


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://a.example", Origin("https", "a.example", 443)),
        ("http://A.Example:8080", Origin("http", "a.example", 8080)),
        ("http://[::1]:81/", Origin("http", "::1", 81)),
        ("null", None),
        ("", None),
        ("file://", None),
        ("ftp://a.example", None),
        ("https://a.example/path", None),
        ("https://a.example?x", None),
        ("https://user@a.example", None),
        ("https://a.example:99999", None),
        ("https://[::1", None),
        ("https://a example", None),
    ],
)
def test_parsing(text: str, origin: Origin | None) -> None:
    assert parse_origin(text) == origin


def test_an_origin_is_written_as_browsers_do() -> None:
    for text in ("https://a.example", "http://a.example:8080", "http://[::1]:81", "http://127.0.0.1"):
        assert str(parse_origin(text)) == text


def test_the_own_origin_follows_the_scheme_of_the_connection() -> None:
    assert parse_host("a.example", scheme="wss") == Origin("https", "a.example", 443)
    assert parse_host("localhost:8080", scheme="ws") == Origin("http", "localhost", 8080)
    assert parse_host("", scheme="http") is None
    assert parse_host("a/b", scheme="http") is None


def allowed(origin: str, host: str, *, scheme: str = "ws", allowed: tuple[str, ...] = ()) -> bool:
    policy = OriginPolicy(frozenset(allowed), "gateway.lan")
    return policy.origin_is_allowed(origin, parse_host(host, scheme=scheme))


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8080", "localhost:8080", "[::1]:8080", "app.localhost:8080", "gateway.lan"]
)
def test_the_gateway_s_own_pages_may_call(host: str) -> None:
    assert allowed(f"http://{host}", host)


def test_other_pages_may_not() -> None:
    assert not allowed("https://evil.example", "127.0.0.1:8080")
    assert not allowed("http://127.0.0.1:9999", "127.0.0.1:8080")
    assert not allowed("https://127.0.0.1:8080", "127.0.0.1:8080")
    assert not allowed("null", "127.0.0.1:8080")


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("127.0.0.1:8080", True),
        ("localhost:8080", True),
        ("[::1]:8080", True),
        ("192.168.1.4", True),
        ("app.localhost:8080", True),
        ("Gateway.lan", True),
        ("evil.example:8080", False),
        ("localhost.evil.example:8080", False),
        ("127.0.0.1.evil.example", False),
        ("notlocalhost", False),
    ],
)
def test_a_host_is_ours_if_nobody_else_can_own_its_name(name: str, ours: bool) -> None:
    host = parse_host(name, scheme="http")
    assert host is not None
    assert OriginPolicy(frozenset(), "gateway.lan").host_is_ours(host) is ours


def test_an_allowed_origin_may_call_and_makes_its_host_known() -> None:
    known = ("https://voice.example",)
    assert allowed("https://voice.example", "anything", allowed=known)
    assert allowed("https://voice.example:443", "voice.example", scheme="wss", allowed=known)
    assert not allowed("https://voice.example.evil.example", "x", allowed=known)
    policy = OriginPolicy(frozenset(known), "127.0.0.1")
    assert policy.host_is_ours(Origin("http", "voice.example", 80))
    assert not policy.host_is_ours(Origin("http", "other.example", 80))
