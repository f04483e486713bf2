"""The start of the chat engine: its options, its keys, and what it finds out about a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from engines.api import EngineError
from engines.llm.openai_compatible import OpenAiLanguageModel
from tests.engines.http_server import Handler, Seen, Server, Wire, free_port, serving
from tests.engines.llm.chat import SHORT, ask, polite, silent, status, talking


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


async def starting(server: Server, **options: Any) -> EngineError | None:
    """What the start says; None if it is content."""
    model = OpenAiLanguageModel(**{"base_url": server.url, "jitter": lambda: 0.0, **SHORT, **options})
    try:
        await model.start()
    except EngineError as error:
        assert await ask(model).code() == "not_started", "a start that failed leaves nothing open"
        return error
    finally:
        await model.close()
    return None


async def test_the_start_tells_what_is_wrong_with_a_server() -> None:
    async def code(server: Server, **options: Any) -> str:
        error = await starting(server, **options)
        return error.code if error is not None else "started"

    async with serving(polite) as server:
        server.models_status = 401
        assert await code(server) == "unauthorized"
        server.models_status = 404  # no list: a server may lack it
        assert await code(server, model="mine") == "started"
        assert await code(server) == "no_model"
        server.models_status = 200
        assert await code(server, model="unlisted") == "started"
        gone = Server(url=f"http://127.0.0.1:{free_port()}/v1")
        assert await code(gone, model="mine") == "unreachable"


async def test_before_the_start_a_reply_fails() -> None:
    model = OpenAiLanguageModel(base_url="http://127.0.0.1:9/v1")
    assert await ask(model).code() == "not_started"
    await model.close()


async def test_the_start_has_one_token_made_on_the_connection_that_replies_will_use() -> None:
    async with talking(polite, warm_s=5.0) as (model, server):
        warm = server.seen[0].json
        assert (warm["model"], warm["max_tokens"], warm["stream"]) == ("model-a", 1, True)
        await ask(model).done()
        assert (len(server.seen), server.connections) == (2, 1)


async def test_the_form_of_request_is_learned_before_the_first_caller() -> None:
    async def newer(seen: Seen, wire: Wire) -> None:
        if "max_tokens" in seen.json:
            await wire.reply(400, {"error": {"message": "use 'max_completion_tokens'"}})
        else:
            await polite(seen, wire)

    async with talking(newer, warm_s=5.0, attempts=1) as (model, server):
        assert len(server.seen) == 2
        await ask(model).done()
        assert len(server.seen) == 3


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (status(404, {"error": {"code": "model_not_found", "message": "secret words"}}), "no_model"),
        (status(404, "nothing here"), "no_model"),
        (status(400, {"error": {"message": 'model "mine" not found, try pulling it first'}}), "no_model"),
        (status(400, {"detail": "The model `mine` does not exist."}), "no_model"),
        (status(401), "unauthorized"),
        (status(403, {"error": {"code": "no_access"}}), "unauthorized"),
    ],
)
async def test_a_model_that_cannot_be_had_is_named_at_the_start(refusal: Handler, code: str) -> None:
    async with serving(refusal) as server:
        error = await starting(server, model="mine")
        assert error is not None
        assert (error.code, len(server.seen)) == (code, 1)
        assert server.url in str(error)
        assert "'mine'" in str(error)
        assert "secret" not in str(error)


@pytest.mark.parametrize(
    "answer",
    [
        status(429),
        status(500),
        status(400, {"error": {"message": "the token limit was reached: try a higher one"}}),
        status(400, {"error": {"message": "unknown parameter for this model"}}),
        status(200, "not json"),
        silent,
    ],
)
async def test_what_may_pass_hinders_no_start(answer: Handler) -> None:
    async with serving(answer) as server:
        with capture_logs() as logs:
            assert await starting(server, model="mine", warm_s=0.5) is None
        assert server.seen
        assert any(entry["event"] == "the server did not answer a first request" for entry in logs)


async def test_a_server_that_loads_its_model_first_is_waited_for() -> None:
    """Longer than any reply would be."""

    async def slowly(seen: Seen, wire: Wire) -> None:
        await asyncio.sleep(0.6)
        await polite(seen, wire)

    async with serving(slowly) as server:
        with capture_logs() as logs:
            assert await starting(server, first_s=0.2, warm_s=20.0) is None
        assert not [entry for entry in logs if entry["log_level"] == "warning"]


async def test_nothing_is_asked_of_a_server_that_is_paid_by_the_request_and_not_to_be_warmed() -> None:
    async with serving() as server:
        assert await starting(server, warm_s=0.0) is None
        assert not server.seen
