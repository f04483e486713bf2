"""The chat engine against real sockets that behave well, badly and not at all."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from engines.api import EngineError
from engines.llm.openai_compatible import OpenAiLanguageModel
from streaming.jobs import Generate, Generation, GenerationDone, GenerationFailed, Message, Priority, Token, Usage
from tests.engines.http_server import Handler, Seen, Server, Wire, free_port, serving

SHORT: Any = {"connect_s": 5.0, "first_s": 5.0, "between_s": 5.0, "total_s": 9.0}
HELLO = (Message("system", "Be brief."), Message("user", "Hello?"))


class Heard:
    """What one generation delivered."""

    def __init__(self) -> None:
        self.results: list[Generation] = []
        self.on_token: Callable[[], None] = lambda: None
        self.within_s = 10.0
        self._changed = asyncio.Event()

    def deliver(self, result: Generation) -> None:
        assert not self.ended, "a result after the end"
        self.results.append(result)
        self._changed.set()
        if isinstance(result, Token):
            self.on_token()

    @property
    def ended(self) -> bool:
        return bool(self.results) and not isinstance(self.results[-1], Token)

    @property
    def text(self) -> str:
        return "".join(result.text for result in self.results if isinstance(result, Token))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(self.within_s):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def end(self) -> Generation:
        await self.until(lambda: self.ended)
        return self.results[-1]

    async def done(self) -> GenerationDone:
        end = await self.end()
        assert isinstance(end, GenerationDone), end
        return end

    async def code(self) -> str:
        end = await self.end()
        assert isinstance(end, GenerationFailed), end
        return end.code


def ask(model: OpenAiLanguageModel, *, epoch: int = 1, call: str = "call", **fields: Any) -> Heard:
    heard = Heard()
    values = {"messages": HELLO, "priority": Priority.FIRST_AUDIO, "deadline": math.inf, **fields}
    model.generate(Generate(call=call, epoch=epoch, **values), heard.deliver)
    return heard


@contextlib.asynccontextmanager
async def talking(handler: Handler | None, **options: Any) -> AsyncIterator[tuple[OpenAiLanguageModel, Server]]:
    async with serving(handler) as server:
        model = OpenAiLanguageModel(**{"base_url": server.url, "jitter": lambda: 0.0, **SHORT, **options})
        await model.start()
        try:
            yield model, server
        finally:
            await model.close()


def words(*texts: str, finish: str | None = "stop") -> list[dict[str, Any]]:
    said = [{"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]} for text in texts]
    return [*said, {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}] if finish else said


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
}


async def say(wire: Wire, *chunks: object) -> None:
    await wire.begin()
    for chunk in chunks:
        await wire.event(chunk)
    await wire.event("[DONE]")
    await wire.end()


async def polite(_: Seen, wire: Wire) -> None:
    await say(wire, {"choices": [{"delta": {"role": "assistant"}}]}, *words("Good ", "day."), USAGE)


def in_turn(*handlers: Handler) -> Handler:
    """The first request to the first, and so on; the last serves the rest."""
    left = list(handlers)

    async def handle(seen: Seen, wire: Wire) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(seen, wire)

    return handle


def status(code: int, body: object = "", **headers: str) -> Handler:
    async def handle(_: Seen, wire: Wire) -> None:
        await wire.reply(code, body, headers=headers)

    return handle


async def test_tokens_come_as_they_are_made_with_their_cost() -> None:
    go_on = asyncio.Event()

    async def slowly(_: Seen, wire: Wire) -> None:
        await wire.begin()
        first, *rest = words("Good ", "day.")
        await wire.event(first)
        await go_on.wait()
        for chunk in (*rest, USAGE, "[DONE]"):
            await wire.event(chunk)
        await wire.end()

    async with talking(slowly) as (model, server):
        heard = ask(model, max_tokens=7, temperature=0.5)
        await heard.until(lambda: heard.text == "Good ")
        go_on.set()
        assert await heard.done() == GenerationDone(1, "stop", Usage(9, 5, 2))
        assert heard.results[:-1] == [Token(1, "Good "), Token(1, "day.")]
        assert server.seen[0].path == "/v1/chat/completions"
        assert server.seen[0].json == {
            "model": "model-a",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 7,
            "temperature": 0.5,
        }


async def test_the_connection_opened_at_start_serves_every_reply() -> None:
    async with talking(polite) as (model, server):
        for epoch in range(5):
            await ask(model, epoch=epoch).done()
            while model.running:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert server.connections == 1


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


@pytest.mark.parametrize(
    ("reply", "code", "requests"),
    [
        (status(401, {"error": {"message": "bad key sk-123"}}), "unauthorized", 1),
        (status(429, {"error": {"code": "insufficient_quota"}}), "rate_limited", 1),
        (status(429), "rate_limited", 2),
        (status(500), "server_error", 2),
        (status(503, "<html>busy</html>"), "server_error", 2),
        (status(504), "timeout", 2),
        (status(302, "", Location="http://127.0.0.1:9/"), "bad_response", 1),
        (status(400, {"error": {"message": "This model's maximum context length is 4096"}}), "context_too_long", 1),
        (status(413), "context_too_long", 1),
        (status(404, {"error": {"code": "model_not_found"}}), "bad_request", 2),  # the second without usage
        (status(200, "not json"), "bad_response", 1),
        (status(200, {"choices": 7}), "connection_lost", 2),
    ],
)
async def test_each_refusal_has_its_code_and_its_number_of_tries(reply: Handler, code: str, requests: int) -> None:
    with capture_logs() as logs:
        async with talking(reply) as (model, server):
            heard = ask(model)
            assert await heard.code() == code
            assert len(server.seen) == requests
    failed = heard.results[-1]
    assert isinstance(failed, GenerationFailed)
    assert "sk-123" not in failed.message + repr(logs)
    assert {"code": code, "call": "call", "epoch": 1}.items() <= logs[-1].items()


async def test_what_passes_is_tried_again() -> None:
    async def drop(_: Seen, wire: Wire) -> None:
        await wire.reset()

    async def hang_up(_: Seen, wire: Wire) -> None:
        await wire.begin()
        await wire.cut()

    for bad in (status(500), drop, hang_up, status(429, "", **{"Retry-After": "0"})):
        async with talking(in_turn(bad, polite)) as (model, _):
            heard = ask(model)
            assert (await heard.done()).reason == "stop"
            assert heard.text == "Good day."


async def test_a_busy_server_is_waited_for_once_and_within_the_limit() -> None:
    soon = status(429, "", **{"retry-after-ms": "1"})
    async with talking(in_turn(soon, soon, polite), attempts=9) as (model, server):
        assert await ask(model).code() == "rate_limited"
        assert len(server.seen) == 2
    async with talking(in_turn(status(429, "", **{"Retry-After": "30"}), polite)) as (model, server):
        assert await ask(model).code() == "rate_limited"  # at once: the wait would outlast the limit
        assert len(server.seen) == 1


async def test_after_the_first_token_nothing_is_tried_again() -> None:
    def breaking(how: str) -> Handler:
        async def handle(_: Seen, wire: Wire) -> None:
            await wire.begin()
            await wire.event(words("Good ")[0])
            await asyncio.sleep(0.05)
            await (wire.reset() if how == "reset" else wire.cut() if how == "cut" else wire.end())

        return handle

    for how in ("reset", "cut", "end"):
        async with talking(breaking(how), attempts=3) as (model, server):
            heard = ask(model)
            assert await heard.code() == "connection_lost"
            assert heard.text == "Good "
            assert len(server.seen) == 1


async def test_done_ends_a_reply_too() -> None:
    """Some servers give no reason for the end. Only what was said can end: nothing said is a stream that broke off."""
    async with talking(lambda _, wire: say(wire, *words("Good ", "day.", finish=None))) as (model, _):
        heard = ask(model)
        assert (await heard.done()).reason == "stop"
        assert heard.text == "Good day."
    async with talking(lambda _, wire: say(wire, {"choices": []})) as (model, _):
        assert await ask(model).code() == "connection_lost"


async def test_a_page_or_a_compressed_answer_is_no_reply() -> None:
    async def page(_: Seen, wire: Wire) -> None:
        await wire.reply(200, "<html>log in</html>", content_type="text/html; charset=utf-8")

    async def compressed(_: Seen, wire: Wire) -> None:
        await wire.reply(200, b"\x1f\x8b", content_type="text/event-stream", headers={"Content-Encoding": "gzip"})

    for answer in (page, compressed):
        async with talking(answer) as (model, server):
            assert await ask(model).code() == "bad_response"
            assert len(server.seen) == 1


async def test_an_error_in_mid_stream() -> None:
    async def fail(_: Seen, wire: Wire) -> None:
        await say(wire, words("Good ")[0], {"error": {"message": "out of memory", "code": 503}})

    async def overrun(_: Seen, wire: Wire) -> None:
        await say(wire, {"error": {"message": "the prompt exceeds the available context", "code": 400}})

    async with talking(in_turn(fail, overrun)) as (model, _):
        assert await ask(model).code() == "server_error"
        assert await ask(model, epoch=2).code() == "context_too_long"


async def silent(_: Seen, wire: Wire) -> None:
    await wire.until_closed()


async def silent_after_head(_: Seen, wire: Wire) -> None:
    await wire.begin()
    await wire.until_closed()


async def dribble(_: Seen, wire: Wire) -> None:
    await wire.begin()
    while True:
        await wire.chunk(b":")
        await asyncio.sleep(0.01)


async def think_for_ever(_: Seen, wire: Wire) -> None:
    await wire.begin()
    while True:
        await wire.event({"choices": [{"delta": {"reasoning_content": "hm", "content": None}}]})
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("handler", [silent, silent_after_head, dribble, think_for_ever])
async def test_no_first_token(handler: Handler) -> None:
    async with talking(handler, first_s=0.3) as (model, server):
        assert await ask(model).code() == "timeout"
        await server.closed()


async def test_no_next_token_and_no_end() -> None:
    async def stall(_: Seen, wire: Wire) -> None:
        await wire.begin()
        await wire.event(words("Good ")[0])
        await wire.until_closed()

    async def never_end(_: Seen, wire: Wire) -> None:
        await wire.begin()
        while True:
            await wire.event(words("na ")[0])
            await asyncio.sleep(0.02)

    async with talking(in_turn(stall, never_end), between_s=0.3, total_s=1.5) as (model, server):
        first = ask(model)
        assert (await first.code(), first.text) == ("timeout", "Good ")
        second = ask(model, epoch=2, max_tokens=4000)
        assert await second.code() == "timeout"
        assert len(second.results) > 2
        await server.closed()


async def test_a_reply_far_beyond_its_limit_is_ended_here() -> None:
    async def never_end(_: Seen, wire: Wire) -> None:
        await wire.begin()
        while True:
            await wire.event(words("x" * 100)[0])

    async with talking(never_end) as (model, server):
        heard = ask(model, max_tokens=10)
        assert (await heard.done()).reason == "length"
        assert len(heard.text) == 320
        await server.closed()


@pytest.mark.parametrize("garbage", [b"data: {\n\n", b"data: [1]\n\n", b"data: " + b"[" * 100_000 + b"\n\n"])
async def test_garbage_in_the_stream(garbage: bytes) -> None:
    async def handle(_: Seen, wire: Wire) -> None:
        await wire.begin()
        await wire.chunk(garbage)
        await wire.end()

    async with talking(handle) as (model, _):
        assert await ask(model).code() == "bad_response"


async def test_an_endless_line_is_not_collected() -> None:
    sent = 0

    async def handle(_: Seen, wire: Wire) -> None:
        nonlocal sent
        await wire.begin()
        while True:
            await wire.chunk(b"x" * 65536)
            sent += 65536

    async with talking(handle) as (model, server):
        assert await ask(model).code() == "bad_response"
        await server.closed()
    assert sent < 16 << 20


async def test_no_http_at_all() -> None:
    async def handle(_: Seen, wire: Wire) -> None:
        await wire.raw(b"hello, I am not what you think\r\n\r\n")
        await wire.cut()

    async with talking(handle) as (model, _):
        assert await ask(model).code() == "connection_lost"


async def test_a_cancelled_reply_closes_its_connection_and_says_no_more() -> None:
    async def talk(_: Seen, wire: Wire) -> None:
        await wire.begin()
        while True:
            await wire.event(words("na ")[0])
            await asyncio.sleep(0.001)

    async with talking(talk) as (model, server):
        heard = ask(model, max_tokens=4000)
        await heard.until(lambda: len(heard.results) >= 3)
        model.cancel("call", 1)
        count = len(heard.results)
        await server.closed()
        assert len(heard.results) == count
        assert not model.running


async def test_a_receiver_may_cancel_on_what_it_just_got() -> None:
    async def at_once(_: Seen, wire: Wire) -> None:
        await say(wire, *words(*["na "] * 50))

    async with talking(at_once) as (model, _):
        heard = ask(model)
        heard.on_token = lambda: model.cancel("call", 1)
        while model.running:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert heard.results == [Token(1, "na ")]


async def test_a_call_that_ends_takes_only_its_own_replies_along() -> None:
    go_on = asyncio.Event()

    async def handle(seen: Seen, wire: Wire) -> None:
        await go_on.wait()
        await polite(seen, wire)

    async with talking(handle) as (model, _):
        gone = [ask(model, epoch=epoch, call="gone") for epoch in range(3)]
        kept = ask(model, call="kept")
        model.forget("gone")
        model.cancel("gone", 1)  # unknown by now
        go_on.set()
        await kept.done()
        assert not any(heard.results for heard in gone)


async def test_closing_in_mid_reply_leaves_nothing() -> None:
    async with serving(silent) as server:
        model = OpenAiLanguageModel(base_url=server.url)
        await model.start()
        heard = [ask(model, epoch=epoch) for epoch in range(3)]
        await asyncio.sleep(0.05)
        await model.close()
        await model.close()
        assert not any(each.results for each in heard)
        assert not model.running
        await server.closed()


async def test_too_many_at_once_are_refused() -> None:
    async with talking(silent, max_running=2) as (model, _):
        ask(model, epoch=1)
        ask(model, epoch=2)
        assert await ask(model, epoch=3).code() == "overloaded"


async def test_a_server_without_usage_is_asked_without_it_once_and_for_all() -> None:
    async def handle(seen: Seen, wire: Wire) -> None:
        if "stream_options" in seen.json:
            await wire.reply(400, {"detail": "extra fields not permitted"})
        else:
            await say(wire, *words("Good ", "day."))

    async with talking(handle, attempts=1) as (model, server):
        assert (await ask(model).done()).usage == Usage(0, 0, 2)
        await ask(model, epoch=2).done()
        assert ["stream_options" in seen.json for seen in server.seen] == [True, False, False]


async def test_the_names_that_newer_models_want_are_learned() -> None:
    async def handle(seen: Seen, wire: Wire) -> None:
        body = seen.json
        if "max_tokens" in body:
            await wire.reply(400, {"error": {"message": "'max_tokens' is not supported: use 'max_completion_tokens'"}})
        elif "temperature" in body:
            await wire.reply(400, {"error": {"message": "'temperature' does not support 0.0", "param": "temperature"}})
        else:
            await polite(seen, wire)

    async with talking(handle, attempts=1) as (model, server):
        assert (await ask(model, max_tokens=5).done()).usage == Usage(9, 5, 2)
        await ask(model, epoch=2, max_tokens=5).done()
        assert len(server.seen) == 4
        assert server.seen[-1].json["max_completion_tokens"] == 5


async def test_a_refusal_that_no_dialect_cures_teaches_nothing() -> None:
    async with talking(in_turn(status(422), status(422), polite)) as (model, _):
        assert await ask(model).code() == "bad_request"
        assert (await ask(model, epoch=2).done()).usage == Usage(9, 5, 2)


async def test_counts_that_never_come_do_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.llm.openai_compatible.TAIL_S", 0.1)

    async def no_end(_: Seen, wire: Wire) -> None:
        await wire.begin()
        for chunk in words("Good ", "day."):
            await wire.event(chunk)
        await wire.until_closed()

    async with talking(no_end, total_s=1.0) as (model, server):
        heard = ask(model)
        assert await heard.done() == GenerationDone(1, "stop", Usage(0, 0, 2))
        await server.closed()
        assert len(heard.results) == 3


async def test_forms_that_servers_use() -> None:
    async def whole(_: Seen, wire: Wire) -> None:
        message = {"role": "assistant", "content": "Good day."}
        choice = {"message": message, "finish_reason": "length"}
        await wire.reply(200, {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})

    async def crlf_in_bytes(_: Seen, wire: Wire) -> None:
        await wire.begin("text/event-stream; charset=utf-8")
        stream = (
            b': hello\r\n\r\nevent: x\r\nid: 1\r\ndata: {"choices":[{"delta":{"content":"Good \\ud83d"}}]}\r\n\r\n'
            b'data:{"choices":[{"delta":\r\ndata:{"content":"\\ude00."},"finish_reason":"stop"}]}\r\n\r\ndata: [DONE]'
        )
        for byte in stream:
            await wire.chunk(bytes([byte]))
        await wire.end()

    async def withheld(_: Seen, wire: Wire) -> None:
        await say(wire, *words(finish="content_filter"))

    async def empty(_: Seen, wire: Wire) -> None:
        await say(wire, *words(finish="stop"))

    async with talking(in_turn(whole, crlf_in_bytes, withheld, empty)) as (model, _):
        first = ask(model)
        assert await first.done() == GenerationDone(1, "length", Usage(3, 3, 2))
        second = ask(model, epoch=2)
        await second.done()
        assert second.text == "Good 😀."
        assert await ask(model, epoch=3).code() == "content_filter"
        fourth = ask(model, epoch=4)
        await fourth.done()
        assert fourth.text == ""


async def test_a_long_conversation_is_sent_as_its_newest_turns() -> None:
    turns = [Message("user" if index % 2 == 0 else "assistant", f"{index:03d} {'x' * 20}") for index in range(101)]
    messages = (HELLO[0], *turns)

    async with talking(polite, history_messages=6) as (model, server):
        await ask(model, messages=messages).done()
        sent = [message["content"][:3] for message in server.seen[0].json["messages"]]
        assert sent == ["Be ", "096", "097", "098", "099", "100"]
    async with talking(polite, history_characters=9 + 24 * 4) as (model, server):
        await ask(model, messages=messages).done()
        sent = [message["content"][:3] for message in server.seen[0].json["messages"]]
        assert sent == ["Be ", "098", "099", "100"]
    async with talking(polite, prompt_characters=20) as (model, server):
        assert await ask(model, messages=messages).code() == "context_too_long"
        assert not server.seen


async def test_a_burst_of_tokens_leaves_the_loop_to_others() -> None:
    async def at_once(_: Seen, wire: Wire) -> None:
        stream = b"".join(b'data: {"choices":[{"delta":{"content":"na "}}]}\n\n' for _ in range(1000))
        await wire.begin()
        await wire.chunk(stream)
        await wire.event(words()[0])
        await wire.end()

    async with talking(at_once) as (model, _):
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        heard = ask(model, max_tokens=4000)
        await heard.until(lambda: bool(heard.results))
        other = asyncio.create_task(others())
        await heard.done()
        other.cancel()
        assert turns >= 900 // 32
        assert len(heard.results) == 1001


async def test_a_retry_date_is_a_wait_too() -> None:
    from email.utils import formatdate

    past = status(429, "", **{"Retry-After": formatdate(time.time() - 60, usegmt=True)})
    async with talking(in_turn(past, polite)) as (model, _):
        await ask(model).done()
    far = status(503, "", **{"Retry-After": formatdate(time.time() + 600, usegmt=True)})
    async with talking(in_turn(far, polite)) as (model, server):
        assert await ask(model).code() == "server_error"
        assert len(server.seen) == 1


async def test_a_prompt_that_cannot_be_sent_is_a_failure() -> None:
    async with talking(polite) as (model, server):
        assert await ask(model, messages=(Message("user", "half a character: \ud800"),)).code() == "generation_failed"
        assert not server.seen
