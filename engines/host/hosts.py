"""The child processes in which a preset's engines run: a :class:`engines.api.Place`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.api import EngineHealth, Overload
from engines.host.client import HOSTED
from engines.host.process import HostSpec, SetUp
from engines.host.supervisor import Host
from engines.host.times import HostTimes
from engines.overload import Lateness
from engines.registry import BackendSpec


class Hosts:
    """One host for each ``BackendSpec.host`` there is, each started with the first engine that is loaded there.

    ``specs`` says how those of a name are run (default: this interpreter); ``set_up`` is called first in each (how it
    logs).
    """

    def __init__(
        self,
        specs: Mapping[str, HostSpec] | None = None,
        *,
        set_up: SetUp | None = None,
        times: HostTimes = HostTimes(),  # noqa: B008 (frozen)
    ) -> None:
        self._specs = dict(specs or {})
        self._set_up = set_up
        self._times = times
        self._hosts: dict[str, Host] = {}
        self._lateness = Lateness()
        self._numbers = 0

    def engine(self, spec: BackendSpec, weights: Sequence[Path]) -> Any:
        """The engine of a backend that has a ``host``; its module is imported only there."""
        if spec.host is None:
            raise ValueError(f"{spec.name} belongs into the gateway's process")
        self._numbers += 1
        return HOSTED[spec.kind](self._host(spec.host), self._numbers, spec, weights)

    def host(self, name: str) -> Host | None:
        """The host of that name, if any engine was made for it."""
        return self._hosts.get(name)

    def health(self) -> EngineHealth:
        """Red while any engine that was loaded is not there; what each host says of itself. Whether calls can be
        taken depends on what stands in for it: ask :attr:`engines.api.EngineSet.health`."""
        started = {name: host for name, host in self._hosts.items() if host.started}
        reason = "; ".join(filter(None, (host.reason for host in started.values())))
        overload = max((host.overload for host in started.values()), default=Overload.NONE)
        return EngineHealth(
            healthy=not reason,
            reason=reason,
            overload=max(overload, self._lateness.level(time.monotonic())),
            hosts={name: host.health for name, host in started.items()},
        )

    async def close(self) -> None:
        """Stop every host, all at once. Safe to call twice."""
        await asyncio.gather(*(host.close() for host in self._hosts.values()))

    def _host(self, name: str) -> Host:
        if name not in self._hosts:
            spec = self._specs.get(name) or HostSpec(name)
            self._hosts[name] = Host(spec, lateness=self._lateness, set_up=self._set_up, times=self._times)
        return self._hosts[name]
