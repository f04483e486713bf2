"""A carrier's stream as the line of a call (:class:`gateway.transports.phone.line.PhoneLine`), whatever its dialect."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from engines.api import Pcm16
from gateway.transports.carriers import wire
from gateway.transports.carriers.dialect import (
    Act,
    Audio,
    CarrierEvent,
    Cleared,
    Dialect,
    Flow,
    Ignored,
    Key,
    MarkPlayed,
    RestRequest,
    Started,
    Stopped,
)
from gateway.transports.carriers.rest import RestFailed
from gateway.transports.carriers.send_queue import SendQueue
from gateway.transports.phone.flooding import Flooding
from gateway.transports.phone.line import Ability, LineError, LineEvents, Quality

_log = structlog.get_logger(__name__)

TAIL_S = 0.15
"""Without audio after a mark, what was said is all there is for now; less than audio is sent ahead, so that nothing
sounds broken."""

AHEAD_S = 0.3
"""What may be in the carrier's buffer already."""

MAX_AUDIO_S = 2
"""Of one message; carriers send 20 to 100 ms. Longer ones are dropped, and counted: they would hold up other calls."""

MAX_MESSAGES_AHEAD = 5_000
"""A carrier that sends so many more than phones do is hung up."""

MAX_MARKS = 256
"""That may be out at once: one every 200 ms, some 40 s of them. Beyond, a mark is not sent, and counted."""

Rest = Callable[[RestRequest], Awaitable[None]]
"""Raises :class:`RestFailed`."""


