from __future__ import annotations

import asyncio

import msgspec
import pytest

from engines.api import EngineError
from engines.llm.scripted import MAX_SAID_CHARS, ScriptedLlm, echo
from streaming.audio.code_words import code_word
from streaming.jobs import (
    Generate,
    Generation,
    GenerationDone,
    GenerationFailed,
    Message,
    Priority,
    Token,
    Tool,
    ToolCalled,
    Usage,
)
from tests.virtual_time import virtual


def request(epoch: int = 1, *, call: str = "a", said: str = "two eggs please.", max_tokens: int = 256) -> Generate:
    messages = (Message("system", "be kind"), Message("user", said))
    return Generate(call, epoch, messages, Priority.DECODE, 0.0, max_tokens)


class Told:
    def __init__(self) -> None:
        self.got: list[Generation] = []
        self.at_s: list[float] = []

    def __call__(self, generation: Generation) -> None:
        self.got.append(generation)
        self.at_s.append(asyncio.get_running_loop().time())

    @property
    def text(self) -> str:
        return "".join(item.text for item in self.got if isinstance(item, Token))


@virtual
async def test_it_echoes_word_by_word_at_exact_times() -> None:
    llm = ScriptedLlm(first_token_delay_s=0.5, token_delay_s=0.1)
    told = Told()
    start_s = asyncio.get_running_loop().time()
    llm.generate(request(), told)
    await asyncio.sleep(5)
    assert told.text == "You said: two eggs please."
    assert told.got[-1] == GenerationDone(1, "stop", Usage(5, 5, 5))
    assert [round(at_s - start_s, 6) for at_s in told.at_s] == [0.5, 0.6, 0.7, 0.8, 0.9, 0.9]
    assert llm.running == 0


@virtual
async def test_max_tokens_ends_it_by_length() -> None:
    llm = ScriptedLlm(lambda _: "one two three")
    told = Told()
    llm.generate(request(max_tokens=2), told)
    await asyncio.sleep(1)
    assert told.text == "one two "
    assert told.got[-1] == GenerationDone(1, "length", Usage(5, 5, 2))


@virtual
async def test_nothing_comes_after_cancel_or_forget() -> None:
    llm = ScriptedLlm(token_delay_s=0.1)
    first, second, other = Told(), Told(), Told()
    llm.generate(request(1), first)
    llm.generate(request(2), second)
    llm.generate(request(1, call="b"), other)
    await asyncio.sleep(0.15)
    llm.cancel("a", 1)
    llm.prioritize("a", 2)
    llm.forget("a")
    llm.cancel("a", 7)
    await asyncio.sleep(5)
    assert len(first.got) == len(second.got) == 2
    assert isinstance(other.got[-1], GenerationDone)
    assert (llm.cancelled, llm.prioritized, llm.forgotten) == ([("a", 1), ("a", 7)], [("a", 2)], ["a"])


@virtual
async def test_a_cancel_inside_the_delivery_of_a_token_stops_it() -> None:
    llm = ScriptedLlm()
    told: list[Generation] = []

    def deliver(generation: Generation) -> None:
        told.append(generation)
        llm.cancel("a", 1)

    llm.generate(request(), deliver)
    await asyncio.sleep(1)
    assert len(told) == 1


@virtual
async def test_faults() -> None:
    outcomes = {}
    for fault in ("fail_first", "fail_midway", "stall_first", "stall_midway", "ignore_cancel"):
        llm = ScriptedLlm(lambda _: "a b c d", token_delay_s=0.1, fault=fault)
        told = Told()
        llm.generate(request(), told)
        await asyncio.sleep(0.01)
        if fault == "ignore_cancel":
            llm.cancel("a", 1)
        await asyncio.sleep(5)
        outcomes[fault] = (told.text, type(told.got[-1]) if told.got else None)
        await llm.close()
        assert llm.running == 0
    assert outcomes == {
        "fail_first": ("", GenerationFailed),
        "fail_midway": ("a b ", GenerationFailed),
        "stall_first": ("", None),
        "stall_midway": ("a b ", Token),
        "ignore_cancel": ("a b c d", GenerationDone),
    }


