"""What the tests of all telephone bridges need: a caller's voice, an agent, what its call came to."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from engines.api import Pcm16
from engines.llm.scripted import ScriptedLlm
from engines.tts.scripted import ScriptedTts
from gateway.settings import AgentSettings, Settings
from tests.gateway.call_rig import Engines
from tests.serving import Served

LONG = "One two three four five six seven eight. Nine ten eleven twelve thirteen fourteen fifteen sixteen."
AGENTS = {
    "default": AgentSettings(instructions="Be brief.", apology="Sorry.", silence_ms=200),
    "sales": AgentSettings(instructions="Sell.", apology="Sorry.", greeting="Sales here.", silence_ms=200),
}


def settings(**tables: Any) -> Settings:
    return Settings(preset="null", max_calls=4, agents=AGENTS, **tables)


def talkative() -> Engines:
    """A reply of some 4 s, which can be cut."""
    return Engines(llm=ScriptedLlm(lambda messages: LONG), tts=ScriptedTts(250))


def tone(ms: int, rate_hz: int = 8_000) -> Pcm16:
    """What the fake detector takes for speech."""
    at = np.arange(rate_hz * ms // 1000) / rate_hz
    return (8_000 * np.sin(2 * np.pi * 440 * at)).astype(np.int16)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def counted(here: Served, name: str) -> int:
    value = here.gateway.metrics._registry.get_sample_value("offhook_events_total", {"name": name})
    return int(value or 0)


def live(here: Served) -> Any:
    """The record of the only call that is up."""
    (record,) = here.gateway.switchboard.calls()
    return record


def answered(here: Served) -> bool:
    """Whether a call is up."""
    return any(record.state == "answered" for record in here.gateway.switchboard.calls())


def last(here: Served) -> Any:
    """The record of the call that ended last."""
    return next(iter(here.gateway.recent))


def said(record: Any, role: str) -> list[str]:
    return [entry.text for entry in record.transcript if entry.role == role]


@contextmanager
def times_of(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> Iterator[list[float]]:
    """When a method of a class was called (loop time)."""
    import asyncio

    times: list[float] = []
    inner = getattr(owner, name)

    def spy(self: Any, *args: Any, **kwargs: Any) -> Any:
        times.append(asyncio.get_running_loop().time())
        return inner(self, *args, **kwargs)

    monkeypatch.setattr(owner, name, spy)
    yield times
