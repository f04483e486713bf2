"""One call over the OpenAI Realtime (GA) WebSocket, as an unprivileged client makes it.

The microphone never stops: 20 ms frames of 24 kHz PCM go out on absolute deadlines, silence between turns included,
each sent when its last sample would have been spoken. What comes back is played through
:class:`~loadtest.playout.Playout`, and both sides are recorded on one time axis.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
import numpy as np
import numpy.typing as npt
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from loadtest.measure import VOICED_DBFS, TurnMark
from loadtest.playout import Playout
from loadtest.script import CallScript, Patience, Turn
from loadtest.wire import ServerEvent, WireLog, decode_event
from streaming.audio.level import rms_dbfs

Pcm16 = npt.NDArray[np.int16]

CALL_RATE_HZ = 24_000
SLOT_MS = 20
SLOT_SAMPLES = CALL_RATE_HZ * SLOT_MS // 1000

_CONNECT_S = 10.0
_CONFIGURE_MS = 2_000.0
_SEND_S = 5.0
_LAST_TRANSCRIPT_MS = 3_000.0
_MAX_MESSAGE = 24 * 1024 * 1024

_SESSION_UPDATE = {
    "type": "session.update",
    "session": {
        "type": "realtime",
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": CALL_RATE_HZ},
                "transcription": {"model": "whisper-1"},
            },
            "output": {"format": {"type": "audio/pcm", "rate": CALL_RATE_HZ}},
        },
    },
}


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
    NO_SESSION = "no_session"
    STALLED = "stalled"
    CONNECTION_LOST = "connection_lost"


@dataclass(frozen=True, slots=True)
class CallPlan:
    """Where to call and what to do there. ``key`` goes into the Authorization header."""

    url: str
    turns: tuple[Turn, ...]
    agent: str | None = None
    key: str | None = None
    max_seconds: float = 120.0
    patience: Patience | None = None


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


def call_url(url: str, agent: str | None) -> str:
    """The WebSocket address: http becomes ws, and ``agent`` joins the query. Raises :class:`ValueError`."""
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(parts.scheme)
    if scheme is None or not parts.netloc:
        raise ValueError(f"not a ws:// or wss:// URL: {url}")
    query = parse_qsl(parts.query, keep_blank_values=True)
    if agent is not None:
        query = [(name, value) for name, value in query if name != "agent"] + [("agent", agent)]
    return urlunsplit((scheme, parts.netloc, parts.path, urlencode(query), ""))


async def place_realtime_call(plan: CallPlan) -> CallTape:
    """Place the call and stay until its script is over, the other side ends it, or ``max_seconds`` are up.

    Failures to connect are reported in the tape, not raised. Raises :class:`ValueError` for a URL that is none.
    """
    url = call_url(plan.url, plan.agent)
    headers = {"Authorization": f"Bearer {plan.key}"} if plan.key else None
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    try:
        async with asyncio.timeout(_CONNECT_S):
            connection = await connect(
                url, additional_headers=headers, compression=None, max_size=_MAX_MESSAGE, close_timeout=2
            )
    except InvalidStatus as error:
        status = error.response.status_code
        return _no_call(*_refusal(status, (error.response.body or b"")[:300].decode("utf-8", "replace"), plan))
    except (OSError, TimeoutError, InvalidHandshake, InvalidURI) as error:
        return _no_call(EndCause.REFUSED, f"no answer at {plan.url}: {error or type(error).__name__}")
    async with connection:
        try:
            async with asyncio.timeout(_CONNECT_S):
                first = decode_event(await connection.recv())
        except (TimeoutError, msgspec.MsgspecError):
            return _no_call(EndCause.NO_SESSION, "the server did not begin with session.created")
        except ConnectionClosed as closed:
            return _no_call(*_closing(closed))
        if first.type != "session.created":
            return _no_call(EndCause.NO_SESSION, f"the server began with {first.type}, not with session.created")
        now_s = loop.time()
        return await _RealtimeCall(plan, connection, origin_s=now_s, setup_ms=(now_s - began_s) * 1000).run(first)


class _RealtimeCall:
    """A connected call: one task hears, one speaks and steps the script."""

    def __init__(self, plan: CallPlan, connection: ClientConnection, *, origin_s: float, setup_ms: float) -> None:
        self._connection = connection
        self._clock = asyncio.get_running_loop().time
        self._origin_s = origin_s
        self._setup_ms = setup_ms
        self._max_slots = max(1, int(plan.max_seconds * 1000 / SLOT_MS))
        self._script = CallScript(plan.turns, plan.patience)
        self._playout = Playout(origin_s, rate_hz=CALL_RATE_HZ, slot_ms=SLOT_MS)
        self._log = WireLog()
        self._spoken: list[Pcm16] = []
        self._line = np.zeros(0, dtype=np.int16)
        self._marks: list[TurnMark] = []
        self._lag_s = 0.0
        self._ended: tuple[EndCause, str | None] | None = None

    async def run(self, created: ServerEvent) -> CallTape:
        self._log.note(created, -1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hear())
            tasks.create_task(self._converse())
        cause, problem = self._ended or (EndCause.HANGUP, None)
        agent = self._playout.heard()
        caller = np.concatenate(self._spoken) if self._spoken else agent[:0]
        length = min(len(caller), len(agent))
        return CallTape(
            end_cause=cause,
            problem=problem,
            setup_ms=self._setup_ms,
            caller=caller[:length],
            agent=agent[:length],
            marks=tuple(self._marks),
            late_slots=tuple(self._playout.late_slots),
            caller_lag_ms=self._lag_s * 1000,
            log=self._log,
        )

    async def _hear(self) -> None:
        """Until the connection is closed by either side."""
        try:
            async for message in self._connection:
                try:
                    event = decode_event(message)
                except msgspec.MsgspecError as error:
                    self._log.note_error(f"malformed event: {error}")
                    continue
                await self._on_event(event)
            self._end(EndCause.AGENT_HANGUP, None)
        except ConnectionClosed as closed:
            self._end(*_closing(closed))

    async def _on_event(self, event: ServerEvent) -> None:
        now_s = self._clock()
        self._log.note(event, self._script.turn)
        match event.type:
            case "response.output_audio.delta":
                try:
                    pcm = np.frombuffer(base64.b64decode(event.delta or "", validate=True), dtype="<i2")
                except (binascii.Error, ValueError):
                    self._log.note_error("malformed audio delta")
                else:
                    self._playout.push(event.item_id or "", pcm.astype(np.int16, copy=False), now_s)
            case "response.output_audio.done":
                self._playout.finish(event.item_id or "", now_s)
            case "response.done":
                for item_id in self._log.items_of((event.response and event.response.id) or ""):
                    self._playout.finish(item_id, now_s)
            case "input_audio_buffer.speech_started" | "output_audio_buffer.cleared":
                await self._flush(now_s)

    async def _flush(self, now_s: float) -> None:
        """Stop the sound and say what was heard: over a WebSocket, only the client knows (Realtime guide, truncate)."""
        for cut in self._playout.flush(now_s):
            truncate = {"item_id": cut.item_id, "content_index": 0, "audio_end_ms": cut.played_ms}
            await self._send({"type": "conversation.item.truncate", **truncate})

    async def _converse(self) -> None:
        await self._send(_SESSION_UPDATE)
        finished_slot: int | None = None
        for slot in range(self._max_slots):
            await self._until(slot)
            if self._ended:
                return
            if slot and not await self._send_frame(self._spoken[-1]):
                return
            turn = self._step(slot)
            if turn is not None:
                start = slot * SLOT_SAMPLES
                self._marks.append(TurnMark(start, start + len(turn.pcm), turn.barge_in_after_ms is not None))
                self._line = turn.pcm
            self._spoken.append(self._next_frame())
            if self._script.finished:
                finished_slot = slot if finished_slot is None else finished_slot
                if not self._log.transcripts_due or (slot - finished_slot) * SLOT_MS >= _LAST_TRANSCRIPT_MS:
                    self._end(EndCause.HANGUP, None)
                    break
        else:
            self._end(EndCause.TIME_LIMIT, "the call reached its time limit")
        self._playout.advance(self._origin_s + len(self._spoken) * SLOT_MS / 1000)
        await self._connection.close()

    async def _until(self, slot: int) -> None:
        """Sleep until a slot begins, then play what the ear heard up to it."""
        deadline_s = self._origin_s + slot * SLOT_MS / 1000
        await asyncio.sleep(max(0.0, deadline_s - self._clock()))
        self._lag_s = max(self._lag_s, self._clock() - deadline_s)
        self._playout.advance(deadline_s)

    def _step(self, slot: int) -> Turn | None:
        now_ms = float(slot * SLOT_MS)
        if not self._log.configured and not self._log.errors and now_ms < _CONFIGURE_MS:
            return None
        voiced = slot > 0 and rms_dbfs(self._playout.slot(slot - 1)) >= VOICED_DBFS
        return self._script.tick(now_ms, voiced=voiced, busy=self._playout.busy or self._log.responding)

    def _next_frame(self) -> Pcm16:
        frame, self._line = self._line[:SLOT_SAMPLES], self._line[SLOT_SAMPLES:]
        if len(frame) < SLOT_SAMPLES:
            frame = np.concatenate((frame, np.zeros(SLOT_SAMPLES - len(frame), dtype=np.int16)))
        return frame

    async def _send_frame(self, frame: Pcm16) -> bool:
        audio = base64.b64encode(frame.astype("<i2", copy=False).tobytes()).decode("ascii")
        return await self._send({"type": "input_audio_buffer.append", "audio": audio})

    async def _send(self, event: Mapping[str, object]) -> bool:
        """False once the call is over. A server that reads nothing for 5 s ends it."""
        try:
            async with asyncio.timeout(_SEND_S):
                await self._connection.send(msgspec.json.encode(event).decode())
        except ConnectionClosed:
            return False  # the hearing task knows why
        except TimeoutError:
            self._end(EndCause.STALLED, "the server stopped reading")
            await self._connection.close()
            return False
        return True

    def _end(self, cause: EndCause, problem: str | None) -> None:
        """The first cause stands."""
        self._ended = self._ended or (cause, problem)


def _no_call(cause: EndCause, problem: str | None) -> CallTape:
    empty = np.zeros(0, dtype=np.int16)
    return CallTape(cause, problem, None, empty, empty, (), (), 0.0, WireLog())


def _refusal(status: int, body: str, plan: CallPlan) -> tuple[EndCause, str]:
    said = f" ({' '.join(body.split())})" if body.strip() else ""
    match status:
        case 401:
            hint = "the key is not accepted" if plan.key else "a key is needed: give --key"
            return EndCause.UNAUTHORIZED, f"401 from {plan.url}: {hint}{said}"
        case 403:
            return EndCause.FORBIDDEN, f"403 from {plan.url}: not allowed{said}"
        case 404:
            hint = f"no agent named {plan.agent}" if plan.agent else "no such path or agent"
            return EndCause.NOT_FOUND, f"404 from {plan.url}: {hint}{said}"
        case 503:
            return EndCause.BUSY, f"503 from {plan.url}: busy{said}"
        case _:
            return EndCause.REFUSED, f"{status} from {plan.url}{said}"


def _closing(closed: ConnectionClosed) -> tuple[EndCause, str | None]:
    code = closed.rcvd.code if closed.rcvd else None
    reason = closed.rcvd.reason if closed.rcvd else ""
    match code:
        case 1013:
            return EndCause.BUSY, f"the gateway is busy{f': {reason}' if reason else ''}"
        case 1000 | 1001:
            return EndCause.AGENT_HANGUP, None
        case None:
            return EndCause.CONNECTION_LOST, "the connection was lost"
        case _:
            return EndCause.CONNECTION_LOST, f"closed by the server with {code}{f': {reason}' if reason else ''}"
