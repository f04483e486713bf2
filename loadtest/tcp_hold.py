"""A TCP relay that is a mobile network: nothing is lost, but now and then it holds everything, and then it bursts.

When it stalls, and for how long, comes from the seed alone. What is held is bounded: beyond that the relay stops
reading, as a network does, and the sender sees its socket fill.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

Address = tuple[str, int]

MAX_HELD_BYTES = 1_000_000
"""Of one direction."""

_CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class Stalls:
    """``every_s`` is the mean time from one's end to the next (exponential: no rhythm), ``for_s`` the shortest and the
    longest length (evenly spread)."""

    every_s: float
    for_s: tuple[float, float] = (0.3, 2.0)


@dataclass(slots=True)
class HoldCounts:
    """``overflows``: times that reading stopped as too much was held."""

    stalls: int = 0
    stalled_ms: int = 0
    held_bytes: int = 0
    passed_bytes: int = 0
    overflows: int = 0


def stall_times(stalls: Stalls, seed: int) -> Iterator[tuple[float, float]]:
    """When each begins and ends, in s after the connection: without end."""
    chance = random.Random(f"stalls {seed}")
    at_s = 0.0
    while True:
        at_s += chance.expovariate(1 / stalls.every_s)
        until_s = at_s + chance.uniform(*stalls.for_s)
        yield at_s, until_s
        at_s = until_s


class TcpHold:
    """Between clients and one server. Use :meth:`open`, and :meth:`close` at the end."""

    def __init__(self, server: Address, stalls: Stalls, seed: int) -> None:
        self.counts = HoldCounts()
        self._server = server
        self._stalls = stalls
        self._seed = seed
        self._listener: asyncio.Server | None = None
        self._lines: set[_Line] = set()

    @classmethod
    async def open(cls, server: Address, stalls: Stalls, *, seed: int = 0) -> TcpHold:
        """Listens on loopback. Raises :class:`OSError`."""
        relay = cls(server, stalls, seed)
        relay._listener = await asyncio.get_running_loop().create_server(relay._near, "127.0.0.1", 0)
        return relay

    @property
    def address(self) -> Address:
        """Where clients connect to."""
        if self._listener is None:
            raise RuntimeError("the relay is not open")
        host, port = self._listener.sockets[0].getsockname()[:2]
        return str(host), int(port)

    async def close(self) -> None:
        """Breaks what is still connected."""
        if self._listener is not None:
            self._listener.close()
        lines = tuple(self._lines)
        for line in lines:
            line.break_off()
        await asyncio.gather(*(line.broken.wait() for line in lines))

    def _near(self) -> _End:
        line = _Line(self._server, stall_times(self._stalls, self._seed), self.counts, self._lines.discard)
        self._lines.add(line)
        return line.near


class _Line:
    """One connection: two ends, and the network between them."""

    def __init__(
        self,
        server: Address,
        stalls: Iterator[tuple[float, float]],
        counts: HoldCounts,
        on_broken: Callable[[_Line], None],
    ) -> None:
        self.near = _End(self)
        self.far = _End(self)
        self.broken = asyncio.Event()
        self.counts = counts
        self.stalled = False
        self._server = server
        self._stalls = stalls
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._origin_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None

    def other(self, end: _End) -> _End:
        return self.far if end is self.near else self.near

    def connected(self, end: _End) -> None:
        if end is self.near:
            self._connecting = self._loop.create_task(self._connect())
        else:
            self._plan_stall()

    def half_closed(self, end: _End) -> None:
        """One end has said all, and the other has got it."""
        other = self.other(end)
        if other.ended and not other.held:
            for either in (end, other):
                if either.transport is not None:
                    either.transport.close()
        elif other.transport is not None and other.transport.can_write_eof():
            other.transport.write_eof()

    def break_off(self) -> None:
        """Both ends at once."""
        if self._timer is not None:
            self._timer.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        for end in (self.near, self.far):
            if end.transport is not None:
                end.transport.abort()
        if self.near.gone and self.far.gone:
            self._on_broken(self)
            self.broken.set()

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._loop.create_connection(lambda: self.far, *self._server)
        except OSError:  # a timeout too: the client sees its connection break
            self.far.gone = True
            self.break_off()
        except asyncio.CancelledError:
            self.far.gone = True
            self.break_off()
            raise

    def _plan_stall(self) -> None:
        at_s, until_s = next(self._stalls)
        self._timer = self._loop.call_at(self._origin_s + at_s, self._stall, at_s, until_s)

    def _stall(self, at_s: float, until_s: float) -> None:
        self.stalled = True
        self.counts.stalls += 1
        self._timer = self._loop.call_at(self._origin_s + until_s, self._burst, until_s - at_s)

    def _burst(self, stalled_s: float) -> None:
        self.stalled = False
        self.counts.stalled_ms += round(stalled_s * 1000)
        for end in (self.near, self.far):
            end.let_go()
        self._plan_stall()


class _End(asyncio.Protocol):
    """One end's socket. What it reads is held, or goes out at the other end."""

    def __init__(self, line: _Line) -> None:
        self.transport: asyncio.Transport | None = None
        self.gone = False
        self._line = line
        self.held = bytearray()
        self.ended = False
        self._full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has no such base
        self._line.connected(self)
        if self._line.far.transport is not None:
            self._line.near.let_go()

    def data_received(self, data: bytes) -> None:
        line = self._line
        other = line.other(self).transport
        if line.stalled or other is None:
            line.counts.held_bytes += len(data)
            self.held += data
            if len(self.held) >= MAX_HELD_BYTES and not self._full and self.transport is not None:
                self._full = True
                line.counts.overflows += 1
                self.transport.pause_reading()
            return
        line.counts.passed_bytes += len(data)
        other.write(data)

    def eof_received(self) -> bool:
        """The other end is told once it has all."""
        self.ended = True
        if not self._line.stalled:
            self.let_go()
        return True

    def let_go(self) -> None:
        """The network moves again."""
        other = self._line.other(self).transport
        if other is None or other.is_closing():
            return
        if self.held:
            self._line.counts.passed_bytes += len(self.held)
            other.write(bytes(self.held))
            self.held.clear()
        if self._full and self.transport is not None:
            self._full = False
            self.transport.resume_reading()
        if self.ended:
            self._line.half_closed(self)

    def pause_writing(self) -> None:
        source = self._line.other(self).transport
        if source is not None:
            source.pause_reading()

    def resume_writing(self) -> None:
        source = self._line.other(self).transport
        if source is not None and not self._line.other(self)._full:
            source.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.gone = True
        other = self._line.other(self)
        if error is None and other.transport is not None and not other.gone and self.ended:
            other.transport.close()  # what is on its way to it still gets there
            return
        self._line.break_off()
