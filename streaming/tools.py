"""The tools an agent can have: what the model is told of them, and what its calls mean.

All of them act on the call itself. Arguments are read leniently, as models write them; what cannot be done is said in
words that the model can act on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from streaming.audio.keypad_tones import KEYS
from streaming.config import SessionConfig
from streaming.jobs import Tool

END_CALL, TRANSFER, SEND_DTMF, HOLD = "end_call", "transfer", "send_dtmf", "hold"
TOOL_NAMES = (END_CALL, TRANSFER, SEND_DTMF, HOLD)

MAX_ARGUMENT_CHARS = 4_096
MAX_DIGITS = 32
MAX_HOLD_S = 300
DEFAULT_HOLD_S = 30
_BETWEEN_KEYS = str.maketrans("", "", " -.,()")


class ToolError(Exception):
    """A call that cannot be done. ``code`` is stable, the message is for the model."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class HangUp:
    """End the call."""


@dataclass(frozen=True, slots=True)
class TransferTo:
    """``name`` is the model's, ``address`` the owner's."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Press:
    digits: str


@dataclass(frozen=True, slots=True)
class HoldFor:
    seconds: int


Action = HangUp | TransferTo | Press | HoldFor


def definitions(config: SessionConfig) -> tuple[Tool, ...]:
    """What the model may call in this session, in the order of :data:`TOOL_NAMES`. ``transfer`` needs a target."""
    tools = {
        END_CALL: Tool(
            END_CALL,
            "Hang up the phone. Call it when the conversation is over or the caller asks you to, and say goodbye in "
            "the same reply, before the call. The line closes once the caller has heard your words.",
            _schema({}),
        ),
        TRANSFER: Tool(
            TRANSFER,
            "Hand the caller over to someone else. Tell the caller in the same reply, before the call. If it does not "
            "succeed you are told why, and go on talking with the caller.",
            _schema({"target": {"type": "string", "enum": [name for name, _ in config.transfer_targets]}}),
        ),
        SEND_DTMF: Tool(
            SEND_DTMF,
            "Press keys on the phone's keypad, to answer a menu of the other side.",
            _schema({"digits": {"type": "string", "description": f"up to {MAX_DIGITS} of 0-9, *, #"}}),
        ),
        HOLD: Tool(
            HOLD,
            "Put the caller on hold for a while. Tell the caller in the same reply, before the call. You are told "
            "when the caller is back.",
            _schema({"seconds": {"type": "integer", "minimum": 1, "maximum": MAX_HOLD_S}}),
        ),
    }
    return tuple(tools[name] for name in TOOL_NAMES if may_call(name, config))


def may_call(name: str, config: SessionConfig) -> bool:
    """Whether the session has this tool."""
    return name in config.tools and (name != TRANSFER or bool(config.transfer_targets))


def read_call(name: str, arguments: str, config: SessionConfig) -> Action:
    """What a call asks for. Raises :class:`ToolError`: ``unknown_tool``, ``invalid_arguments``, ``unknown_target``."""
    if not may_call(name, config):
        known = ", ".join(tool.name for tool in definitions(config)) or "none"
        what = "what was called could not be read" if not name else f"there is no tool {name[:64]!r}"
        raise ToolError("unknown_tool", f"{what}; the tools are: {known}")
    if name == END_CALL:  # there is nothing to be read of it, and so nothing to be wrong
        return HangUp()
    given = _read_arguments(arguments)
    if name == TRANSFER:
        return _read_target(given, config)
    if name == SEND_DTMF:
        return _read_digits(given)
    return _read_hold(given)


def _schema(properties: dict[str, Any]) -> str:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return msgspec.json.encode(schema).decode()


def _read_arguments(text: str) -> dict[str, Any]:
    """An object; models also send nothing at all for a tool without parameters."""
    if len(text) > MAX_ARGUMENT_CHARS:
        raise ToolError("invalid_arguments", f"the arguments are longer than {MAX_ARGUMENT_CHARS} characters")
    try:
        given = msgspec.json.decode(text.strip() or "{}")
    except (msgspec.MsgspecError, RecursionError):
        raise ToolError("invalid_arguments", "the arguments are not valid JSON") from None
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise ToolError("invalid_arguments", "the arguments are a JSON object")
    return given


def _read_target(given: dict[str, Any], config: SessionConfig) -> TransferTo:
    wanted = given.get("target")
    said = wanted.strip().casefold() if isinstance(wanted, str) else None
    for name, address in config.transfer_targets:
        if name.casefold() == said:
            return TransferTo(name, address)
    known = ", ".join(name for name, _ in config.transfer_targets)
    raise ToolError("unknown_target", f"target is one of: {known}")


def _read_digits(given: dict[str, Any]) -> Press:
    wanted = given.get("digits")
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        wanted = str(wanted)
    digits = wanted.translate(_BETWEEN_KEYS).upper() if isinstance(wanted, str) else ""
    if not digits or len(digits) > MAX_DIGITS or not KEYS.issuperset(digits):
        raise ToolError("invalid_arguments", f"digits is a string of 1 to {MAX_DIGITS} of 0-9, *, #")
    return Press(digits)


def _read_hold(given: dict[str, Any]) -> HoldFor:
    wanted = given.get("seconds", DEFAULT_HOLD_S)
    if isinstance(wanted, str) and wanted.strip().isdecimal():
        wanted = int(wanted[:8])
    if isinstance(wanted, bool) or not isinstance(wanted, int | float) or not 1 <= wanted <= MAX_HOLD_S:
        raise ToolError("invalid_arguments", f"seconds is a number from 1 to {MAX_HOLD_S}")
    return HoldFor(round(wanted))
