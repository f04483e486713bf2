"""Stay on a call: the process's ticker calls every 20 ms; each tick hears a slot, sends a frame and steps the script.

The microphone never stops: a frame of 20 ms goes out on an absolute deadline, silence between lines included, when its
last sample would have been spoken. What comes back is heard through the wire's model of a playout buffer. Both sides
are recorded on one time axis, and what is recorded of the caller is what was sent.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np

from loadtest.call import SLOT_MS, CallOver, CallPlan, CallTape, EndCause, Key, Pcm16, Wire
from loadtest.ear import Recording
from loadtest.frame_tables import FrameTable
from loadtest.measure import TurnMark
from loadtest.script import (
    KEY_MS,
    KEY_PAUSE_MS,
    Action,
    HangUp,
    HoldOff,
    HoldOn,
    PressKeys,
    Speak,
    Stepper,
    Vanish,
)
from loadtest.ticker import FRAME_S, Ticker

_CONFIGURE_MS = 2_000.0
_LAST_TRANSCRIPT_MS = 3_000.0
_KEY_SLOTS = int(KEY_MS // SLOT_MS)
_KEY_PERIOD = int((KEY_MS + KEY_PAUSE_MS) // SLOT_MS)


async def hold_call(plan: CallPlan, wire: Wire, ticker: Ticker, abandon: asyncio.Event | None = None) -> CallTape:
    """Stay until the script is over, the other side ends the call, or ``max_seconds`` are up; or until ``abandon`` is
    set. Cancelled, it hangs up first."""
    return await _Call(plan, wire, abandon).run(ticker)


class _Call:
    """A connected call (:class:`loadtest.ticker.Member`)."""

    def __init__(self, plan: CallPlan, wire: Wire, abandon: asyncio.Event | None) -> None:
        self._wire = wire
        self._ear = wire.ear
        self._sound = plan.sound
        self._linger_s = plan.linger_s
        self._abandon = abandon
        self._max_slots = max(1, int(plan.max_seconds * 1000 / SLOT_MS))
        self._script = Stepper(plan.steps, plan.patience or wire.patience, length_ms=plan.length_ms)
        self._slot_samples = wire.rate_hz * SLOT_MS // 1000
        self._silence = np.zeros(self._slot_samples, dtype=np.int16)
        self._spoken = Recording(self._slot_samples)
        self._origin_s: float | None = None
        self._frame = wire.voice.silence
        self._key: Key | None = None
        self._line: FrameTable | None = None
        self._keys = ""
        self._line_index = 0
        self._held = False
        self._finished_slot: int | None = None
        self._marks: list[TurnMark] = []
        self._skipped: list[int] = []
        self._lag_s = 0.0
        self._over: asyncio.Future[CallOver] = asyncio.get_running_loop().create_future()

    async def run(self, ticker: Ticker) -> CallTape:
        wire = self._wire
        wire.attend(lambda: self._script.turn, self._end)
        try:
            self._begin(ticker)
            over = await self._over
        except BaseException:  # Ctrl-C: the other end need not find out by itself
            ticker.leave(self)
            await wire.hang_up()
            raise
        ticker.leave(self)
        if over.cause is EndCause.VANISHED:
            await wire.vanish(self._linger_s)
        elif (failed := await wire.hang_up()) is not None:
            wire.log.note_error(failed)
        slots = min(self._spoken.slots, self._ear.slots_played)
        return CallTape(
            end_cause=over.cause,
            problem=over.problem,
            setup_ms=wire.setup_ms,
            caller=await asyncio.to_thread(self._spoken.whole, slots),
            agent=await asyncio.to_thread(self._ear.recording.whole, slots),
            marks=tuple(self._marks),
            late_slots=tuple(self._ear.late_slots),
            caller_lag_ms=self._lag_s * 1000,
            log=wire.log,
            rate_hz=wire.rate_hz,
            setup=wire.setup(),
            media=wire.media(),
            buffer=wire.buffer(),
            heard=self._ear.heard_media(),
            skipped_slots=tuple(self._skipped),
            noise_dbfs=self._ear.noise.dbfs,
        )

    def tick(self, deadline_s: float, now_s: float) -> None:
        if self._over.done():
            return
        try:
            self._tick(deadline_s, now_s)
        except CallOver as over:
            self._end(over)
        except Exception as error:  # noqa: BLE001 (it is this call's, and the ticker's other members go on)
            if not self._over.done():
                self._over.set_exception(error)

    def _begin(self, ticker: Ticker) -> None:
        try:
            self._wire.begin()
        except CallOver as over:
            self._end(over)
        if not self._over.done():
            ticker.join(self)

    def _tick(self, deadline_s: float, now_s: float) -> None:
        if self._origin_s is None:
            self._origin_s = deadline_s
            self._ear.start(deadline_s)
        slot = round((deadline_s - self._origin_s) / FRAME_S)
        self._lag_s = max(self._lag_s, now_s - deadline_s)
        self._ear.advance(deadline_s)
        if slot:
            self._wire.send_voice(self._frame, self._key)
            self._skip_to(slot)
        if slot >= self._max_slots:
            raise CallOver(EndCause.TIME_LIMIT, "the call reached its time limit")
        if self._abandon is not None and self._abandon.is_set():
            raise CallOver(EndCause.ABANDONED)
        self._step(slot)
        self._speak()

    def _skip_to(self, slot: int) -> None:
        """Between the frame just sent and this slot the ticker came too late: the line goes on after them."""
        skipped = range(self._spoken.slots, slot)
        if not skipped:
            return
        self._skipped += skipped
        for _ in skipped:
            self._spoken.add(None)
        self._wire.skip(len(skipped))
        length = len(self._keys) * _KEY_PERIOD if self._line is None else len(self._line.frames)
        if self._line_index < length:
            last = self._marks[-1]
            self._marks[-1] = replace(last, end=last.end + len(skipped) * self._slot_samples)

    def _step(self, slot: int) -> None:
        now_ms = float(slot * SLOT_MS)
        log, ear = self._wire.log, self._ear
        if now_ms < _CONFIGURE_MS and not log.ready:
            return
        action = self._script.tick(now_ms, voiced=ear.voiced, busy=ear.busy or log.responding)
        if action is not None:
            self._perform(action, slot * self._slot_samples)
        if self._script.finished:
            self._finished_slot = slot if self._finished_slot is None else self._finished_slot
            if not log.transcripts_due or (slot - self._finished_slot) * SLOT_MS >= _LAST_TRANSCRIPT_MS:
                raise CallOver(EndCause.HANGUP)

    def _perform(self, action: Action, start: int) -> None:
        match action:
            case Speak(line, kind, answer_expected):
                self._line, self._keys = self._wire.voice.lines[line], ""
                end = start + len(line.pcm)
                self._marks.append(
                    TurnMark(start, end, kind, text=line.text, code=line.code, answer_expected=answer_expected)
                )
            case PressKeys(keys, kind, answer_expected):
                self._line, self._keys = None, keys
                slots = (len(keys) - 1) * _KEY_PERIOD + 1  # until the last went down: an agent need not wait for more
                end = start + slots * self._slot_samples
                self._marks.append(TurnMark(start, end, kind, keys=True, text=keys, answer_expected=answer_expected))
            case HoldOn() | HoldOff():
                self._held, self._line, self._keys = isinstance(action, HoldOn), None, ""
                self._wire.hold(self._held)
            case Vanish():
                raise CallOver(EndCause.VANISHED)
            case HangUp():
                raise CallOver(EndCause.HANGUP)
        self._line_index = 0

    def _speak(self) -> None:
        """Choose what is spoken in this slot: recorded here, and sent as the wire carries it when the slot is over."""
        index, line = self._line_index, self._line
        self._line_index += 1
        self._frame, self._key = self._wire.voice.silence, None
        said: Pcm16 | None = None
        if line is not None and index < len(line.frames):
            self._frame, said = line.frames[index], line.sounds[index]
        elif self._keys:
            self._key = _key_of(self._keys, index)
        if self._sound is not None and not self._held:
            heard = self._ear.slot(-1) if self._ear.slots_played else self._silence
            altered = self._sound.frame(said, heard)
            if altered is not None:
                self._frame, said = self._wire.encode(altered), altered
        self._spoken.add(said)

    def _end(self, over: CallOver) -> None:
        """The first cause stands."""
        if not self._over.done():
            self._over.set_result(over)


def _key_of(keys: str, index: int) -> Key | None:
    """The key that is down in the ``index``-th slot since ``keys`` began to be pressed one after another."""
    number, slot = divmod(index, _KEY_PERIOD)
    if number >= len(keys) or slot >= _KEY_SLOTS:
        return None
    return Key(keys[number], slot, slot == _KEY_SLOTS - 1)
