"""What each key opens, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr
from starlette.requests import HTTPConnection

from gateway.security.client_secrets import ClientSecrets
from gateway.security.guard import Access, Denial, Guard, Right, access_of
from gateway.security.rate_limit import FailureLimit
from gateway.settings import Settings

SETTINGS = Settings(key=SecretStr("full"), page_key=SecretStr("page"), console_key=SecretStr("console"))
CALLS, SECRETS = "/v1/realtime/calls", "/v1/realtime/client_secrets"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def connection(path: str, key: str | None, *, source: str = "10.0.0.1") -> HTTPConnection:
    headers = [(b"host", b"127.0.0.1:8080")]
    if key is not None:
        headers.append((b"authorization", f"Bearer {key}".encode()))
    return HTTPConnection(
        {"type": "http", "scheme": "http", "path": path, "headers": headers, "client": (source, 50_000)}
    )


def answer(guard: Guard, path: str, key: str | None, **kwargs: Any) -> Access | Denial:
    there = connection(path, key, **kwargs)
    denial = guard.authorize(there)
    return denial if denial is not None else access_of(there)


def code(guard: Guard, path: str, key: str | None, **kwargs: Any) -> str:
    said = answer(guard, path, key, **kwargs)
    return said.code if isinstance(said, Denial) else str(said.right.name)


@pytest.mark.parametrize(
    ("path", "page", "console", "nothing"),
    [
        (SECRETS, "PAGE_KEY", "key_out_of_scope", "missing_api_key"),
        ("/v1/agents", "PAGE_KEY", "key_out_of_scope", "missing_api_key"),
        ("/console/events", "key_out_of_scope", "CONSOLE_KEY", "missing_api_key"),
        ("/v1/realtime", "key_out_of_scope", "key_out_of_scope", "missing_api_key"),
        (CALLS, "key_out_of_scope", "key_out_of_scope", "missing_api_key"),
        (f"{CALLS}/rtc_1/hangup", "key_out_of_scope", "key_out_of_scope", "LATER"),
        ("/v1/calls", "key_out_of_scope", "key_out_of_scope", "missing_api_key"),
        ("/metrics", "key_out_of_scope", "key_out_of_scope", "missing_api_key"),
        (f"{CALLS}x", "key_out_of_scope", "key_out_of_scope", "missing_api_key"),
    ],
)
def test_what_each_key_opens(path: str, page: str, console: str, nothing: str) -> None:
    guard = Guard(SETTINGS)
    assert code(guard, path, "full") == "KEY"
    assert code(guard, path, "page") == page
    assert code(guard, path, "console") == console
    assert code(guard, path, None) == nothing
    assert code(guard, path, "wrong") == "invalid_api_key"


def test_a_client_secret_opens_calls_and_nothing_else() -> None:
    clock = Clock()
    secrets = ClientSecrets(clock)
    guard = Guard(SETTINGS, secrets)
    value, secret = secrets.mint(60)
    for path in (CALLS, "/v1/realtime"):
        assert answer(guard, path, value) == Access(Right.CLIENT_SECRET, secret)
    for path in ("/v1/calls", "/v1/calls/call_1", "/metrics", "/console/events", SECRETS, "/v1/agents"):
        said = answer(guard, path, value)
        assert isinstance(said, Denial)
        assert (said.status, said.code) == (403, "client_secret_out_of_scope")
    secrets.use(secret)
    for path in (CALLS, "/v1/realtime"):
        said = answer(guard, path, value)
        assert isinstance(said, Denial)
        assert (said.status, said.code) == (401, "ephemeral_token_already_used")
    assert answer(guard, f"{CALLS}/rtc_1/hangup", value) == Access(Right.LATER)
    clock.now_s += 60
    assert code(guard, CALLS, value) == "invalid_client_secret"


def test_without_a_key_all_is_open_but_a_client_secret_is_still_looked_at() -> None:
    secrets = ClientSecrets(Clock())
    guard = Guard(Settings(), secrets)
    value, secret = secrets.mint(60)
    assert code(guard, SECRETS, None) == "KEY"
    assert code(guard, CALLS, "any") == "KEY"
    assert answer(guard, CALLS, value) == Access(Right.CLIENT_SECRET, secret)
    assert code(guard, CALLS, "ek_guessed") == "invalid_client_secret"
    secrets.use(secret)
    assert code(guard, CALLS, value) == "ephemeral_token_already_used"


def test_who_guesses_has_to_wait_and_nobody_else_has() -> None:
    clock = Clock()
    secrets = ClientSecrets(clock)
    guard = Guard(SETTINGS, secrets, limit=FailureLimit(clock, failures=3, every_s=6.0))
    for _ in range(3):
        assert code(guard, SECRETS, "guess") == "invalid_api_key"
    for key in ("guess", "page", "console"):
        said = answer(guard, SECRETS, key)
        assert isinstance(said, Denial)
        assert (said.status, said.code, said.headers["Retry-After"]) == (429, "too_many_attempts", "6")
    assert code(guard, SECRETS, "full") == "KEY", "who has the key is not locked out by others at the same address"
    assert code(guard, CALLS, secrets.mint(60)[0]) == "CLIENT_SECRET"
    assert code(guard, SECRETS, None) == "missing_api_key"
    assert code(guard, SECRETS, "page", source="10.0.0.2") == "PAGE_KEY"
    clock.now_s += 6
    assert code(guard, SECRETS, "page") == "PAGE_KEY"
