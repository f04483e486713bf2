"""A phone line in virtual time: the far end plays what it gets, and writes down what its caller's ear heard when."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np

from engines.api import Pcm16
from gateway.state import Gateway
from gateway.transports.phone.line import Ability, Incoming, LineEvents, PlayoutOwner, Quality
from gateway.transports.phone.phone_call import PhoneCall

FRAME_MS = 20


class FakeLine:
    """``latency_s`` is one way of the network between us and the far end, ``slow_s`` what it waits before it plays.
    ``marks`` False: the far end returns none."""

    def __init__(
        self,
        owner: PlayoutOwner = PlayoutOwner.THEIRS,
        *,
        rate_hz: int = 8_000,
        abilities: frozenset[Ability] = frozenset(),
        latency_s: float = 0.0,
        slow_s: float = 0.0,
        marks: bool = True,
    ) -> None:
        self.owner = owner
        self.rate_hz = rate_hz
        self.abilities = abilities
        self.congested = False
        self.events: LineEvents
        self.log: list[tuple[str, Any]] = []
        self.sent: list[tuple[float, Pcm16]] = []
        self.heard: list[tuple[float, Pcm16]] = []
        """What the caller's ear got, frame by frame, with when each one began."""
        self.down: str | None = None
        self.hang_up_takes_s = 0.0
        self.fails: Exception | None = None
        self.takes_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._latency_s, self._slow_s, self._returns_marks = latency_s, slow_s, marks
        self._buffer: deque[Pcm16 | str] = deque()
        self._playing: asyncio.TimerHandle | None = None

    # --- what the call asks -----------------------------------------------------------------------------------

    def play(self, pcm: Pcm16) -> None:
        assert len(pcm) == self.rate_hz * FRAME_MS // 1000, "frames are whole"
        assert pcm.dtype == np.int16
        if self.down is not None:
            return
        self.sent.append((self._loop.time(), pcm))
        self._loop.call_later(self._latency_s, self._arrive, pcm)

    def mark(self, name: str) -> None:
        assert self.owner is PlayoutOwner.THEIRS
        self.log.append(("mark", name))
        if self.down is None:
            self._loop.call_later(self._latency_s, self._arrive, name)

    def clear(self) -> bool:
        self.log.append(("clear", self._loop.time()))
        if self.down is None:
            self._loop.call_later(self._latency_s, self._clear)
        return False

    async def send_dtmf(self, digits: str) -> None:
        await self._control("dtmf", digits)

    async def transfer(self, target: str) -> None:
        await self._control("transfer", target)

    async def hold(self, on: bool) -> None:
        await self._control("hold", on)

    async def hang_up(self, cause: str) -> None:
        self.log.append(("hang_up", cause))
        self.down = self.down or cause
        self._stop()
        if self.hang_up_takes_s:
            await asyncio.sleep(self.hang_up_takes_s)
        if self.fails is not None:
            raise self.fails

    def quality(self) -> Quality:
        return Quality(frames_out=len(self.sent))

    # --- what the far end does --------------------------------------------------------------------------------

    def drop(self, cause: str = "caller_hung_up") -> None:
        self.down = cause
        self._stop()
        self.events.hung_up(cause)

    async def speak(self, ms: int, level: int = 6_000, *, at_ms: float | None = None) -> None:
        """Frames in real time: a 500 Hz square."""
        half = self.rate_hz // 1000
        frame = np.tile(np.repeat(np.array([level, -level], np.int16), half), FRAME_MS // 2)
        for number in range(ms // FRAME_MS):
            at = None if at_ms is None else at_ms + number * FRAME_MS
            self.events.audio(frame, self.rate_hz, at)
            await asyncio.sleep(FRAME_MS / 1000)

    async def hush(self, ms: int) -> None:
        await self.speak(ms, 0)

    async def until(self, holds: Callable[[], Any], within_s: float = 60.0) -> None:
        """A silent caller, until something is so."""
        end = self._loop.time() + within_s
        while not holds():
            assert self._loop.time() < end, "it never came"
            await self.hush(FRAME_MS)

    def names(self, kind: str) -> list[Any]:
        return [what for logged, what in self.log if logged == kind]

    @property
    def heard_pcm(self) -> Pcm16:
        return np.concatenate([pcm for _, pcm in self.heard] or [np.zeros(0, np.int16)])

    def _arrive(self, what: Pcm16 | str) -> None:
        if self.down is not None:
            return
        self._buffer.append(what)
        if self._playing is None:
            self._playing = self._loop.call_later(self._slow_s, self._play_on)

    def _play_on(self) -> None:
        self._playing = None
        while self._buffer:
            what = self._buffer.popleft()
            if not isinstance(what, str):
                self.heard.append((self._loop.time(), what))
                self._playing = self._loop.call_later(FRAME_MS / 1000, self._play_on)
                return
            if self._returns_marks:
                self._loop.call_later(self._latency_s, self._return, what, False)

    def _clear(self) -> None:
        for what in self._buffer:
            if isinstance(what, str) and self._returns_marks:
                self._loop.call_later(self._latency_s, self._return, what, True)
        self._buffer.clear()

    def _return(self, name: str, cleared: bool) -> None:
        if self.down is None:
            self.events.mark_played(name, cleared=cleared)

    def _stop(self) -> None:
        self._buffer.clear()
        if self._playing is not None:
            self._playing.cancel()
            self._playing = None

    async def _control(self, kind: str, what: object) -> None:
        self.log.append((kind, what))
        if self.takes_s:
            await asyncio.sleep(self.takes_s)
        if self.fails is not None:
            raise self.fails


@contextlib.asynccontextmanager
async def phoned(gateway: Gateway, line: FakeLine, incoming: Incoming | None = None) -> AsyncIterator[PhoneCall]:
    """The call of a line while it runs; left, the far end hangs up if nobody has."""
    with await gateway.switchboard.admit("sip") as admission:
        call = PhoneCall(gateway, admission, incoming or Incoming("sip"), line)
        line.events = call
        running = asyncio.create_task(call.run())
        await asyncio.sleep(0)
        try:
            yield call
            if not call.call.finished.is_set():
                line.drop()
            async with asyncio.timeout(30):
                assert await running == call.call.record.cause
        finally:
            if not running.done():
                running.cancel()
            await asyncio.wait({running})
