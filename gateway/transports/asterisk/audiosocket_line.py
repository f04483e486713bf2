"""A call's AudioSocket connection: the caller's audio as it comes, and a frame every 20 ms without end.

Asterisk writes what it reads here straight to the phone: this side owns the clock. A channel that hears nothing for
2 s hangs up (``app_audiosocket.c``), and some phones sooner: where there is no speech, silence is sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from engines.api import Pcm16
from gateway.transports.asterisk import audiosocket_wire as wire
from gateway.transports.phone.flooding import Flooding
from gateway.transports.phone.line import Ability, LineError, LineEvents, PlayoutOwner, Quality
from streaming.audio.fade import falling_silent

FRAME_S = 0.02
MAX_QUEUED_FRAMES = 4
"""Speech that waits for its 20 ms; the call keeps at most two ahead."""
SILENT_S = 10.0
"""Without caller audio for so long, the call is over."""
NOT_READING_S = 5.0
CLOSE_S = 2.0
MAX_MESSAGES_AHEAD = 1_000
EARLY_MESSAGES = 100
"""Kept until the call is there to hear them: 2 s."""
WRITE_BUFFER_BYTES = 8_192


class Count(Protocol):
    def __call__(self, name: str, /) -> object: ...


class AudioSocketLine:
    """``rate_hz``: of the channel, both ways. ``hand_over`` is told where the dialplan shall send the caller; None: it
    does not ask. ``left`` is told of each frame how long after its time it went."""

    owner = PlayoutOwner.OURS

    def __init__(
        self,
        transport: asyncio.Transport,
        count: Count,
        *,
        hand_over: Callable[[str], None] | None = None,
        left: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._count = count
        self._hand_over = hand_over
        self._left = left
        self.abilities: frozenset[Ability] = frozenset({Ability.TRANSFER} if hand_over is not None else ())
        self.rate_hz = 8_000
        self._events: LineEvents | None = None
        self._early: deque[wire.Message] = deque()
        self._rate_known = asyncio.Event()
        self._speech: deque[Pcm16] = deque()
        self._last_sample = 0
        """Of what was sent."""
        self._silence = b""
        self._tick: asyncio.TimerHandle | None = None
        self._heard_at = self._loop.time()
        self._blocked_since: float | None = None
        self._flooding = Flooding(self._heard_at, messages_ahead=MAX_MESSAGES_AHEAD)
        self._frames_in = self._frames_out = 0
        self._cause: str | None = None
        self._goodbye = False
        self._gone = asyncio.Event()

    # --- the connection's side ------------------------------------------------------------------------------------

    def received(self, message: wire.Message) -> None:
        if self._cause is not None:
            return
        now = self._loop.time()
        audio_s = len(message.pcm) / (2 * message.rate_hz) if isinstance(message, wire.Audio) else 0.0
        if self._flooding.message(now) or self._flooding.audio(audio_s, now):
            self.down("peer_flooding")
        elif self._events is None:
            self._keep(message)
        else:
            self._tell(self._events, message)

    def _keep(self, message: wire.Message) -> None:
        if isinstance(message, wire.Audio):
            if not self._rate_known.is_set() and 8_000 <= message.rate_hz <= 48_000:
                self.rate_hz = message.rate_hz
            self._rate_known.set()
        if len(self._early) < EARLY_MESSAGES:
            self._early.append(message)
        else:
            self._count("audiosocket_early_dropped")
        if isinstance(message, wire.HangUp | wire.Failed):
            self._end_by(message)

    def _tell(self, events: LineEvents, message: wire.Message) -> None:
        match message:
            case wire.Audio(pcm=pcm, rate_hz=rate_hz):
                self._frames_in += 1
                self._heard_at = self._loop.time()
                samples = np.frombuffer(pcm, "<i2").astype(np.int16, copy=False)
                for at in range(0, len(samples), rate_hz):
                    events.audio(samples[at : at + rate_hz], rate_hz)
            case wire.Digit(digit=digit):
                events.dtmf(digit)
            case wire.HangUp() | wire.Failed():
                self._end_by(message)
            case wire.CallId():
                self._count("audiosocket_second_uuid")
            case wire.Ignored(reason=reason):
                self._count(reason)

    def _end_by(self, message: wire.HangUp | wire.Failed) -> None:
        failed = isinstance(message, wire.Failed) and message.code != wire.CALLER_GONE
        self.down("protocol_error" if failed else "caller_hung_up")

    @property
    def is_down(self) -> bool:
        """Nothing that comes matters any more."""
        return self._cause is not None

    def pause(self) -> None:
        self._blocked_since = self._loop.time()

    def resume(self) -> None:
        self._blocked_since = None
        if self._events is not None:
            self._events.writable()

    def lost(self, error: Exception | None) -> None:
        """The connection is gone. Asterisk closes it when the caller hangs up; with audio of ours unread, which there
        always may be, that is a reset."""
        self._gone.set()
        goodbye = error is None or isinstance(error, ConnectionResetError | BrokenPipeError)
        self.down("caller_hung_up" if goodbye else "connection_lost")

    def down(self, cause: str) -> None:
        """No more audio either way; the first cause stands."""
        if self._cause is not None:
            return
        self._cause = cause
        self._stop()
        self._rate_known.set()
        if self._events is not None:
            self._events.hung_up(cause)

    # --- the call's side ------------------------------------------------------------------------------------------

    async def rate_heard(self, within_s: float) -> None:
        """Wait for the first audio, whose rate is the channel's."""
        try:
            async with asyncio.timeout(within_s):
                await self._rate_known.wait()
        except TimeoutError:
            self._count("audiosocket_rate_unheard")
        self._silence = wire.encode_audio(bytes(self._frame_bytes), self.rate_hz)

    @property
    def _frame_bytes(self) -> int:
        return 2 * (self.rate_hz // 50)

    def attach(self, events: LineEvents) -> None:
        """The call is there: tell it what came so far, and send frames from now on."""
        self._events = events
        early, self._early = self._early, deque()
        for message in early:
            if not isinstance(message, wire.HangUp | wire.Failed):
                self._tell(events, message)
        if self._cause is not None:
            events.hung_up(self._cause)
            return
        self._heard_at = self._loop.time()
        self._send_frame(self._loop.time())

    @property
    def congested(self) -> bool:
        return self._blocked_since is not None

    def play(self, pcm: Pcm16) -> None:
        if self._cause is not None:
            return
        if len(self._speech) >= MAX_QUEUED_FRAMES:
            self._count("audiosocket_speech_dropped")
            return
        self._speech.append(pcm)

    def mark(self, name: str) -> None:
        """A frame is heard as it is sent."""

    def clear(self) -> bool:
        dropped = bool(self._speech)
        self._speech.clear()
        return dropped

    async def send_dtmf(self, digits: str) -> None:
        raise LineError("not_supported", "AudioSocket carries keys one way only: from the phone.")

    async def transfer(self, target: str) -> None:
        """The dialplan goes on, and asks where to."""
        if self._hand_over is None:
            raise LineError("not_supported", "The dialplan is not said to ask where a caller goes.")
        if self._cause is not None:
            raise LineError("line_down", "The caller has hung up.")
        self._hand_over(target)  # which may refuse
        self._say_goodbye()

    async def hold(self, on: bool) -> None:
        raise LineError("not_supported", "AudioSocket has no hold.")

    async def hang_up(self, cause: str) -> None:
        """Say so, and let Asterisk close: closing with its audio unread would reset the connection, and a dialplan
        whose application failed does not go on."""
        self.down(cause)
        self._say_goodbye()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._gone.wait()
        except TimeoutError:
            self._transport.abort()

    def _say_goodbye(self) -> None:
        self._stop()
        if not (self._goodbye or self._transport.is_closing()):
            self._goodbye = True
            self._transport.write(wire.HANG_UP)
            self._transport.write_eof()

    def quality(self) -> Quality:
        return Quality(frames_in=self._frames_in, frames_out=self._frames_out)

    # --- the clock ------------------------------------------------------------------------------------------------

    def _send_frame(self, due: float) -> None:
        """One frame, then the next in its own 20 ms. Slots that were missed are skipped: a burst helps nobody."""
        self._tick = None
        now = self._loop.time()
        if now - self._heard_at > SILENT_S:
            self.down("media_timeout")
        elif self._blocked_since is None:
            self._transport.write(self._next_frame())
            self._frames_out += 1
            self._left(max(0.0, now - due))
        else:
            self._count("audiosocket_frames_unsent")
            if now - self._blocked_since > NOT_READING_S:
                self.down("peer_not_reading")
        if self._cause is None:
            missed = max(0, int((now - due) / FRAME_S))
            if missed:
                self._count("audiosocket_slots_missed")
            due += FRAME_S * (1 + missed)
            self._tick = self._loop.call_at(due, self._send_frame, due)

    def _next_frame(self) -> bytes:
        """Silence, where there is no speech. A voice that was cut falls to it."""
        last, self._last_sample = self._last_sample, 0
        if self._speech:
            pcm = self._speech.popleft()
            self._last_sample = int(pcm[-1])
        elif last:
            pcm = falling_silent(last, self.rate_hz // 50, self.rate_hz)
        else:
            return self._silence
        return wire.encode_audio(pcm.astype("<i2").tobytes(), self.rate_hz)

    def _stop(self) -> None:
        self._speech.clear()
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
