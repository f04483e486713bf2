"""The message list of a call: the one truth of what was said and heard.

Items carry the ids and shapes of the Realtime API's ``conversation.item``. An assistant item holds only what the
caller heard, once it is known; :meth:`Conversation.messages` is the prompt made of it.
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from streaming.jobs import Message, ToolCall

MAX_ITEMS = 1_000
"""Items kept in one call. Beyond it the oldest that is not a system message goes."""

MAX_ITEM_CHARS = 64_000
MAX_CHARS = 256_000
"""Text of all items together; beyond it, too, the oldest go: more than any model here reads."""

KEYPAD = "keypad"

NO_RESULT = '{"status":"unknown"}'
"""What the model is told of a call whose result was deleted, or is not there yet."""

Role = Literal["system", "user", "assistant"]
ROOT = "root"
"""``previous_item_id`` that means: before everything."""


class PartKind(enum.Enum):
    """The ``type`` of a content part."""

    INPUT_TEXT = "input_text"
    INPUT_AUDIO = "input_audio"
    OUTPUT_TEXT = "output_text"
    OUTPUT_AUDIO = "output_audio"
    FUNCTION_CALL = "function_call"
    """No part but an item of its own: a tool called by the agent; ``text`` is the arguments."""
    FUNCTION_CALL_OUTPUT = "function_call_output"
    """As well: what became of it."""


class Item(msgspec.Struct, frozen=True):
    """One message. ``text`` is the text of a text part or the transcript of an audio part; None while unknown.

    ``cut`` says that the caller interrupted, and that ``text`` ends where the caller stopped hearing.
    """

    id: str
    role: Role
    kind: PartKind
    text: str | None
    status: Literal["in_progress", "completed", "incomplete"] = "completed"
    cut: bool = False
    call_id: str = ""
    """Of a tool's call, and of its result."""
    name: str = ""
    """Of the tool; :data:`KEYPAD` for keys that the caller pressed."""

    @property
    def spoken(self) -> bool:
        """Whether it is a message: what somebody said or wrote."""
        return self.kind not in (PartKind.FUNCTION_CALL, PartKind.FUNCTION_CALL_OUTPUT)


class ItemError(Exception):
    """An item command that can't be done; ``code`` and ``param`` go to the client."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class Conversation:
    """An ordered list of items, bounded, ids unique."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self.dropped = 0
        """Items that went because of :data:`MAX_ITEMS` or :data:`MAX_CHARS`."""

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item_id: str) -> bool:
        return any(item.id == item_id for item in self._items)

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(self._items)

    @property
    def last_id(self) -> str | None:
        return self._items[-1].id if self._items else None

    def get(self, item_id: str) -> Item:
        """The item. Raises :class:`ItemError` with ``item_not_found``."""
        return self._items[self._index(item_id)]

    def add(self, item: Item, after: str | None = None) -> str | None:
        """Insert after the item of that id, at the front for ``"root"``, at the end for None.

        Returns the id of the item before it. Raises :class:`ItemError`: ``item_already_exists``, ``item_not_found``,
        ``item_too_long``.
        """
        if item.id in self:
            raise ItemError("item_already_exists", "an item with this id already exists", "item.id")
        if item.text is not None and len(item.text) > MAX_ITEM_CHARS:
            raise ItemError("item_too_long", f"an item holds at most {MAX_ITEM_CHARS} characters", "item.content")
        if after is None:
            position = len(self._items)
        elif after == ROOT:
            position = 0
        else:
            position = self._index(after, "previous_item_id") + 1
        self._items.insert(position, item)
        previous = self._items[position - 1].id if position else None
        self._bound()
        return previous

    def replace(self, item: Item) -> None:
        """Put a new state of an item in its place; an item that was deleted meanwhile stays deleted."""
        for index, known in enumerate(self._items):
            if known.id == item.id:
                self._items[index] = item
                return

    def delete(self, item_id: str) -> None:
        """Raises :class:`ItemError` with ``item_not_found``."""
        del self._items[self._index(item_id)]

    def messages(self, preamble: tuple[Message, ...], *following: Message) -> tuple[Message, ...]:
        """The prompt: the preamble, then every item that has words, then what follows. Neighbours of one role are
        joined, because a caller who goes on talking is still saying one thing to the model; but an example's answer
        and a greeting are two things."""
        spoken = self._messages()
        if preamble and preamble[-1].role == "system":
            return (*preamble[:-1], *_join([preamble[-1], *spoken, *following]))
        return (*preamble, *_join([*spoken, *following]))

    def _messages(self) -> list[Message]:
        """Every item as it goes into a prompt: a tool's result follows at once on the message that called it, whatever
        came in between, and every call has one."""
        results = {item.call_id: item for item in self._items if item.kind is PartKind.FUNCTION_CALL_OUTPUT}
        messages: list[Message] = []
        caller: int | None = None
        for item in self._items:
            if item.spoken:
                messages.append(Message(item.role, _as_heard(item)))
                caller = len(messages) - 1 if item.role == "assistant" else None
            elif item.kind is PartKind.FUNCTION_CALL:
                if caller is None:
                    messages.append(Message("assistant", ""))
                    caller = len(messages) - 1
                call = ToolCall(item.call_id, item.name, item.text or "")
                said = messages[caller]
                messages[caller] = Message("assistant", said.content, (*said.calls, call))
                result = results.get(item.call_id)
                messages.append(Message("tool", (result.text if result else None) or NO_RESULT, call_id=item.call_id))
        return messages

    def _index(self, item_id: str, param: str = "item_id") -> int:
        for index, item in enumerate(self._items):
            if item.id == item_id:
                return index
        raise ItemError("item_not_found", "no item has this id", param)

    def _bound(self) -> None:
        chars = sum(len(item.text or "") for item in self._items)
        while len(self._items) > MAX_ITEMS or chars > MAX_CHARS:
            oldest = next((i for i, item in enumerate(self._items) if item.role != "system"), 0)
            chars -= len(self._items.pop(oldest).text or "")
            self.dropped += 1


def _as_heard(item: Item) -> str:
    text = (item.text or "").strip()
    if item.name == KEYPAD:  # key by key: so a model reads them, and so it says them
        label, _, keys = text.strip("()").partition(": ")
        return f"({label}: {' '.join(keys)})"
    return text.rstrip(".,;:!?… ") + "…" if item.cut and text else text


def _join(messages: list[Message]) -> tuple[Message, ...]:
    spoken = (message for message in messages if message.content.strip() or message.calls)
    joined: list[Message] = []
    for message in spoken:
        before = joined[-1] if joined else None
        if before is None or before.role != message.role or message.role == "tool":
            joined.append(msgspec.structs.replace(message, content=message.content.strip()))
            continue
        separator = "\n" if message.role == "system" else " "
        content = f"{before.content}{separator}{message.content.strip()}".strip()
        joined[-1] = Message(message.role, content, (*before.calls, *message.calls))
    return tuple(joined)
