from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from types import MappingProxyType

import pytest
import structlog

from gateway.telemetry.logs import REDACTED, configure_logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("uvicorn.error").filters.clear()


def logged(*, caller_text: bool = False, level: str = "info") -> list[dict[str, object]]:
    out = io.StringIO()
    configure_logs(level=level, as_json=True, caller_text=caller_text, stream=out)
    log = structlog.get_logger("some.module")
    log.info(
        "heard",
        text="my number is 5",
        Authorization="Bearer abc",
        nested={"key": "abc", "items": [{"transcript": "hello", "n": 1}]},
        call="call_1",
    )
    log.debug("detail")
    logging.getLogger("uvicorn.error").warning("from a library")
    logging.getLogger("httpx").info("noise")
    logging.getLogger("aioice.ice").info("Check 203.0.113.7")
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_secrets_and_callers_words_are_hidden_at_any_depth() -> None:
    heard, library = logged()
    assert (heard["event"], heard["call"], heard["level"]) == ("heard", "call_1", "info")
    assert heard["text"] == heard["Authorization"] == REDACTED
    assert heard["nested"] == {"key": REDACTED, "items": [{"transcript": REDACTED, "n": 1}]}
    assert (library["event"], library["level"], library["logger"]) == ("from a library", "warning", "uvicorn.error")


def test_what_lies_too_deep_to_look_at_is_hidden() -> None:
    out = io.StringIO()
    configure_logs(level="info", as_json=True, caller_text=False, stream=out)
    deep = {"a": {"b": {"c": [{"password": "p"}, 1]}}}
    structlog.get_logger("some.module").info("deep", here=deep, read_only=MappingProxyType({"password": "p", "n": 1}))
    line = json.loads(out.getvalue())
    assert line["here"] == {"a": {"b": {"c": [REDACTED, 1]}}}
    assert line["read_only"] == {"password": REDACTED, "n": 1}


def test_words_can_be_shown_secrets_never() -> None:
    heard = logged(caller_text=True)[0]
    assert heard["text"] == "my number is 5"
    assert heard["nested"] == {"key": REDACTED, "items": [{"transcript": "hello", "n": 1}]}
    assert heard["Authorization"] == REDACTED


@pytest.mark.parametrize("caller_text", [False, True])
def test_numbers_and_keys_are_never_shown(caller_text: bool) -> None:
    out = io.StringIO()
    configure_logs(level="info", as_json=True, caller_text=caller_text, stream=out)
    structlog.get_logger("some.module").info("rings", caller="+15550001", incoming={"dialled": "+1", "digits": "4111"})
    line = json.loads(out.getvalue())
    assert (line["caller"], line["incoming"]) == (REDACTED, {"dialled": REDACTED, "digits": REDACTED})


def test_the_level_is_the_least_that_is_written() -> None:
    assert [line["event"] for line in logged(level="warning")] == ["from a library"]
    assert "detail" in [line["event"] for line in logged(level="debug")]


def test_without_json_it_reads_as_text() -> None:
    out = io.StringIO()
    configure_logs(level="info", as_json=False, caller_text=False, stream=out)
    structlog.get_logger("m").warning("the words", text="private", count=3)
    assert "the words" in out.getvalue()
    assert "private" not in out.getvalue()
    assert "count=3" in out.getvalue()


@pytest.mark.parametrize("as_json", [True, False])
def test_a_traceback_shows_where_it_broke_and_not_what_was_said(as_json: bool) -> None:
    def breaks() -> None:
        said = " ".join(["my", "number", "is", "five"])
        raise ValueError(len(said))

    out = io.StringIO()
    configure_logs(level="info", as_json=as_json, caller_text=False, stream=out)
    try:
        breaks()
    except ValueError:
        structlog.get_logger("m").exception("it broke")
    assert "ValueError" in out.getvalue()
    assert "breaks" in out.getvalue()
    assert "number is five" not in out.getvalue()


def test_a_peer_that_was_turned_away_is_no_error_of_the_servers() -> None:
    out = io.StringIO()
    configure_logs(level="info", as_json=True, caller_text=False, stream=out)
    logging.getLogger("uvicorn.error").error("ASGI callable returned without completing handshake.")
    logging.getLogger("uvicorn.error").error("something else")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["something else"]
