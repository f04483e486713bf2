"""The chat engine against real sockets: replies, their ends, and the forms that servers want."""

from __future__ import annotations

import asyncio

import pytest

from engines.llm.openai_compatible import OpenAiLanguageModel
from streaming.jobs import GenerationDone, Message, Token, Usage
from tests.engines.http_server import Seen, Wire, serving
from tests.engines.llm.chat import HELLO, USAGE, ask, in_turn, polite, say, silent, status, talking, words
from tests.loop_turns import others


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


async def test_done_ends_a_reply_too() -> None:
    """Some servers give no reason for the end. Only what was said can end: nothing said is a stream that broke off."""
    async with talking(lambda _, wire: say(wire, *words("Good ", "day.", finish=None))) as (model, _):
        heard = ask(model)
        assert (await heard.done()).reason == "stop"
        assert heard.text == "Good day."
    async with talking(lambda _, wire: say(wire, {"choices": []})) as (model, _):
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
        model = OpenAiLanguageModel(base_url=server.url, warm_s=0.0)
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
        heard = ask(model, max_tokens=4000)
        await heard.until(lambda: bool(heard.results))
        async with others() as other:
            await heard.done()
        assert other.turns >= 900 // 32
        assert len(heard.results) == 1001


async def test_a_prompt_that_cannot_be_sent_is_a_failure() -> None:
    async with talking(polite) as (model, server):
        assert await ask(model, messages=(Message("user", "half a character: \ud800"),)).code() == "generation_failed"
        assert not server.seen
