"""When the scripted language model calls a tool: for tests and load tests of what an agent does by itself.

It calls one that it is offered, after its words, when the caller's last words hold one of these phrases, or their last
keys begin with one of these pairs:

====================================  ========  ================================================
said                                  pressed   called
====================================  ========  ================================================
``hang up``, ``goodbye``              ``*0``    ``end_call``
``transfer me to NAME``               ``*1``    ``transfer`` to that target; by keys to the first
``press 12#``                         ``*2``    ``send_dtmf``; by keys of the keys that follow
``hold for 5``                        ``*3``    ``hold`` of so many seconds; by keys of 2
====================================  ========  ================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from streaming.jobs import Message, Tool

_KEYS = re.compile(r"\(keypad: ((?:[0-9*#A-D] ?)+)\)")
_HANG_UP = re.compile(r"\bhang up\b|\bgoodbye\b", re.IGNORECASE)
_TRANSFER = re.compile(r"\btransfer me to (?:the )?([\w -]+)", re.IGNORECASE)
_PRESS = re.compile(r"\bpress ([0-9A-D*# ]+)", re.IGNORECASE)
_HOLD = re.compile(r"\bhold for (\d+)", re.IGNORECASE)


def calls_asked_for(messages: Sequence[Message], tools: Sequence[Tool]) -> str:
    """The call as a model writes it (:mod:`engines.llm.written_tools`), or nothing. The result of a tool asks for no
    other."""
    offered = {tool.name: tool for tool in tools}
    if not offered or not messages or messages[-1].role != "user":
        return ""
    said = messages[-1].content
    keys = _KEYS.findall(said)
    wanted = _by_keys(keys[-1].replace(" ", ""), offered) if keys else _by_words(said)
    if wanted is None or wanted[0] not in offered:
        return ""
    return f" <tool_call>{json.dumps({'name': wanted[0], 'arguments': wanted[1]})}</tool_call>"


def _by_words(said: str) -> tuple[str, dict[str, Any]] | None:
    if match := _TRANSFER.search(said):
        return "transfer", {"target": match[1].strip()}
    if match := _PRESS.search(said):
        return "send_dtmf", {"digits": match[1]}
    if match := _HOLD.search(said):
        return "hold", {"seconds": int(match[1])}
    return ("end_call", {}) if _HANG_UP.search(said) else None


def _by_keys(keys: str, offered: dict[str, Tool]) -> tuple[str, dict[str, Any]] | None:
    match keys[:2]:
        case "*0":
            return "end_call", {}
        case "*1" if "transfer" in offered:
            targets = json.loads(offered["transfer"].parameters)["properties"]["target"]["enum"]
            return "transfer", {"target": targets[0]}
        case "*2":
            return "send_dtmf", {"digits": keys[2:]}
        case "*3":
            return "hold", {"seconds": 2}
        case _:
            return None
