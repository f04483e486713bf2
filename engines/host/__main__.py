"""``python -m engines.host``: one engine host, started by a gateway and by nobody else.

It gets its end of the socket as an inherited file descriptor, so there is no path that another program could open.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from engines.host import lifeline
from engines.host.channel import Channel
from engines.host.protocol import TO_HOST, Lane, Vitals
from engines.host.server import HostServer
from engines.memory import footprint_bytes
from engines.opening import InProcess
from engines.registry import BackendSpec, load_reference

if TYPE_CHECKING:
    from engines.executor.thread import MlxExecutor

OUTBOX_BYTES = 8 * 2**20
"""About three minutes of speech that the gateway has not taken."""
LAST_WORDS_S = 1.0
"""For what is still to be written when all is closed."""
GIVES_WAY = {"cpu": 10}
"""Niceness above the gateway's, by host. Models on its cores would have its frames leave late (on 2 cores with 2 busy
threads a tick every 20 ms was 4 to 16 ms late at p90, with this 1 ms); the MLX host's thread is to keep a GPU fed."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m engines.host", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket")
    parser.add_argument("--name", required=True)
    parser.add_argument("--cores", type=int, default=None)
    parser.add_argument("--set-up", default="null", help="JSON: [reference, keywords] called first (logging)")
    options = parser.parse_args()
    lifeline.hold()
    # A terminal's Ctrl-C and a service's SIGTERM reach the whole group: calls are drained first, and the gateway says
    # when we end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if options.name in GIVES_WAY:
        # The group, which is this process alone, as that means all threads: NumPy has started some by now.
        os.setpriority(os.PRIO_PGRP, 0, os.getpriority(os.PRIO_PGRP, 0) + GIVES_WAY[options.name])
        # Linux may share cores by session first (sched(7), autogroups), and we have one of our own: without this our
        # niceness says nothing beside the gateway. No such file: it does not.
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(GIVES_WAY[options.name]), encoding="ascii")
    os.set_inheritable(options.fd, False)
    _set_up(options.set_up)
    sock = socket.socket(fileno=options.fd)
    sock.setblocking(False)
    asyncio.run(_serve(sock, options.cores))


def _set_up(text: str) -> None:
    called = json.loads(text)
    if called is None:  # structlog's own default writes to standard output
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
        return
    reference, keywords = called
    load_reference(reference)(**keywords)


class _Place(InProcess):
    """The engines of this process, and how it is."""

    def __init__(self, cores: int | None) -> None:
        super().__init__(cores)
        self._watched: MlxExecutor | None = None
        self._dead = False

    def engine(self, spec: BackendSpec, weights: Sequence[Path]) -> Any:
        engine = super().engine(spec, weights)
        if self._executor is not None and self._watched is not self._executor:
            self._watched = self._executor
            self._watched.on_death(self._died)
        return engine

    def vitals(self) -> Vitals:
        executor = self._executor
        lanes = {name: Lane(*dataclasses.astuple(lane)) for name, lane in self.lanes().items()}
        if executor is None:
            return Vitals(footprint_bytes(), lanes=lanes, cpu_s=time.process_time())
        snapshot = executor.snapshot
        device_bytes = snapshot.active_bytes + snapshot.cache_bytes
        return Vitals(
            footprint_bytes(),
            device_bytes,
            executor.trouble,
            self._dead,
            snapshot.overload,
            lanes,
            time.process_time(),
        )

    def _died(self, code: str, message: str) -> None:
        self._dead = True


async def _serve(sock: socket.socket, cores: int | None) -> None:
    place = _Place(cores)
    server = HostServer(place, place.vitals)
    channel = Channel(TO_HOST, on_messages=server.on_messages, on_lost=server.on_lost, limit_bytes=OUTBOX_BYTES)
    server.attach(channel)
    await channel.connect(sock)
    await server.stopped.wait()
    try:
        await server.close()
    finally:
        channel.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await channel.closed.wait()


if __name__ == "__main__":
    main()
