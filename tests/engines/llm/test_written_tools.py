"""Tools of a model that only writes: nothing of a call is spoken, however the text is cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.llm.written_tools import MAX_CALL_CHARS, ToolCallSplitter, WrittenCall, written_out
from streaming.jobs import (
    Generate,
    Generation,
    GenerationDone,
    GenerationFailed,
    Message,
    Priority,
    Token,
    Tool,
    ToolCall,
    ToolCalled,
    Usage,
)

HANG_UP = '<tool_call>{"name": "end_call", "arguments": {}}</tool_call>'
END = WrittenCall("end_call", "{}")
END_CALL = Tool("end_call", "Hang up.", '{"type":"object","properties":{}}')

Piece = str | WrittenCall


def split(*pieces: str) -> list[Piece]:
    """All that comes of the pieces, neighbouring text joined."""
    splitter = ToolCallSplitter()
    found: list[Piece] = []
    for piece in (*itertools.chain.from_iterable(map(splitter.feed, pieces)), *splitter.end()):
        if isinstance(piece, str) and found and isinstance(found[-1], str):
            found[-1] += piece
        else:
            found.append(piece)
    return found


CASES: list[tuple[str, list[Piece]]] = [
    ("Hello there.", ["Hello there."]),
    ("", []),
    (" Hello.\n\n", [" Hello."]),
    (f"Goodbye! {HANG_UP}", ["Goodbye!", END]),
    (f"{HANG_UP}\nGoodbye!", [END, "\nGoodbye!"]),
    (f"One {HANG_UP} two {HANG_UP} three", ["One", END, " two", END, " three"]),
    ('<tool_call>\n{"name": "end_call"}\n</tool_call>', [END]),
    ('<tool_call>{"name": "hold", "parameters": {"seconds": 5}}</tool_call>', [WrittenCall("hold", '{"seconds": 5}')]),
    ('<tool_call>{"function": {"name": "end_call", "arguments": "{}"}}</tool_call>', [END]),
    ('<tool_call>{"name": "end_call", "arguments": null}</tool_call>', [END]),
    ('<tool_call>```json\n{"name": "end_call"}\n```</tool_call>', [END]),
    ('<tool_call>[{"name": "end_call"}, {"name": "hold"}]</tool_call>', [END, WrittenCall("hold", "{}")]),
    ('<tool_call>{"name": "end_call"}\n{"name": "hold"}</tool_call>', [END, WrittenCall("hold", "{}")]),
    ('<tool_call>{"name": "end_call"} and so on</tool_call>', [END]),
    # what a model forgets
    ('Bye. <tool_call>{"name": "end_call", "arguments": {}}', ["Bye.", END]),
    ('Bye. <tool_call>{"name": "end_call"}</tool_ca', ["Bye.", END]),
    ('<tool_call>{"name": "end_call"}<tool_call>{"name": "hold"}</tool_call>', [END, WrittenCall("hold", "{}")]),
    (f"{HANG_UP}</tool_call> Bye", [END, " Bye"]),
    ("Bye</tool_call>.", ["Bye."]),
    ('{"name": "end_call", "arguments": {}}', [END]),
    ('Bye! {"name": "end_call"} Have a nice day.', ["Bye!", END, " Have a nice day."]),
    ('{"function": {"name": "end_call"}}', [END]),
    # what is no call
    ("<tool_call>end it</tool_call>Bye", [WrittenCall("", "end it"), "Bye"]),
    ("<tool_call>[]</tool_call>", [WrittenCall("", "[]")]),
    ("<tool_call></tool_call>", [WrittenCall("", "")]),
    ("<tool_call>7</tool_call>", [WrittenCall("", "7")]),
    ('<tool_call>{"name": 7}</tool_call>', [WrittenCall("", '{"name": 7}')]),
    ('<tool_call>{"name": "end_call"} {"name":</tool_call>', [END, WrittenCall("", '{"name":')]),
    ("Bye. <tool_call>", ["Bye.", WrittenCall("", "")]),
    ('{"name": "end_', [WrittenCall("", '{"name": "end_')]),
    ('Wait {"seconds": 5} more', ["Wait more"]),
    ("Dear {customer}, hello {", ["Dear customer}, hello"]),
    ("1 < 2 and 3 <", ["1 < 2 and 3 <"]),
    ("It is <tool_", ["It is"]),
    ("It is <tools>", ["It is <tools>"]),
    # what a model invents
    (f'{HANG_UP}<tool_response>{{"status": "done"}}</tool_response>I have hung up. {HANG_UP}', [END]),
]


@pytest.mark.parametrize(("text", "found"), CASES)
def test_what_is_said_and_what_is_called(text: str, found: list[Piece]) -> None:
    assert split(text) == found
    assert split(*text) == found
    for at in range(len(text) + 1):
        assert split(text[:at], text[at:]) == found, f"cut at {at}"


@given(
    st.lists(st.sampled_from([text for text, _ in CASES] + ["x" * 300, "{", "<", "</", "\n"]), max_size=4), st.data()
)
def test_however_the_text_is_cut_the_same_comes_of_it(texts: list[str], data: st.DataObject) -> None:
    text = "".join(texts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    assert split(*pieces) == split(text)


@given(st.text(alphabet='<>/_{}"tolcares: ', max_size=60))
def test_no_marker_is_ever_spoken(text: str) -> None:
    said = "".join(piece for piece in split(text) if isinstance(piece, str))
    assert "<tool_call>" not in said.replace("</tool_call>", "") or "<tool_call>" not in text
    assert "{" not in "".join(piece for piece in split("{" + text) if isinstance(piece, str))


@pytest.mark.parametrize("end", ["</tool_response>", "Fine.</tool_response>", "</tool_call></tool_response> Fine."])
def test_an_end_without_a_beginning_is_not_spoken(end: str) -> None:
    assert "".join(str(piece) for piece in split(end)).strip() in ("", "Fine.")


@pytest.mark.parametrize(
    "text", ["{" * 16_000, '{"a":' * 3_200, '{"{":"' + "{" * 8_000 + '"}', '{"\\"{' * 3_000, "[" + '{"a":[' * 2_000]
)
def test_braces_without_end_are_tried_a_few_times_only(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller can make a model say what is dear to read."""
    tried = 0
    real = json.JSONDecoder.raw_decode

    def raw_decode(self: json.JSONDecoder, s: str, idx: int = 0) -> tuple[object, int]:
        nonlocal tried
        tried += 1
        return real(self, s, idx)

    monkeypatch.setattr(json.JSONDecoder, "raw_decode", raw_decode)
    pieces = split(text)
    assert tried <= 40
    assert "{" not in "".join(str(piece) for piece in pieces if isinstance(piece, str))
    assert split(*text) == pieces


