"""Server-sent events (WHATWG HTML, 9.2.6) and the chat completion chunks inside them, from bytes, without IO."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engines.llm.openai_tools import CallPiece, call_pieces
from engines.openai_errors import ApiError, api_error
from engines.openai_http import parse_json
from streaming.jobs import Usage

MAX_LINE_BYTES = 128 * 1024
"""A chunk of a few tokens is under 1 KiB; parsing this much takes about 1 ms."""


class EventReader:
    """Bytes as they come to the ``data`` of whole events. Comments, ids and event names are passed over."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._after_cr = False

    def feed(self, block: bytes) -> Iterator[bytes]:
        """Raises :class:`ApiError` ``bad_response`` for a line, or an event, beyond :data:`MAX_LINE_BYTES`."""
        if self._after_cr and block.startswith(b"\n"):
            block = block[1:]
        if block:
            self._after_cr = block.endswith(b"\r")
        *lines, rest = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            self._grow(line)
            whole = bytes(self._line)
            self._line.clear()
            yield from self._take(whole)
        self._grow(rest)

    def end(self) -> Iterator[bytes]:
        """What a server left without its blank line."""
        yield from self._take(bytes(self._line))
        self._line.clear()
        yield from self._take(b"")

    def _grow(self, part: bytes) -> None:
        self._line += part
        if len(self._line) + self._data_bytes > MAX_LINE_BYTES:
            raise ApiError("bad_response", "the server sent an endless line")

    def _take(self, line: bytes) -> Iterator[bytes]:
        if not line:
            if self._data:
                data, self._data, self._data_bytes = self._data, [], 0
                yield b"\n".join(data)
            return
        name, _, value = line.partition(b":")
        # "error" is no field of the standard: some servers put their error object there.
        if name == b"data" or (name == b"error" and value):
            value = value.removeprefix(b" ")
            self._data.append(value if name == b"data" else b'{"error":' + value + b"}")
            self._data_bytes += len(value)


@dataclass(frozen=True, slots=True)
class ChatPiece:
    """What one chunk says: more text, of the tools called, why the reply ended, what it cost; each may be missing."""

    text: str = ""
    finish: str | None = None
    usage: Usage | None = None
    calls: tuple[CallPiece, ...] = ()


def chat_piece(data: bytes) -> ChatPiece:
    """One ``chat.completion.chunk``, or a whole ``chat.completion``. What a model thinks aside is left out.

    Raises:
        ApiError: the chunk is an error, or is none at all (``bad_response``).
    """
    chunk = parse_json(data)
    if not isinstance(chunk, dict):
        raise ApiError("bad_response", "a chunk is no object")
    if chunk.get("error"):
        error = chunk["error"]
        code = error.get("code") if isinstance(error, dict) else None
        raise api_error(code if isinstance(code, int) and 400 <= code < 600 else 500, chunk)
    choices = chunk.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    if not isinstance(choice, dict):
        raise ApiError("bad_response", "a choice is no object")
    delta = choice.get("delta") or choice.get("message") or {}
    text = (delta.get("content") or delta.get("refusal")) if isinstance(delta, dict) else None
    finish = choice.get("finish_reason")
    calls = call_pieces(delta.get("tool_calls"), whole=not choice.get("delta")) if isinstance(delta, dict) else ()
    return ChatPiece(
        text if isinstance(text, str) else "",
        finish if isinstance(finish, str) else None,
        _usage(chunk.get("usage")),
        calls,
    )


class WholeCharacters:
    """Joins surrogate pairs that a server cut in two: a JSON string may end with half an emoji."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        text = self._held + text
        self._held = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._held = text[:-1], text[-1]
        if text.isascii():
            return text
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _usage(found: object) -> Usage | None:
    if not isinstance(found, dict):
        return None
    prompt = _count(found, "prompt_tokens")
    details = found.get("prompt_tokens_details")
    cached = _count(details, "cached_tokens") if isinstance(details, dict) else 0
    return Usage(prompt, max(0, prompt - cached), _count(found, "completion_tokens"))


def _count(found: dict[str, Any], name: str) -> int:
    value = found.get(name)
    return value if isinstance(value, int) and value >= 0 else 0
