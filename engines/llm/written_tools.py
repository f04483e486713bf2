"""Tools for a model that only writes: described to it in its prompt, and its calls read out of what it says.

The form is the one that Hermes and Qwen models were trained on (their chat templates): the tools as JSON between
``<tools>`` and ``</tools>``, a call as ``{"name": …, "arguments": …}`` between ``<tool_call>`` and ``</tool_call>``, a
result between ``<tool_response>`` and ``</tool_response>`` in a message of the user. Other models follow the
instructions, more or less: a bare JSON object is taken for a call too, and nothing of either is ever spoken.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from streaming.jobs import Generate, Generation, GenerationDone, Message, Token, Tool, ToolCall, ToolCalled

OPEN, CLOSE = "<tool_call>", "</tool_call>"
RESULT_OPEN, RESULT_CLOSE = "<tool_response>", "</tool_response>"
BARE = "{"
"""Nobody speaks a brace: what begins with one is a call without its markers."""
MAX_CALL_CHARS = 8_192
MAX_SPACE_CHARS = 64
"""Held back at the end of a text, as it is dropped before a call."""
MAX_CALLS = 16
"""Between two markers; a session takes fewer."""
MAX_ODD_BRACES = 16
"""Tried for a call; what comes after so many is text without them. Each costs the time of reading all that follows."""
_TOLD_CHARS = 500
"""Of what could not be read, kept for the context."""

_MARKERS = (OPEN, CLOSE, RESULT_OPEN, RESULT_CLOSE, BARE)

Deliver = Callable[[Generation], None]


def written_out(request: Generate, deliver: Deliver) -> tuple[Generate, Deliver]:
    """The request without tools, for an engine that knows of none, and what its results are to be delivered to."""
    if not request.tools and not any(message.calls or message.role == "tool" for message in request.messages):
        return request, deliver
    splitter = ToolCallSplitter()
    count = 0

    def tell(pieces: list[str | WrittenCall]) -> None:
        nonlocal count
        for piece in pieces:
            if isinstance(piece, str):
                deliver(Token(request.epoch, piece))
            else:
                count += 1
                deliver(ToolCalled(request.epoch, f"call_{request.epoch}_{count}", piece.name, piece.arguments))

    def split(result: Generation) -> None:
        if isinstance(result, Token):
            tell(splitter.feed(result.text))
            return
        if isinstance(result, GenerationDone):
            tell(splitter.end())
        deliver(result)

    messages = tuple(_written_messages(request.messages, request.tools))
    return msgspec.structs.replace(request, messages=messages, tools=()), split


# --- the prompt -----------------------------------------------------------------------------------------------


def _written_messages(messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> Iterator[Message]:
    described = _describe(tools) if tools else ""
    if described and (not messages or messages[0].role != "system"):
        yield Message("system", described)
    results: list[str] = []
    for number, message in enumerate(messages):
        if message.role == "tool":
            results.append(f"{RESULT_OPEN}\n{_harmless(message.content)}\n{RESULT_CLOSE}")
        elif message.role == "user":
            yield Message("user", "\n".join([*results, _harmless(message.content)]))
            results = []
        else:
            if results:
                yield Message("user", "\n".join(results))
                results = []
            if message.role == "system":
                content = f"{message.content}\n\n{described}" if described and number == 0 else message.content
                yield Message("system", content)
            else:
                yield Message("assistant", "\n".join([message.content, *map(_write_call, message.calls)]).strip())
    if results:
        yield Message("user", "\n".join(results))


def _describe(tools: tuple[Tool, ...]) -> str:
    lines = []
    for tool in tools:
        function = {"name": tool.name, "description": tool.description, "parameters": msgspec.Raw(_raw(tool))}
        lines.append(msgspec.json.encode({"type": "function", "function": function}).decode())
    return (
        "# Tools\n\nYou can call these functions:\n<tools>\n" + "\n".join(lines) + "\n</tools>\n\n"
        "To call one, write this after the words that the caller shall hear, with the function's name and its "
        "arguments:\n"
        f'{OPEN}\n{{"name": "...", "arguments": {{}}}}\n{CLOSE}'
    )


def _raw(tool: Tool) -> bytes:
    return tool.parameters.encode()


def _write_call(call: ToolCall) -> str:
    try:
        body = json.dumps({"name": call.name, "arguments": json.loads(call.arguments or "{}")}, ensure_ascii=False)
    except (ValueError, RecursionError):
        body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"{OPEN}\n{body}\n{CLOSE}"


def _harmless(text: str) -> str:
    """A caller's words are neither a call nor a result."""
    return text.replace("<tool_", "< tool_").replace("</tool_", "< /tool_")


# --- the splitter ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """One call. ``name`` is empty for what could not be read; ``arguments`` are then what was written."""

    name: str
    arguments: str


class _State(enum.Enum):
    TEXT = enum.auto()
    CALL = enum.auto()
    BARE = enum.auto()
    TOO_LONG = enum.auto()
    """Of a call: the rest is passed over up to its end."""
    MUTED = enum.auto()
    """The model goes on to invent the result, and what came of it: nothing more is taken."""


