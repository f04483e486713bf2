"""The start of the chat engine: its options, its keys, and what it finds out about a server."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from engines.api import EngineError
from engines.llm.openai_compatible import OpenAiLanguageModel
from tests.engines.http_server import Server, free_port, serving
from tests.engines.llm.chat import SHORT, ask, polite, talking


async def test_options_reach_the_body_and_the_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", " secret-1 ")
    monkeypatch.setenv("OTHER_KEY", "secret-2")
    options: dict[str, Any] = {
        "model": "mine",
        "api_key_env": "SOME_KEY",
        "headers": {"X-Title": "offhook"},
        "headers_from_env": {"api-key": "OTHER_KEY"},
        "extra_body": {"temperature": 0.3, "chat_template_kwargs": {"enable_thinking": False}},
    }
    with capture_logs() as logs:
        async with talking(polite, **options) as (model, server):
            await ask(model).done()
            request = server.seen[0]
    assert request.headers["authorization"] == "Bearer secret-1"
    assert request.headers["api-key"] == "secret-2"
    assert request.headers["x-title"] == "offhook"
    assert (request.json["model"], request.json["temperature"]) == ("mine", 0.3)
    assert request.json["chat_template_kwargs"] == {"enable_thinking": False}
    assert "secret" not in repr(logs) + repr(model) + repr(model.__dict__)


@pytest.mark.parametrize("value", [None, "", "two\nlines", "ungültig"])
async def test_a_key_that_is_not_there_hinders_the_start(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("SOME_KEY", value)
    with pytest.raises(EngineError, match="SOME_KEY") as caught:
        async with talking(polite, api_key_env="SOME_KEY"):
            pass
    assert caught.value.code == "no_api_key"
    assert not value or value not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"base_url": "ftp://host/v1"},
        {"base_url": "https://user:word@host/v1"},
        {"base_url": "nothing"},
        {"attempts": 0},
        {"first_s": 0.0},
        {"no_such_option": 1},
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: Any) -> None:
    with pytest.raises(EngineError) as caught:
        OpenAiLanguageModel(**options)
    assert caught.value.code == "bad_options"
    assert "word" not in str(caught.value)


async def test_the_start_tells_what_is_wrong_with_a_server() -> None:
    async def start(server: Server, **options: Any) -> str:
        model = OpenAiLanguageModel(base_url=server.url, **SHORT, **options)
        try:
            await model.start()
        except EngineError as error:
            return error.code
        finally:
            await model.close()
        return "started"

    async with serving() as server:
        server.models_status = 401
        assert await start(server) == "unauthorized"
        server.models_status = 404  # no list: a server may lack it
        assert await start(server, model="mine") == "started"
        assert await start(server) == "no_model"
        server.models_status = 200
        assert await start(server, model="unlisted") == "started"
        gone = Server(url=f"http://127.0.0.1:{free_port()}/v1")
        assert await start(gone, model="mine") == "unreachable"


async def test_before_the_start_a_reply_fails() -> None:
    model = OpenAiLanguageModel(base_url="http://127.0.0.1:9/v1")
    assert await ask(model).code() == "not_started"
    await model.close()
