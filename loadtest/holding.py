"""Stay on a call: one task listens, one speaks and steps the script.

The microphone never stops: a frame of 20 ms goes out on an absolute deadline, silence between turns included, when its
last sample would have been spoken. What comes back is heard through the wire's model of a playout buffer. Both sides
are recorded on one time axis.
"""

from __future__ import annotations

import asyncio

import numpy as np

from loadtest.call import SLOT_MS, CallOver, CallPlan, CallTape, EndCause, Key, Pcm16, Wire, frames_of
from loadtest.measure import VOICED_DBFS, TurnMark
from loadtest.script import KEY_MS, KEY_PAUSE_MS, CallScript, Turn, TurnKind
from streaming.audio.level import rms_dbfs

_CONFIGURE_MS = 2_000.0
_LAST_TRANSCRIPT_MS = 3_000.0
_KEY_SLOTS = int(KEY_MS // SLOT_MS)
_KEY_PERIOD = int((KEY_MS + KEY_PAUSE_MS) // SLOT_MS)


async def hold_call(plan: CallPlan, wire: Wire) -> CallTape:
    """Stay until the script is over, the other side ends the call, or ``max_seconds`` are up."""
    return await _Call(plan, wire).run()


class _Call:
    """A connected call."""

    def __init__(self, plan: CallPlan, wire: Wire) -> None:
        self._wire = wire
        self._clock = asyncio.get_running_loop().time
        self._max_slots = max(1, int(plan.max_seconds * 1000 / SLOT_MS))
        self._script = CallScript(plan.turns, plan.patience or wire.patience)
        self._turns = plan.turns
        self._frames = [frames_of(turn.pcm, wire.rate_hz) for turn in plan.turns]
        self._slot_samples = wire.rate_hz * SLOT_MS // 1000
        self._silence = np.zeros(self._slot_samples, dtype=np.int16)
        self._line_slot = 0
        self._spoken: list[Pcm16] = []
        self._marks: list[TurnMark] = []
        self._lag_s = 0.0
        self._ended: CallOver | None = None

    async def run(self) -> CallTape:
        wire = self._wire
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listen())
                tasks.create_task(self._speak())
        except asyncio.CancelledError:  # Ctrl-C: the other end need not find out by itself
            await wire.hang_up()
            raise
        over = self._ended or CallOver(EndCause.HANGUP)
        agent = wire.ear.heard()
        caller = np.concatenate(self._spoken) if self._spoken else agent[:0]
        length = min(len(caller), len(agent))
        return CallTape(
            end_cause=over.cause,
            problem=over.problem,
            setup_ms=wire.setup_ms,
            caller=caller[:length],
            agent=agent[:length],
            marks=tuple(self._marks),
            late_slots=tuple(wire.ear.late_slots),
            caller_lag_ms=self._lag_s * 1000,
            log=wire.log,
            rate_hz=wire.rate_hz,
            setup=wire.setup(),
            media=wire.media(),
            buffer=wire.buffer(),
        )

    async def _listen(self) -> None:
        """Until the call is ended by either side."""
        try:
            await self._wire.listen(lambda: self._script.turn)
        except CallOver as over:
            self._end(over)

    async def _speak(self) -> None:
        try:
            await self._wire.begin()
            await self._converse()
        except CallOver as over:
            self._end(over)
        failed = await self._wire.hang_up()
        if failed is not None:
            self._wire.log.note_error(failed)

    async def _converse(self) -> None:
        wire = self._wire
        finished_slot: int | None = None
        payload, key = wire.voice.silence, None
        for slot in range(self._max_slots):
            await self._until(slot)
            if self._ended:
                return
            if slot:
                await wire.send_voice(payload, key)
            turn = self._step(slot)
            if turn is not None:
                self._mark(turn, slot)
            payload, key = self._next_frame(slot)
            if self._script.finished:
                finished_slot = slot if finished_slot is None else finished_slot
                if not wire.log.transcripts_due or (slot - finished_slot) * SLOT_MS >= _LAST_TRANSCRIPT_MS:
                    self._end(CallOver(EndCause.HANGUP))
                    break
        else:
            self._end(CallOver(EndCause.TIME_LIMIT, "the call reached its time limit"))
        wire.ear.advance(wire.origin_s + len(self._spoken) * SLOT_MS / 1000)

    async def _until(self, slot: int) -> None:
        """Sleep until a slot begins, then play what the ear heard up to it."""
        deadline_s = self._wire.origin_s + slot * SLOT_MS / 1000
        await asyncio.sleep(max(0.0, deadline_s - self._clock()))
        self._lag_s = max(self._lag_s, self._clock() - deadline_s)
        self._wire.ear.advance(deadline_s)

    def _step(self, slot: int) -> Turn | None:
        now_ms = float(slot * SLOT_MS)
        log, ear = self._wire.log, self._wire.ear
        if not log.ready and now_ms < _CONFIGURE_MS:
            return None
        voiced = slot > 0 and rms_dbfs(ear.slot(slot - 1)) >= VOICED_DBFS
        return self._script.tick(now_ms, voiced=voiced, busy=ear.busy or log.responding)

    def _mark(self, turn: Turn, slot: int) -> None:
        start = slot * self._slot_samples
        cuts = turn.barge_in_after_ms is not None
        if turn.keys:
            slots = (len(turn.keys) - 1) * _KEY_PERIOD + 1  # until the last went down: an agent need not wait for more
            end = start + slots * self._slot_samples
            self._marks.append(TurnMark(start, end, "interrupt" if cuts else "press", keys=True, text=turn.keys))
        else:
            kind: TurnKind = "interrupt" if cuts else "say"
            self._marks.append(TurnMark(start, start + len(turn.pcm), kind, text=turn.text))
        self._line_slot = slot

    def _next_frame(self, slot: int) -> tuple[bytes, Key | None]:
        """What is spoken in this slot: recorded here, and returned as the wire carries it."""
        turn, index = self._script.turn, slot - self._line_slot
        if turn >= 0 and index < len(self._frames[turn]):
            self._spoken.append(self._frames[turn][index])
            return self._wire.voice.lines[turn][index], None
        self._spoken.append(self._silence)
        return self._wire.voice.silence, _key_of(self._turns[turn].keys, index) if turn >= 0 else None

    def _end(self, over: CallOver) -> None:
        """The first cause stands."""
        self._ended = self._ended or over


def _key_of(keys: str, index: int) -> Key | None:
    """The key that is down in the ``index``-th slot of a turn that presses ``keys`` one after another."""
    number, slot = divmod(index, _KEY_PERIOD)
    if number >= len(keys) or slot >= _KEY_SLOTS:
        return None
    return Key(keys[number], slot, slot == _KEY_SLOTS - 1)
