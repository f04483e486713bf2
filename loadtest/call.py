"""One call by a simulated caller, whatever carries it: the script, both sides' recording, the turns' marks, the log.

The microphone never stops: a frame of 20 ms goes out on an absolute deadline, silence between turns included, when its
last sample would have been spoken. What comes back is heard through the wire's model of a client's playout buffer. Both
sides are recorded on one time axis whose sample 0 is the moment ``session.created`` came. How frames and events travel
is a :class:`Wire`'s business.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from loadtest.measure import VOICED_DBFS, TurnMark
from loadtest.report import MediaReport, SetupReport
from loadtest.script import CallScript, Patience, Turn
from loadtest.wire import ServerEvent, WireLog, decode_event
from streaming.audio.level import rms_dbfs

Pcm16 = npt.NDArray[np.int16]

CALL_RATE_HZ = 24_000
SLOT_MS = 20
SLOT_SAMPLES = CALL_RATE_HZ * SLOT_MS // 1000

_CONFIGURE_MS = 2_000.0
_LAST_TRANSCRIPT_MS = 3_000.0


class Transport(enum.StrEnum):
    """What carries a call; the values are part of the ``--json`` document."""

    WEBSOCKET = "websocket"
    WEBRTC = "webrtc"


class EndCause(enum.StrEnum):
    """Why a call was over; the values are part of the ``--json`` document."""

    HANGUP = "hangup"
    AGENT_HANGUP = "agent_hangup"
    TIME_LIMIT = "time_limit"
    BUSY = "busy"
    REFUSED = "refused"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    NO_MEDIA = "no_media"
    NO_SESSION = "no_session"
    STALLED = "stalled"
    CONNECTION_LOST = "connection_lost"


class CallOver(Exception):  # noqa: N818 (calls end)
    """The call ended, or never came about. ``problem`` says for a person what went wrong, if anything did."""

    def __init__(self, cause: EndCause, problem: str | None = None) -> None:
        super().__init__(problem or cause.value)
        self.cause = cause
        self.problem = problem


class MediaRoute(Protocol):
    """Stands between the two ends of a WebRTC call, as :class:`loadtest.udp_relay.RelayRoute` does."""

    def offer(self, sdp: str) -> str:
        """The offer as the server gets it."""

    async def answer(self, sdp: str) -> str:
        """The answer as the caller gets it."""


@dataclass(frozen=True, slots=True)
class CallPlan:
    """Where to call and what to do there. ``key`` goes into the Authorization header; with ``ephemeral`` it buys a
    client secret first, which then opens the call. ``route`` and ``ephemeral`` are for WebRTC alone."""

    url: str
    turns: tuple[Turn, ...]
    agent: str | None = None
    key: str | None = None
    max_seconds: float = 120.0
    patience: Patience | None = None
    ephemeral: bool = False
    route: MediaRoute | None = None


@dataclass(frozen=True, slots=True)
class CallTape:
    """What happened. ``caller`` and ``agent`` are equally long and sample-aligned, mono int16 at 24 kHz; sample 0 is
    the moment the session began. ``caller_lag_ms`` is the worst lateness of this process at its own deadlines: times
    are doubtful where it is large. ``problem`` says for a person what went wrong, if anything did."""

    end_cause: EndCause
    problem: str | None
    setup_ms: float | None
    caller: Pcm16
    agent: Pcm16
    marks: tuple[TurnMark, ...]
    late_slots: tuple[int, ...]
    caller_lag_ms: float
    log: WireLog
    setup: SetupReport | None = None
    media: MediaReport | None = None


def no_call(over: CallOver) -> CallTape:
    """The tape of a call that did not come about."""
    empty = np.zeros(0, dtype=np.int16)
    return CallTape(over.cause, over.problem, None, empty, empty, (), (), 0.0, WireLog())


@dataclass(frozen=True, slots=True)
class Voice:
    """The caller's lines as the wire carries them, one entry a frame of 20 ms, and a frame of silence."""

    lines: tuple[Sequence[bytes], ...]
    silence: bytes


class Ear(Protocol):
    """What the caller hears, slot by slot of 20 ms from the moment the session began."""

    @property
    def late_slots(self) -> Sequence[int]:
        """Slots that were silent because audio came late."""

    @property
    def busy(self) -> bool:
        """The agent will be heard for longer than the buffer's own delay."""

    def advance(self, now_s: float) -> None:
        """Play every slot that began before ``now_s``."""

    def slot(self, index: int) -> Pcm16:
        """What was heard in a slot that is over."""

    def heard(self) -> Pcm16:
        """Everything heard so far."""


class Wire(Protocol):
    """A connected call, ``created`` being its first event, received at ``origin_s`` on the loop's clock. Everything
    that waits raises :class:`CallOver` once the call is over."""

    created: ServerEvent
    origin_s: float
    setup_ms: float
    voice: Voice
    formats: Mapping[str, Any]
    """What ``session.update`` must say of each direction's audio."""

    @property
    def ear(self) -> Ear: ...

    async def send_voice(self, frame: bytes) -> None: ...

    async def send_event(self, event: Mapping[str, object]) -> None: ...

    async def receive(self) -> str | bytes:
        """The next message of the server."""

    async def on_event(self, event: ServerEvent, log: WireLog) -> None:
        """What an event means for the sound, after ``log`` has noted it."""

    async def hang_up(self) -> str | None:
        """Tell the server, if it takes telling; returns what failed. The call is over after it, and :meth:`receive`
        says so."""

    def setup(self) -> SetupReport | None: ...

    def media(self) -> MediaReport | None: ...