def test_of_calls_without_end_only_so_many_are_read() -> None:
    assert len(split("<tool_call>" + HANG_UP.removeprefix("<tool_call>").removesuffix("</tool_call>") * 100)) == 16
    assert len(split("<tool_call>[" + '{"name": "end_call"},' * 100 + "{}]</tool_call>")) == 16


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("size", [MAX_CALL_CHARS - 20, MAX_CALL_CHARS + 40, 3 * MAX_CALL_CHARS])
def test_an_endless_call_is_bounded_and_not_spoken(size: int, closed: bool) -> None:
    body = json.dumps({"name": "end_call", "arguments": {"x": "y" * (size - 60)}})
    text = f"Well. <tool_call>{body}" + ("</tool_call> Bye." if closed else "")
    said, call, *rest = split(text)
    assert said == "Well."
    assert isinstance(call, WrittenCall)
    assert call.name == ("end_call" if size < MAX_CALL_CHARS else "")
    assert rest == ([" Bye."] if closed else [])
    splitter = ToolCallSplitter()
    for at in range(0, len(text), 7):
        splitter.feed(text[at : at + 7])
        assert len(splitter._held) <= MAX_CALL_CHARS + 32
    bare = split("{" + "z" * size)
    assert bare == ["z" * size]


def test_a_bare_call_that_is_endless_silences_the_rest() -> None:
    assert split('{"name": "end_call", "arguments": {"x": "' + "y" * 2 * MAX_CALL_CHARS) == [
        WrittenCall("", ('{"name": "end_call", "arguments": {"x": "' + "y" * 500)[:500])
    ]
    deep = "[" * 100_000
    assert split(f"<tool_call>{deep[:8_000]}</tool_call>") == [WrittenCall("", "[" * 500)]
    assert split('{"name":' + deep[:8_000])[0] == WrittenCall("", ('{"name":' + "[" * 500)[:500])


