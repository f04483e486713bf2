"""Headers and forms that are made to keep the parser busy."""

from __future__ import annotations

import email.message

import pytest
from starlette.requests import Request

from gateway.http_body import MAX_CONTENT_TYPE_CHARS, MAX_PART_HEAD_BYTES, BadForm, form_parts, media_type


def typed(content_type: str) -> Request:
    return Request({"type": "http", "headers": [(b"content-type", content_type.encode())]})


def test_a_content_type_is_read() -> None:
    assert media_type(typed('Multipart/Form-Data; boundary="a b"')) == ("multipart/form-data", "a b")
    assert media_type(typed("application/sdp")) == ("application/sdp", None)
    assert media_type(typed("")) == ("", None)


def test_a_long_content_type_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser's time grows with the square of it."""
    monkeypatch.setattr(email.message.Message, "get_param", lambda *_: pytest.fail("it was parsed"))
    assert media_type(typed('multipart/form-data; x="' + ";" * MAX_CONTENT_TYPE_CHARS)) == ("", None)


def test_the_header_of_a_part_is_short() -> None:
    named = b'Content-Disposition: form-data; name="sdp"'

    def form(head: bytes) -> bytes:
        return b"--x\r\n" + head + b"\r\n\r\nv=0\r\n--x--\r\n"

    fits = named + b"\r\na: " + b"b" * (MAX_PART_HEAD_BYTES - len(named) - 7)
    assert form_parts(form(fits), "x") == {"sdp": b"v=0"}
    with pytest.raises(BadForm):
        form_parts(form(fits + b"b"), "x")