def frames_of(pcm: Pcm16) -> list[Pcm16]:
    """A line in frames of 20 ms, the last filled up with silence."""
    padded = np.pad(pcm, (0, -len(pcm) % SLOT_SAMPLES))
    return list(padded.reshape(-1, SLOT_SAMPLES))


async def hold_call(plan: CallPlan, wire: Wire) -> CallTape:
    """Stay until the script is over, the other side ends the call, or ``max_seconds`` are up."""
    return await _Call(plan, wire).run()


class _Call:
    """A connected call: one task hears, one speaks and steps the script."""

    def __init__(self, plan: CallPlan, wire: Wire) -> None:
        self._wire = wire
        self._clock = asyncio.get_running_loop().time
        self._max_slots = max(1, int(plan.max_seconds * 1000 / SLOT_MS))
        self._script = CallScript(plan.turns, plan.patience)
        self._log = WireLog()
        self._frames = [frames_of(turn.pcm) for turn in plan.turns]
        self._silence = np.zeros(SLOT_SAMPLES, dtype=np.int16)
        self._line_slot = 0
        self._spoken: list[Pcm16] = []
        self._marks: list[TurnMark] = []
        self._lag_s = 0.0
        self._ended: CallOver | None = None

    async def run(self) -> CallTape:
        self._log.note(self._wire.created, -1)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._hear())
                tasks.create_task(self._speak())
        except asyncio.CancelledError:  # Ctrl-C: the other end need not find out by itself
            await self._wire.hang_up()
            raise
        over = self._ended or CallOver(EndCause.HANGUP)
        agent = self._wire.ear.heard()
        caller = np.concatenate(self._spoken) if self._spoken else agent[:0]
        length = min(len(caller), len(agent))
        return CallTape(
            end_cause=over.cause,
            problem=over.problem,
            setup_ms=self._wire.setup_ms,
            caller=caller[:length],
            agent=agent[:length],
            marks=tuple(self._marks),
            late_slots=tuple(self._wire.ear.late_slots),
            caller_lag_ms=self._lag_s * 1000,
            log=self._log,
            setup=self._wire.setup(),
            media=self._wire.media(),
        )

    async def _hear(self) -> None:
        """Until the call is ended by either side."""
        try:
            while True:
                message = await self._wire.receive()
                try:
                    event = decode_event(message)
                except msgspec.MsgspecError as error:
                    self._log.note_error(f"malformed event: {error}")
                    continue
                self._log.note(event, self._script.turn)
                await self._wire.on_event(event, self._log)
        except CallOver as over:
            self._end(over)

    async def _speak(self) -> None:
        try:
            await self._wire.send_event(_session_update(self._wire.formats))
            await self._converse()
        except CallOver as over:
            self._end(over)
        failed = await self._wire.hang_up()
        if failed is not None:
            self._log.note_error(failed)

    async def _converse(self) -> None:
        wire = self._wire
        finished_slot: int | None = None
        payload = wire.voice.silence
        for slot in range(self._max_slots):
            await self._until(slot)
            if self._ended:
                return
            if slot:
                await wire.send_voice(payload)
            turn = self._step(slot)
            if turn is not None:
                start = slot * SLOT_SAMPLES
                self._marks.append(TurnMark(start, start + len(turn.pcm), turn.barge_in_after_ms is not None))
                self._line_slot = slot
            payload = self._next_frame(slot)
            if self._script.finished:
                finished_slot = slot if finished_slot is None else finished_slot
                if not self._log.transcripts_due or (slot - finished_slot) * SLOT_MS >= _LAST_TRANSCRIPT_MS:
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
        if not self._log.configured and not self._log.errors and now_ms < _CONFIGURE_MS:
            return None
        voiced = slot > 0 and rms_dbfs(self._wire.ear.slot(slot - 1)) >= VOICED_DBFS
        return self._script.tick(now_ms, voiced=voiced, busy=self._wire.ear.busy or self._log.responding)

    def _next_frame(self, slot: int) -> bytes:
        """What is spoken in this slot: recorded here, and returned as the wire carries it."""
        turn, index = self._script.turn, slot - self._line_slot
        if turn < 0 or index >= len(self._frames[turn]):
            self._spoken.append(self._silence)
            return self._wire.voice.silence
        self._spoken.append(self._frames[turn][index])
        return self._wire.voice.lines[turn][index]

    def _end(self, over: CallOver) -> None:
        """The first cause stands."""
        self._ended = self._ended or over


def _session_update(formats: Mapping[str, Any]) -> dict[str, object]:
    audio = {direction: dict(formats.get(direction, {})) for direction in ("input", "output")}
    audio["input"]["transcription"] = {"model": "whisper-1"}
    return {"type": "session.update", "session": {"type": "realtime", "audio": {k: v for k, v in audio.items() if v}}}