# --- the request ----------------------------------------------------------------------------------------------


def request(*messages: Message, tools: tuple[Tool, ...] = (END_CALL,)) -> Generate:
    return Generate("call", 7, messages, Priority.DECODE, 0.0, tools=tools)


def test_a_request_without_tools_is_left_alone() -> None:
    plain = request(Message("user", "hello"), tools=())
    deliver = list[Generation]().append
    assert written_out(plain, deliver) == (plain, deliver)


def test_the_tools_are_described_once_in_the_system_message() -> None:
    sent, _ = written_out(request(Message("system", "Be kind."), Message("user", "hello")), print)
    assert sent.tools == ()
    system, user = sent.messages
    assert system.content.startswith("Be kind.\n\n# Tools\n")
    (described,) = [line for line in system.content.splitlines() if '"Hang up."' in line]
    function = {"name": "end_call", "description": "Hang up.", "parameters": {"type": "object", "properties": {}}}
    assert json.loads(described) == {"type": "function", "function": function}
    assert user == Message("user", "hello")
    alone, _ = written_out(request(Message("user", "hello")), print)
    assert [message.role for message in alone.messages] == ["system", "user"]
    nothing, _ = written_out(request(), print)
    assert [message.role for message in nothing.messages] == ["system"]


def test_calls_and_results_are_written_as_models_know_them() -> None:
    talk = (
        Message("system", "Be kind."),
        Message("user", "dial one"),
        Message("assistant", "Now.", (ToolCall("a", "send_dtmf", '{"digits":"1"}'), ToolCall("b", "odd", "{oops"))),
        Message("tool", '{"status":"done"}', call_id="a"),
        Message("tool", '{"status":"failed"}', call_id="b"),
        Message("user", "and <tool_response>now</tool_response>"),
        Message("assistant", "", (ToolCall("c", "end_call", ""),)),
        Message("tool", "x", call_id="c"),
    )
    sent, _ = written_out(request(*talk, tools=()), print)
    assert [(message.role, message.content) for message in sent.messages] == [
        ("system", "Be kind."),
        ("user", "dial one"),
        (
            "assistant",
            'Now.\n<tool_call>\n{"name": "send_dtmf", "arguments": {"digits": "1"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "odd", "arguments": "{oops"}\n</tool_call>',
        ),
        (
            "user",
            '<tool_response>\n{"status":"done"}\n</tool_response>\n<tool_response>\n{"status":"failed"}\n'
            "</tool_response>\nand < tool_response>now< /tool_response>",
        ),
        ("assistant", '<tool_call>\n{"name": "end_call", "arguments": {}}\n</tool_call>'),
        ("user", "<tool_response>\nx\n</tool_response>"),
    ]
    assert all(not message.calls and not message.call_id for message in sent.messages)
    sent, _ = written_out(request(*talk[:4], Message("assistant", "Done."), tools=()), print)
    assert [message.role for message in sent.messages] == ["system", "user", "assistant", "user", "assistant"]


def test_results_are_split_as_they_come() -> None:
    got: list[Generation] = []
    _, tell = written_out(request(Message("user", "bye")), got.append)
    for text in ("Good", "bye. <tool", '_call>{"name": "end_', 'call"}</tool_call>', "<"):
        tell(Token(7, text))
    done = GenerationDone(7, "stop", Usage(1, 1, 9))
    tell(done)
    assert got == [
        Token(7, "Good"),
        Token(7, "bye."),
        ToolCalled(7, "call_7_1", "end_call", "{}"),
        Token(7, "<"),
        done,
    ]
    got.clear()
    _, tell = written_out(request(Message("user", "bye")), got.append)
    failed = GenerationFailed(7, "x", "y")
    tell(Token(7, '<tool_call>{"name"'))
    tell(failed)
    assert got == [failed], "what was not whole is not done"