@virtual
async def test_it_starts_unless_told_not_to() -> None:
    await ScriptedLlm().start()
    with pytest.raises(EngineError):
        await ScriptedLlm(start_fails=True).start()


TOOLS = tuple(
    Tool(name, "", '{"properties": {"target": {"enum": ["sales", "night desk"]}}}')
    for name in ("end_call", "transfer", "send_dtmf", "hold")
)


@pytest.mark.parametrize(
    ("said", "name", "arguments"),
    [
        ("please hang up", "end_call", "{}"),
        ("Goodbye!", "end_call", "{}"),
        ("transfer me to the night desk", "transfer", '{"target": "night desk"}'),
        ("press 12# now", "send_dtmf", '{"digits": "12# "}'),
        ("hold for 5 seconds", "hold", '{"seconds": 5}'),
        ("(keypad: * 0)", "end_call", "{}"),
        ("(keypad: * 1)", "transfer", '{"target": "sales"}'),
        ("(keypad: * 2 4 7)", "send_dtmf", '{"digits": "47"}'),
        ("hello (keypad: 5) (keypad: *3)", "hold", '{"seconds": 2}'),
        ("(keypad: 4 7)", "", ""),
        ("two eggs please", "", ""),
    ],
)
@virtual
async def test_it_calls_a_tool_when_the_caller_asks_for_it(said: str, name: str, arguments: str) -> None:
    llm = ScriptedLlm()
    told, untold = Told(), Told()
    asked = msgspec.structs.replace(request(said=said), tools=TOOLS)
    llm.generate(asked, told)
    llm.generate(request(2, said=said), untold)
    result = msgspec.structs.replace(
        asked, epoch=3, messages=(*asked.messages, Message("tool", '{"status":"failed","error":"busy"}'))
    )
    after = Told()
    llm.generate(result, after)
    await asyncio.sleep(1)
    assert told.text.startswith("You said: ")
    calls = [item for item in told.got if isinstance(item, ToolCalled)]
    assert [(call.name, call.arguments) for call in calls] == ([(name, arguments)] if name else [])
    assert not any(isinstance(item, ToolCalled) for item in (*untold.got, *after.got)), "only of tools that it has"
    assert after.text == "The result is status failed error busy."


@virtual
async def test_it_calls_what_its_script_writes_out() -> None:
    llm = ScriptedLlm(lambda _: 'Bye. <tool_call>{"name": "end_call"}</tool_call> Bye.', token_delay_s=0.1)
    told = Told()
    llm.generate(request(), told)
    await asyncio.sleep(5)
    assert [type(item).__name__ for item in told.got] == ["Token", "ToolCalled", "Token", "Token", "GenerationDone"]


def test_a_code_word_is_said_back_without_the_callers_words_around_it() -> None:
    word = code_word(7)
    said = (Message("user", f"My code word is {word.capitalize()}."),)
    assert echo(said) == f"I heard {word.capitalize()}."


def test_of_a_long_text_only_the_beginning_is_said_back() -> None:
    assert echo([Message("user", "a" * 64_000)]) == f"You said: {'a' * MAX_SAID_CHARS}."


def test_who_asks_for_more_is_told_more_with_its_word_at_both_ends() -> None:
    word = code_word(7)
    told = echo((Message("user", f"my code word is {word}, tell me more"),))
    assert told.startswith(f"I heard {word}. ")
    assert told.endswith(f"That was all, {word}.")
    assert 45 <= len(told.split()) <= 64, "a word is a token, and the built-in agent is cut off at 64 of them"
    nobody = echo((Message("user", "Tell me more."),))
    assert nobody.startswith("You said: Tell me more. ")
    assert nobody.endswith("That was all, caller.")


@virtual
async def test_without_records_nothing_is_kept() -> None:
    llm = ScriptedLlm(records=False)
    llm.generate(request(), Told())
    await asyncio.sleep(1)
    llm.prioritize("a", 1)
    llm.postpone("a", 1, 2.0)
    llm.cancel("a", 1)
    llm.forget("a")
    kept = (llm.requests, llm.prioritized, llm.postponed, llm.cancelled, llm.forgotten)
    assert [list(record) for record in kept] == [[]] * 5
