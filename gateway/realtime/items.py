"""Conversation items between their wire shape and :class:`streaming.conversation.Item`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.realtime.client_events import ClientItem, ContentPart
from gateway.realtime.errors import Rejected
from streaming.conversation import Item, PartKind, Role

TOOL_ITEMS = frozenset(
    {
        "function_call",
        "function_call_output",
        "mcp_list_tools",
        "mcp_call",
        "mcp_approval_request",
        "mcp_approval_response",
    }
)

ALLOWED_PARTS: dict[str, dict[str, PartKind]] = {
    "system": {"input_text": PartKind.INPUT_TEXT},
    "user": {"input_text": PartKind.INPUT_TEXT, "input_audio": PartKind.INPUT_AUDIO},
    "assistant": {"output_text": PartKind.OUTPUT_TEXT, "output_audio": PartKind.OUTPUT_TEXT},
}
"""An assistant's ``output_audio`` is kept as text: there is no audio of it that could be truncated."""


def read_item(wire: ClientItem, new_id: Callable[[str], str], path: str = "item") -> Item:
    """A client's message. Raises :class:`Rejected`, naming fields below ``path``."""
    role, parts = _read_message(wire, path)
    kinds = []
    texts = []
    for index, part in enumerate(parts):
        kind, text = _read_part(part, role, f"{path}.content[{index}]")
        kinds.append(kind)
        texts.append(text)
    kind = PartKind.INPUT_TEXT if PartKind.INPUT_TEXT in kinds else kinds[0]
    return Item(id=wire.id or new_id("item"), role=role, kind=kind, text="\n".join(texts))


def _read_message(wire: ClientItem, path: str) -> tuple[Role, list[ContentPart]]:
    if wire.type in TOOL_ITEMS:
        raise Rejected("tools_not_supported", "tools are not supported yet", f"{path}.type")
    if wire.type == "item_reference":
        raise Rejected("item_reference_not_supported", "references to items are not supported yet", f"{path}.type")
    if wire.type != "message":
        raise Rejected("invalid_event", "an item is a message", f"{path}.type")
    if wire.role is None:
        raise Rejected("invalid_event", "a message has a role", f"{path}.role")
    if wire.content is None:
        raise Rejected("invalid_event", "a message has content", f"{path}.content")
    return wire.role, wire.content


def _read_part(part: ContentPart, role: Role, path: str) -> tuple[PartKind, str]:
    allowed = ALLOWED_PARTS[role]
    if part.type not in allowed:
        message = f"content of a message by the {role} is {' or '.join(allowed)}"
        raise Rejected("content_type_not_supported", message, f"{path}.type")
    if part.audio is not None:
        message = "send audio with input_audio_buffer.append; an item takes its transcript"
        raise Rejected("audio_item_not_supported", message, f"{path}.audio")
    field = "transcript" if part.type.endswith("_audio") else "text"
    text = part.transcript if field == "transcript" else part.text
    if text is None:
        raise Rejected("invalid_event", f"{part.type} has a {field}", f"{path}.{field}")
    return allowed[part.type], text


def show_item(item: Item, heard: bool = True) -> dict[str, Any]:
    """The wire shape. ``heard`` False withholds the transcript of the caller's audio (transcription is off)."""
    if item.kind is PartKind.FUNCTION_CALL:
        called = {"call_id": item.call_id, "name": item.name, "arguments": item.text or ""}
        return {"id": item.id, "object": "realtime.item", "type": "function_call", "status": item.status, **called}
    if item.kind is PartKind.FUNCTION_CALL_OUTPUT:
        result = {"call_id": item.call_id, "output": item.text or ""}
        return {"id": item.id, "object": "realtime.item", "type": item.kind.value, "status": item.status, **result}
    return {
        "id": item.id,
        "object": "realtime.item",
        "type": "message",
        "status": item.status,
        "role": item.role,
        "content": _show_content(item, heard),
    }


def _show_content(item: Item, heard: bool) -> list[dict[str, Any]]:
    if item.kind is PartKind.INPUT_AUDIO:
        return [{"type": "input_audio", "transcript": item.text if heard else None}]
    if item.text is None:
        return []
    field = "transcript" if item.kind is PartKind.OUTPUT_AUDIO else "text"
    return [{"type": item.kind.value, field: item.text}]
