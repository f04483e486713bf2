"""The chat engine against servers that refuse, break off, send nonsense or nothing."""

from __future__ import annotations

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from streaming.jobs import GenerationFailed
from tests.engines.http_server import Handler, Seen, Wire
from tests.engines.llm.chat import ask, in_turn, polite, say, silent, status, talking, words


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
        (status(404, {"error": {"code": "model_not_found"}}), "no_model", 1),
        (status(400, {"error": {"message": "x/y is not a valid model ID"}}), "no_model", 1),
        (status(400, {"error": {"message": "no such tool"}}), "bad_request", 2),  # the second without usage
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


async def test_a_retry_date_is_a_wait_too() -> None:
    from email.utils import formatdate

    past = status(429, "", **{"Retry-After": formatdate(time.time() - 60, usegmt=True)})
    async with talking(in_turn(past, polite)) as (model, _):
        await ask(model).done()
    far = status(503, "", **{"Retry-After": formatdate(time.time() + 600, usegmt=True)})
    async with talking(in_turn(far, polite)) as (model, server):
        assert await ask(model).code() == "server_error"
        assert len(server.seen) == 1