class ToolCallSplitter:
    """Text in, in any pieces; text to be spoken and calls out, in order. The same for every way of cutting it."""

    def __init__(self) -> None:
        self._state = _State.TEXT
        self._held = ""
        self._odd_braces = 0

    def feed(self, text: str) -> list[str | WrittenCall]:
        """What is certain by now. Holds back at most white space and a marker's beginning, or a call of
        :data:`MAX_CALL_CHARS`."""
        self._held += text
        return _joined(self._advance(ended=False))

    def end(self) -> list[str | WrittenCall]:
        """Nothing follows. A call that was not closed is read as far as it goes."""
        return _joined(self._advance(ended=True))

    def _advance(self, *, ended: bool) -> Iterator[str | WrittenCall]:
        """Steps until one needs more than there is."""
        while True:
            before = (self._state, self._held)
            match self._state:
                case _State.TEXT:
                    yield from self._text(ended=ended)
                case _State.CALL:
                    yield from self._call(ended=ended)
                case _State.BARE:
                    yield from self._bare(ended=ended)
                case _State.TOO_LONG:
                    self._pass_over()
                case _:
                    self._held = ""
            if (self._state, self._held) == before:
                return

    def _text(self, *, ended: bool) -> Iterator[str]:
        found = min(((at, marker) for marker in _MARKERS if (at := self._held.find(marker)) >= 0), default=None)
        if found is None:
            kept = _begun(self._held)
            if ended:  # a marker that was cut off is not spoken; "<" alone is none
                kept = kept if kept > 1 else 0
            begun, body = self._held[len(self._held) - kept :], self._held[: len(self._held) - kept]
            text = body.rstrip()
            self._held = "" if ended else body[len(text) :][:MAX_SPACE_CHARS] + begun
            if text:
                yield text
            return
        at, marker = found
        text, rest = self._held[:at].rstrip(), self._held[at + len(marker) :]
        if text:
            yield text
        if marker == BARE:  # with the space before it, should it be none
            self._state, self._held = _State.BARE, self._held[len(text) : at][:MAX_SPACE_CHARS] + BARE + rest
            return
        self._held = rest
        if marker == OPEN:
            self._state = _State.CALL
        elif marker == RESULT_OPEN:
            self._state = _State.MUTED

    def _call(self, *, ended: bool) -> Iterator[WrittenCall]:
        ends = [at for marker in (CLOSE, OPEN) if 0 <= (at := self._held.find(marker)) <= MAX_CALL_CHARS]
        if ends:  # a call that begins inside of another ends it
            at = min(ends)
            body, self._held = self._held[:at], self._held[at:].removeprefix(CLOSE)
            self._state = _State.TEXT
            yield from _read_calls(body)
        elif len(self._held) > MAX_CALL_CHARS + len(CLOSE):
            self._state = _State.TOO_LONG
            yield WrittenCall("", self._held[:_TOLD_CHARS])
        elif ended:
            body, self._held = self._held, ""
            self._state = _State.TEXT
            yield from _read_calls(body)

    def _bare(self, *, ended: bool) -> Iterator[str | WrittenCall]:
        """An object without markers ends where its JSON does: that is known once all is there."""
        if not ended and len(self._held) <= MAX_CALL_CHARS:
            return
        held, at = self._held[:MAX_CALL_CHARS], self._held.index(BARE)
        try:
            value, end = json.JSONDecoder().raw_decode(held, at)
        except (ValueError, RecursionError):
            if '"name"' in held:
                self._state, self._held = _State.MUTED, ""
                yield WrittenCall("", held[at : at + _TOLD_CHARS])
            else:  # no call at all
                self._odd_braces += 1
                odd = 1 if self._odd_braces < MAX_ODD_BRACES else -1
                rest = held[at:].replace(BARE, "", odd) + self._held[len(held) :]
                self._state, self._held = _State.TEXT, held[:at] + rest
            return
        self._state, self._held = _State.TEXT, self._held[end:]
        if isinstance(value, dict) and ("name" in value or "function" in value):
            yield _call_of(value, held[at:end])

    def _pass_over(self) -> None:
        at = self._held.find(CLOSE)
        if at >= 0:
            self._state, self._held = _State.TEXT, self._held[at + len(CLOSE) :]
        else:
            self._held = self._held[-(len(CLOSE) - 1) :]


def _begun(text: str) -> int:
    """How many characters at its end may become a marker."""
    longest = min(len(text), max(map(len, _MARKERS)) - 1)
    for size in range(longest, 0, -1):
        if any(marker.startswith(text[-size:]) for marker in _MARKERS):
            return size
    return 0


def _joined(pieces: Iterator[str | WrittenCall]) -> list[str | WrittenCall]:
    joined: list[str | WrittenCall] = []
    for piece in pieces:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


def _read_calls(body: str) -> list[WrittenCall]:
    """What is between two markers: an object, or a list of them; some models put it into a code fence."""
    text = body.strip()
    if text.startswith("```"):
        text = text.strip("`").removeprefix("json").strip()
    calls: list[WrittenCall] = []
    at = 0
    while (
        at < len(text) and len(calls) < MAX_CALLS and (not calls or text[at] == "{")
    ):  # what follows an object and is none is passed over
        try:
            value, end = json.JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError):
            return [*calls, WrittenCall("", text[at : at + _TOLD_CHARS])]
        called = value if isinstance(value, list) and value else [value]
        calls += [_call_of(one, text[at:end]) for one in called[:MAX_CALLS]]
        at = _past_space(text, end)
    return calls or [WrittenCall("", "")]


def _past_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _call_of(value: Any, text: str) -> WrittenCall:
    called = value.get("function", value) if isinstance(value, dict) else None
    if isinstance(called, dict):
        name = called.get("name")
        arguments = called.get("arguments", called.get("parameters"))
        if isinstance(name, str) and name:
            try:
                written = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
            except RecursionError:
                return WrittenCall("", text[:_TOLD_CHARS])
            return WrittenCall(name, written)
    return WrittenCall("", text[:_TOLD_CHARS])
