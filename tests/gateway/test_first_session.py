"""The session that comes with a call: read without looking into what is judged later."""

from __future__ import annotations

import msgspec
import pytest

from gateway.first_session import GivenSession, read_session
from gateway.realtime.errors import Rejected


def test_a_session_is_read_field_by_field() -> None:
    given = read_session(b'{"type": "realtime", "agent": "anna", "model": "m", "tools": [1, {"a": null}]}')
    assert (given.agent, given.model) == ("anna", "m")
    assert given.session is not None
    assert list(given.session) == ["type", "model", "tools"]
    assert {type(value) for value in given.session.values()} == {msgspec.Raw}, "nothing is made of what may be huge"
    assert msgspec.json.decode(msgspec.json.encode(given.session))["tools"] == [1, {"a": None}]


def test_null_is_none() -> None:
    assert read_session(b"null") == GivenSession()
    assert read_session(b'{"agent": null, "model": 5}').model is None


@pytest.mark.parametrize(
    ("data", "code", "param"),
    [
        (b"[]", "invalid_type", "session"),
        (b'"x"', "invalid_type", "session"),
        (b'{"agent": 5}', "invalid_type", "session.agent"),
        (b"{", "invalid_json", "session"),
        (b'{"instructions": "\xff"}', "invalid_json", "session"),
        (b'{"x": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", "invalid_json", "session"),
    ],
)
def test_what_is_no_session(data: bytes, code: str, param: str) -> None:
    with pytest.raises(Rejected) as refused:
        read_session(data)
    assert (refused.value.code, refused.value.param) == (code, param)
