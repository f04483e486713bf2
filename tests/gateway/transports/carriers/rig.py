"""A gateway in virtual time with a carrier at its door."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.applications import Starlette

from gateway.records.call_record import CallRecord
from gateway.settings import Settings
from gateway.state import Gateway
from tests.gateway.call_rig import Engines
from tests.gateway.transports.carriers.links import FakeRest
from tests.gateway.transports.fake_peer import ANNA, gateway_with


def settings(**tables: object) -> Settings:
    """Anna answers; ``[phone]`` and the carriers' tables as given."""
    return Settings.model_validate({**ANNA.model_dump(), "phone": {"agent": "anna"}, **tables})


@dataclass
class Rig:
    app: Starlette
    gateway: Gateway
    rest: FakeRest

    @property
    def record(self) -> CallRecord:
        """Of the call that is up, else of the one that ended last."""
        live = list(self.gateway.switchboard.calls())
        return live[0] if live else next(iter(self.gateway.recent))

    @property
    def turns(self) -> int:
        return sum(len(record.turns) for record in self.gateway.switchboard.calls())

    @property
    def causes(self) -> list[str | None]:
        return [record.cause for record in self.gateway.recent]

    def counted(self, name: str) -> int:
        value = self.gateway.metrics._registry.get_sample_value("offhook_events_total", {"name": name})
        return int(value or 0)


@contextlib.asynccontextmanager
async def rigged(tables: Settings, engines: Engines | None = None) -> AsyncIterator[Rig]:
    async with gateway_with(engines, tables) as (app, gateway):
        rest = FakeRest()
        async with rest.serve(app):
            yield Rig(app, gateway, rest)
