"""Tools in chat completions: what is sent of them, and calls put together from a stream's pieces.

Source: OpenAI's API reference, "Create chat completion" (``tools``, ``tool_calls``, role ``tool``).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from streaming.jobs import Message, Tool, ToolCall, ToolCalled

_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]")
MAX_CALLS = 16
MAX_ARGUMENT_CHARS = 16_384


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of one call, each of which may be missing."""

    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""


def show_message(message: Message) -> dict[str, Any]:
    """As the API takes it."""
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.content}
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        shown["content"] = message.content or None
        shown["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": _name(call), "arguments": _sent(call.arguments)}}
            for call in message.calls
        ]
    return shown


def show_tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.parameters)}
    return {"type": "function", "function": function}


def call_pieces(found: object, *, whole: bool) -> tuple[CallPiece, ...]:
    """The ``tool_calls`` of a chunk's delta, or of a ``whole`` message. What is no part of a call is passed over."""
    if not isinstance(found, list):
        return ()
    pieces = []
    for number, piece in enumerate(found[: 2 * MAX_CALLS]):
        if not isinstance(piece, dict):
            continue
        function = piece.get("function")
        function = function if isinstance(function, dict) else {}
        index, arguments = number if whole else piece.get("index"), function.get("arguments")
        pieces.append(
            CallPiece(
                index if isinstance(index, int) else None,
                _text(piece.get("id")),
                _text(function.get("name")),
                _written(arguments) if isinstance(arguments, dict) else _text(arguments),
            )
        )
    return tuple(pieces)


@dataclass(slots=True)
class _Call:
    index: int | None
    id: str = ""
    name: str = ""
    arguments: str = ""


class CallAssembler:
    """Pieces in, whole calls out at the end. Bounded: what is too much is left out, and the call is then no JSON."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def __bool__(self) -> bool:
        return bool(self._calls)

    def feed(self, piece: CallPiece) -> None:
        call = self._call_of(piece)
        if call is None:
            return
        call.id = call.id or piece.id
        if piece.name != call.name:  # some servers say it again with every piece
            call.name = (call.name + piece.name)[:256]
        call.arguments = (call.arguments + piece.arguments)[:MAX_ARGUMENT_CHARS]

    def calls(self, epoch: int) -> list[ToolCalled]:
        """Every call, in the order in which they began."""
        return [
            ToolCalled(epoch, _whole(call.id) or f"call_{epoch}_{number}", _whole(call.name), _whole(call.arguments))
            for number, call in enumerate(self._calls, start=1)
        ]

    def _call_of(self, piece: CallPiece) -> _Call | None:
        """The call that a piece is of. Servers differ: one numbers all its calls 0 and tells them by their ids, another
        gives no numbers; a piece with neither goes on with the last."""
        for call in reversed(self._calls):
            same = piece.index is None or call.index == piece.index
            known = bool(piece.id) and piece.id == call.id
            begins = bool(piece.id and call.id) or (piece.index is None and bool(piece.name and call.arguments))
            if same and (known or not begins):
                return call
        if len(self._calls) >= MAX_CALLS:
            return None
        self._calls.append(_Call(piece.index))
        return self._calls[-1]


def _name(call: ToolCall) -> str:
    """Of any function there could be: a server may refuse others, and with them the whole conversation."""
    return _NO_NAME.sub("_", call.name)[:64] or "unreadable"


def _sent(arguments: str) -> str:
    """Servers parse them: what is no object would be refused, with the whole conversation."""
    try:
        valid = isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        valid = False
    return arguments if valid else json.dumps({"unreadable": arguments[:200]} if arguments else {})


def _written(arguments: dict[str, Any]) -> str:
    try:
        return json.dumps(arguments)
    except RecursionError:  # no JSON, then, and refused
        return ""


def _whole(text: str) -> str:
    """A server may cut a surrogate pair in two: joined here; half of one cannot be sent on."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
