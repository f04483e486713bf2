"""The tasks of AudioSocket calls, without a server."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any, cast

from gateway.bridge_settings import AudioSocketSettings
from gateway.transports.asterisk.audiosocket import AudioSocketServer
from gateway.transports.asterisk.audiosocket_line import AudioSocketLine
from gateway.transports.asterisk.expected import NextSteps
from gateway.transports.phone.line import Incoming
from tests.gateway.transports.asterisk.test_audiosocket_line import Wire
from tests.virtual_time import virtual


@virtual
async def test_a_call_that_breaks_down_is_told_of() -> None:
    loop = asyncio.get_running_loop()
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    broken = RuntimeError("the switchboard broke down")

    async def admit(transport: str) -> None:
        raise broken

    gateway = cast("Any", SimpleNamespace(switchboard=SimpleNamespace(admit=admit)))
    expected = cast("Any", SimpleNamespace(take=lambda call: Incoming("audiosocket", wire_id=str(call))))
    server = AudioSocketServer(gateway, AudioSocketSettings(), expected, NextSteps(loop.time))
    line = AudioSocketLine(Wire(), lambda name: None)
    server.identified(cast("Any", SimpleNamespace(make_line=lambda hand_over: line)), uuid.uuid4())
    await asyncio.sleep(0.1)
    assert [(context["message"], context["exception"]) for context in told] == [("a call's task failed", broken)]
    assert not server._tasks