class CarrierLine:
    """``attach`` the call before anything else is taken from the wire. ``count`` counts by name."""

    def __init__(self, dialect: Dialect, started: Started, rest: Rest, count: Callable[[str], None]) -> None:
        self.owner = started.owner
        self.abilities: frozenset[Ability] = dialect.abilities
        self.rate_hz = started.out_rate_hz or started.rate_hz
        self._dialect = dialect
        self._in_rate_hz = started.rate_hz
        self._decode = wire.decoder(started.encoding)
        self._block_bytes = started.rate_hz * wire.sample_bytes(started.encoding)
        self._tail = started.tail
        self._tail_due: asyncio.TimerHandle | None = None
        self._rest = rest
        self._count = count
        self._events: LineEvents | None = None
        self._marks: dict[str, bool] = {}
        """Those that are out, oldest first; True: a clear was sent after them."""
        self._full = False
        self._sounds_until = 0.0
        """Keys sound that a clear would swallow."""
        self._handing_over = False
        self._left: str | None = None
        """Why the far end went while it was being handed over."""
        self._down = False
        self._over = False
        """Of the phone call, too, there is nothing left to hang up."""
        self._frames_in = 0
        self._frames_out = 0
        self._loop = asyncio.get_running_loop()
        self._flooding = Flooding(self._loop.time(), messages_ahead=MAX_MESSAGES_AHEAD)
        self.queue = SendQueue(lost=self.lost, writable=self._writable)

    def attach(self, events: LineEvents) -> None:
        self._events = events

    @property
    def down(self) -> bool:
        """The far end is gone, or was hung up."""
        return self._down

    # --- what the call asks -------------------------------------------------------------------------------------------

    @property
    def congested(self) -> bool:
        return self._full or self.queue.congested

    def play(self, pcm: Pcm16) -> None:
        if not self._down:
            self._cancel_tail()
            self._frames_out += 1
            self.queue.put(self._dialect.encode_audio(pcm), audio=True)

    def mark(self, name: str) -> None:
        if self._down:
            return
        if len(self._marks) >= MAX_MARKS:
            self._count("carrier_mark_not_sent")
            return
        self._marks[name] = False
        self.queue.put(self._dialect.encode_mark(name), mark=name)
        if self._tail:
            self._cancel_tail()
            self._tail_due = self._loop.call_later(TAIL_S, self._send_tail)

    def _send_tail(self) -> None:
        self._tail_due = None
        if not self._down:
            self.queue.put(self._tail, audio=True)

    def _cancel_tail(self) -> None:
        if self._tail_due is not None:
            self._tail_due.cancel()
            self._tail_due = None

    def clear(self) -> bool:
        if self._down:
            return False
        self._cancel_tail()
        dropped, unsent = self.queue.take_back()
        if self._loop.time() >= self._sounds_until:
            self.queue.put(self._dialect.encode_clear())
            for name in self._marks:
                self._marks[name] = True
        for name in unsent:
            if self._marks.pop(name, None) is not None:
                self._tell().mark_played(name, cleared=True)
        return dropped

    async def send_dtmf(self, digits: str) -> None:
        if Ability.SEND_DTMF not in self.abilities:
            raise LineError("not_supported", "this line cannot send keys")
        act = self._dialect.send_dtmf(digits)
        await self._do(act, "send_dtmf_failed")
        if act.sounds_s:
            if act.messages:
                self._sounds_until = self._loop.time() + AHEAD_S + act.sounds_s
            await asyncio.sleep(act.sounds_s)

    async def transfer(self, target: str) -> None:
        if Ability.TRANSFER not in self.abilities:
            raise LineError("not_supported", "this line cannot hand a caller over")
        self._handing_over = True  # meanwhile the stream may end because of it
        try:
            await self._do(self._dialect.transfer(target), "transfer_failed")
            self._down = self._over = True
        finally:
            self._handing_over = False
            if not self._down and self._left is not None:
                self._over = True  # perhaps it was done: who may be with somebody else by now is not hung up
                self._end(self._left)

    async def hold(self, on: bool) -> None:
        raise LineError("not_supported", "this line cannot put a caller on hold")

    async def hang_up(self, cause: str) -> None:
        """Also when the stream is lost: not every vendor ends a call with its stream."""
        self._cancel_tail()
        self._down = True
        if self._over:
            return
        self._over = True
        with contextlib.suppress(LineError):  # it was counted; closing the stream is all that is left to do
            await self._do(self._dialect.hang_up(), "hang_up_failed")

    def quality(self) -> Quality:
        return Quality(frames_in=self._frames_in, frames_out=self._frames_out)

    async def _do(self, act: Act, code: str) -> None:
        self.queue.put(act.messages)
        if act.request is None:
            return
        try:
            await self._rest(act.request)
        except RestFailed as failed:
            self._count("carrier_api_failed")
            _log.warning("a carrier's API did not do it", what=code, reason=failed.code, status=failed.status)
            raise LineError(code, "the carrier did not do it") from None

    # --- what the wire says -------------------------------------------------------------------------------------------

    def take(self, event: CarrierEvent) -> None:
        """One event, in order."""
        now = self._loop.time()
        if self._flooding.message(now) and not self._down:
            self.lost("peer_flooding")
        if isinstance(event, Ignored):
            if event.reason:
                self._count(f"carrier_{event.reason}")
            return
        if self._down:
            return
        match event:
            case Audio():
                self._hear(event, now)
            case Key():
                self._tell().dtmf(event.digit)
            case MarkPlayed():
                cleared = self._marks.pop(event.name, None)
                if cleared is None:
                    self._count("carrier_unknown_mark")
                else:
                    dropped = (
                        cleared and self._dialect.marks_return_on_clear if event.cleared is None else event.cleared
                    )
                    self._tell().mark_played(event.name, cleared=dropped)
            case Cleared():
                self._forget_cleared()
            case Flow():
                self._full = not event.on
                if not self.congested:
                    self._writable()
            case Stopped():
                self.lost(event.cause)
            case Started():
                self._count("carrier_second_start")

    def lost(self, cause: str) -> None:
        """The far end is gone: the caller (``caller_hung_up``), or only the stream."""
        if cause == "connection_lost":
            self.queue.close()
        if self._handing_over:
            self._left = self._left or cause
        else:
            self._end(cause)

    def _end(self, cause: str) -> None:
        if not self._down:
            self._down = True
            self._over = self._over or cause == "caller_hung_up"
            if self._events is not None:
                self._events.hung_up(cause)

    def _hear(self, audio: Audio, now: float) -> None:
        self._frames_in += 1
        payload, block_bytes, at_ms = audio.payload, self._block_bytes, audio.at_ms
        if len(payload) > MAX_AUDIO_S * block_bytes:
            self._count("carrier_audio_too_long")
            return
        if self._flooding.audio(len(payload) / block_bytes, now):
            self._count("carrier_audio_ahead")
            return
        tell = self._tell()
        if len(payload) <= block_bytes:
            pcm = self._decode(payload)
            if len(pcm):
                tell.audio(pcm, self._in_rate_hz, at_ms)
            return
        for at in range(0, len(payload), block_bytes):
            pcm = self._decode(payload[at : at + block_bytes])
            if len(pcm):
                tell.audio(pcm, self._in_rate_hz, None if at_ms is None else at_ms + at / block_bytes * 1000)

    def _forget_cleared(self) -> None:
        gone = [name for name, cleared in self._marks.items() if cleared]
        for name in gone:
            del self._marks[name]
            self._tell().mark_played(name, cleared=True)

    def _writable(self) -> None:
        if self._events is not None and not self._down:
            self._events.writable()

    def _tell(self) -> LineEvents:
        assert self._events is not None, "the call is attached before its wire is read"
        return self._events
