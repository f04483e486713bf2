"""The served SIP server, and a phone of our own that calls it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import psutil

from gateway.agent_settings import AgentSettings
from gateway.settings import Settings
from gateway.sip_settings import SipSettings
from gateway.transports.sip.server import SipServer
from tests.gateway.transports.sip.caller import Caller
from tests.serving import Served, eventually, served


@contextlib.asynccontextmanager
async def taking_calls(max_calls: int = 8, **sip: Any) -> AsyncIterator[tuple[Served, SipServer]]:
    """Its agent waits to be spoken to."""
    agents = {"default": AgentSettings(greeting="")}
    settings = Settings(preset="null", max_calls=max_calls, agents=agents, sip=SipSettings(enabled=True, port=0, **sip))
    async with served(settings=settings) as here:
        server = here.gateway.wires.sip
        assert server is not None
        yield here, server
        await eventually(lambda: server.idle)
        await eventually(lambda: not _media_sockets(server))


def _media_sockets(server: SipServer) -> set[int]:
    """UDP ports of this process that are not those of a signalling socket."""
    found = {one.laddr.port for one in psutil.Process().net_connections("udp")}
    return found - set(server.ports.values()) - _callers_ports


_callers_ports: set[int] = set()


@contextlib.asynccontextmanager
async def phone(**kwargs: Any) -> AsyncIterator[Caller]:
    async with Caller(**kwargs).up() as caller:
        _callers_ports.add(caller.port)
        try:
            yield caller
        finally:
            _callers_ports.discard(caller.port)
