"""Tools over chat completions: what is sent, and calls out of streams as servers send them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.llm.openai_tools import MAX_ARGUMENT_CHARS, MAX_CALLS, CallAssembler, call_pieces, show_message
from engines.llm.written_tools import written_out
from engines.openai_sse import chat_piece
from streaming.jobs import Generate, GenerationDone, Message, Priority, Tool, ToolCall, ToolCalled
from tests.engines.http_server import Handler, Seen, Wire
from tests.engines.llm.chat import HELLO, USAGE, ask, in_turn, say, status, talking, words

END_CALL = Tool("end_call", "Hang up.", '{"type":"object","properties":{}}')
TRANSFER = Tool("transfer", "Hand over.", '{"type":"object","properties":{"target":{"enum":["sales"]}}}')
TOOLS = (END_CALL, TRANSFER)


def delta(*calls: dict[str, Any], finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"tool_calls": list(calls), **fields}, "finish_reason": finish}]}


def part(index: int | None, name: str | None = None, arguments: Any = None, id: str | None = None) -> dict[str, Any]:  # noqa: A002
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    call: dict[str, Any] = {"type": "function", "function": function}
    call |= {} if index is None else {"index": index}
    return call | ({} if id is None else {"id": id})


def saying(*chunks: object) -> Handler:
    async def handle(_: Seen, wire: Wire) -> None:
        await say(wire, *chunks)

    return handle


END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}

STREAMS: list[tuple[list[dict[str, Any]], list[tuple[str, str, str]]]] = [
    (  # as OpenAI sends them
        [
            delta(part(0, "end_call", "", "call_a"), role="assistant", content=None),
            delta(part(0, arguments="{")),
            delta(part(0, arguments="}")),
            END,
        ],
        [("call_a", "end_call", "{}")],
    ),
    (  # in parallel, interleaved
        [
            delta(part(0, "transfer", "", "a"), part(1, "end_call", "", "b")),
            delta(part(1, arguments="{}")),
            delta(part(0, arguments='{"target":')),
            delta(part(0, arguments='"sales"}')),
            END,
        ],
        [("a", "transfer", '{"target":"sales"}'), ("b", "end_call", "{}")],
    ),
    (  # whole in one chunk, the reason with it
        [delta(part(0, "end_call", "{}", "a"), part(1, "end_call", "{}", "b"), finish="tool_calls")],
        [("a", "end_call", "{}"), ("b", "end_call", "{}")],
    ),
    (  # all numbered 0, told by their ids
        [delta(part(0, "end_call", "{}", "a")), delta(part(0, "transfer", "{}", "b")), END],
        [("a", "end_call", "{}"), ("b", "transfer", "{}")],
    ),
    (  # no numbers, no ids
        [delta(part(None, "end_call", "{}")), delta(part(None, "end_call", "{}")), END],
        [("call_1_1", "end_call", "{}"), ("call_1_2", "end_call", "{}")],
    ),
    (  # no numbers, arguments in pieces
        [
            delta(part(None, "transfer", "", "a")),
            delta(part(None, arguments='{"target"')),
            delta(part(None, arguments=':"sales"}', id="a")),
            END,
        ],
        [("a", "transfer", '{"target":"sales"}')],
    ),
    (  # the name again with every piece, or in pieces itself
        [
            delta(part(0, "transfer", "{", "a")),
            delta(part(0, "transfer", "}", "a")),
            delta(part(1, "end_", id="b")),
            delta(part(1, "call", "{}")),
            END,
        ],
        [("a", "transfer", "{}"), ("b", "end_call", "{}")],
    ),
    (  # arguments that are no text
        [delta(part(0, "transfer", {"target": "sales"}, "a")), END],
        [("a", "transfer", '{"target": "sales"}')],
    ),
    (  # malformed in every way: told as it is, judged elsewhere
        [delta(part(0, "transfer", '{"target": ', "a")), END],
        [("a", "transfer", '{"target": ')],
    ),
    (  # no part of a call
        [
            delta({"index": 0, "function": None, "id": "a"}, {"index": "x", "function": {"name": 7}}),
            {"choices": [{"delta": {"tool_calls": "none"}}]},
            {"choices": [{"delta": {"tool_calls": [7, None]}}]},
            delta(part(0, "end_call", "{}")),
            END,
        ],
        [("a", "end_call", "{}")],
    ),
]


@pytest.mark.parametrize(("chunks", "calls"), STREAMS)
async def test_calls_are_put_together_whatever_the_server_s_way(
    chunks: list[dict[str, Any]], calls: list[tuple[str, str, str]]
) -> None:
    async with talking(saying(*words("One moment. ", finish=None), *chunks, USAGE)) as (model, _):
        heard = ask(model, tools=TOOLS)
        done = await heard.done()
        assert heard.text == "One moment. "
        found = [result for result in heard.results if isinstance(result, ToolCalled)]
        assert found == [ToolCalled(1, *call) for call in calls]
        assert isinstance(heard.results[-1], GenerationDone), "the calls come before the end"
        assert (done.reason, done.usage.prompt_tokens) == ("stop", 9)


async def test_a_reply_that_only_calls_is_a_reply() -> None:
    for end in (END, "[DONE]"):
        chunks = [delta(part(0, "end_call", "{}", "a")), *([END] if end is END else [])]
        async with talking(saying(*chunks)) as (model, _):
            heard = ask(model, tools=TOOLS)
            await heard.done()
            assert heard.results[0] == ToolCalled(1, "a", "end_call", "{}")


async def test_a_reply_in_one_piece_calls_too() -> None:
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "end_call", "arguments": "{}"}},
            {"id": "", "type": "function", "function": {"name": "end_call", "arguments": "{}"}},
        ],
    }
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    async with talking(status(200, body, **{"content-type": "application/json"})) as (model, _):
        heard = ask(model, tools=TOOLS)
        await heard.done()
        assert [result.call_id for result in heard.results if isinstance(result, ToolCalled)] == ["a", "call_1_2"]


async def test_a_connection_that_breaks_inside_a_call_calls_nothing() -> None:
    async def cut(_: Seen, wire: Wire) -> None:
        await wire.begin()
        await wire.event(delta(part(0, "end_call", "{", "a")))
        await wire.cut()

    async with talking(cut, attempts=1) as (model, _):
        heard = ask(model, tools=TOOLS)
        assert await heard.code() == "connection_lost"
        assert len(heard.results) == 1


async def test_a_cancelled_reply_calls_nothing() -> None:
    chunks = [*words("One moment. ", finish=None), delta(part(0, "end_call", "{}", "a")), END]
    async with talking(saying(*chunks)) as (model, _):
        heard = ask(model, tools=TOOLS)
        heard.on_token = lambda: model.cancel("call", 1)
        await heard.until(lambda: bool(heard.results))
        other = ask(model, epoch=2)
        await other.done()
        assert [type(result).__name__ for result in heard.results] == ["Token"]


async def test_tools_and_what_became_of_them_are_sent_as_the_api_has_them() -> None:
    talk = (
        *HELLO,
        Message(
            "assistant", "Now.", (ToolCall("a", "transfer", '{"target":"sales"}'), ToolCall("b", "odd one", "{oops"))
        ),
        Message("tool", '{"status":"failed"}', call_id="a"),
        Message("tool", '{"status":"failed"}', call_id="b"),
        Message("user", "And now?"),
        Message("assistant", "", (ToolCall("c", "end_call", ""),)),
        Message("tool", "x", call_id="c"),
    )
    async with talking(saying(*words("Sorry."))) as (model, server):
        await ask(model, tools=TOOLS, messages=talk).done()
        await ask(model, epoch=2).done()
        first, second = (json.loads(seen.body) for seen in server.seen[-2:])
    assert first["tools"][0] == {
        "type": "function",
        "function": {"name": "end_call", "description": "Hang up.", "parameters": {"type": "object", "properties": {}}},
    }
    assert "tools" not in second
    assert first["messages"][2:] == [
        {
            "role": "assistant",
            "content": "Now.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "transfer", "arguments": '{"target":"sales"}'}},
                {
                    "id": "b",
                    "type": "function",
                    "function": {"name": "odd_one", "arguments": '{"unreadable": "{oops"}'},
                },
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": '{"status":"failed"}'},
        {"role": "tool", "tool_call_id": "b", "content": '{"status":"failed"}'},
        {"role": "user", "content": "And now?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "end_call", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ]


async def test_a_server_without_tools_has_them_written_out() -> None:
    refusal = status(400, {"error": {"message": "registry.example/tiny does not support tools"}})
    written = words('Bye. <tool_call>{"name": "end', '_call"}</tool_call>')
    async with talking(in_turn(refusal, saying(*written))) as (model, server):
        heard = ask(model, tools=TOOLS)
        await heard.done()
        assert heard.text == "Bye."
        assert [result.name for result in heard.results if isinstance(result, ToolCalled)] == ["end_call"]
        again = ask(model, epoch=2, tools=TOOLS)
        await again.done()
        bodies = [json.loads(seen.body) for seen in server.seen]
    assert ["tools" in body for body in bodies] == [True, False, False], "it is asked for them once"
    assert "<tools>" in bodies[1]["messages"][0]["content"]


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, None]), st.sampled_from(["", "end_call"]), st.text(max_size=3)), max_size=80
    )
)
def test_whatever_comes_calls_are_bounded_and_nothing_raises(parts: list[tuple[int | None, str, str]]) -> None:
    calls = CallAssembler()
    for piece in call_pieces([part(index, name, text, "") for index, name, text in parts], whole=False):
        calls.feed(piece)
    assert bool(calls) is bool(parts)
    assert len(calls.calls(1)) <= MAX_CALLS
    assert len({call.call_id for call in calls.calls(1)}) == len(calls.calls(1))


def test_endless_calls_and_arguments_are_cut() -> None:
    calls = CallAssembler()
    for number in range(MAX_CALLS + 9):
        for piece in call_pieces([part(number, "end_call", "x" * 10_000, f"c{number}")] * 2, whole=False):
            calls.feed(piece)
    found = calls.calls(1)
    assert len(found) == MAX_CALLS
    assert {len(call.arguments) for call in found} == {MAX_ARGUMENT_CHARS}
    assert chat_piece(b'{"choices": [{"delta": 7}]}').calls == ()
    nameless = show_message(Message("assistant", "", (ToolCall("a", "", "[]"),)))["tool_calls"][0]["function"]
    assert nameless == {"name": "unreadable", "arguments": '{"unreadable": "[]"}'}
    assert show_message(Message("user", "x")) == {"role": "user", "content": "x"}


@pytest.mark.parametrize("arguments", ["[" * 4_000, '{"a":' * 3_000, '{"a":' * 800 + "1" + "}" * 800])
def test_what_is_nested_without_end_refuses_no_later_request(arguments: str) -> None:
    """It stays in the conversation: every request after it is made of it, too."""
    message = Message("assistant", "Bye.", calls=(ToolCall("c", "end_call", arguments),))
    json.dumps(show_message(message))
    request = Generate("call", 1, (message,), Priority.DECODE, 0.0, 100, 0.0)
    written, _ = written_out(request, lambda _: None)
    assert "end_call" in written.messages[0].content


def test_half_an_emoji_is_mended_or_replaced() -> None:
    assembler = CallAssembler()
    for piece in ('{"x":"\ud83d', "\ude00", '\ud83d"}'):
        assembler.feed(call_pieces([part(0, "end_call", piece, id="\udcff")], whole=False)[0])
    (call,) = assembler.calls(1)
    assert call.arguments == '{"x":"\U0001f600\ufffd"}'
    msgspec.json.encode(call)
