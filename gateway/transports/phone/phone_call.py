"""One phone call from the moment its line has media to its recorded end, whatever wire it came by."""

from __future__ import annotations

import asyncio
import dataclasses

import msgspec
import structlog

from engines.api import Pcm16
from gateway.call import Call
from gateway.call_setup import first_config, open_call
from gateway.state import Gateway
from gateway.switchboard import Admission
from gateway.transports.phone.ear import Ear
from gateway.transports.phone.leg import PhoneLeg
from gateway.transports.phone.line import Incoming, LineError, PhoneLine
from gateway.transports.phone.routing import choose_agent
from streaming.audio.keypad_tones import KEYS
from streaming.effects import Control, HoldCaller, SendDtmf, Transfer
from streaming.events import ControlDone, Dtmf, LineHeld
from streaming.notices import Notice, TurnRecorded

_log = structlog.get_logger(__name__)

HANG_UP_S = 5.0
"""How long a line may take to be hung up and freed."""

CONTROL_S: dict[type[Control], float] = {Transfer: 120.0, SendDtmf: 20.0, HoldCaller: 20.0}
"""How long a line may take for what the session asks of it: another phone may ring, 32 keys are pressed."""

MAX_CONTROLS = 4
"""Of these under way at once. A session asks for one at a time, but may give one up before the line does."""

HANDED_OVER_S = 5.0
"""Some wires end the call as they hand it over, and say only then that they did: so long is that waited for."""


class PhoneCall:
    """The call on a line, and all that its line tells (:class:`gateway.transports.phone.line.LineEvents`).

    Whoever makes one sees to it that :meth:`run` runs, also when the line went down before it could: that is what ends
    the call and files its record. Before :meth:`run` nothing is heard or spoken.

    Raises:
        gateway.agents.agent.UnknownAgent: the wire asks for an agent that there is not.
        gateway.call_setup.CallNotSetUp: an engine does not take the call.
    """

    def __init__(self, gateway: Gateway, admission: Admission, incoming: Incoming, line: PhoneLine) -> None:
        agent = choose_agent(gateway, incoming)
        config = first_config(gateway, agent, line.abilities)
        self._gateway = gateway
        self._admission = admission
        self._line = line
        self._loop = asyncio.get_running_loop()
        self._ear = Ear()
        self._leg = PhoneLeg(line, control=self._control, notified=self._notified)
        self._tasks: asyncio.TaskGroup | None = None
        self._controls: set[asyncio.Task[None]] = set()
        self._transferring = False
        self._gone: asyncio.TimerHandle | None = None
        self._gone_for = ""
        """The line went down, for this cause, while it was handing its caller over."""
        self._call: Call = open_call(
            gateway,
            admission,
            transport=incoming.transport,
            agent_name=agent,
            config=msgspec.structs.replace(config, output_rate_hz=line.rate_hz),
            leg=self._leg,
            wire=self._leg.wire,
            incoming=incoming,
        )

    @property
    def call(self) -> Call:
        """The call itself, as the switchboard knows it."""
        return self._call

    async def run(self) -> str:
        """Answer, live, hang the line up, and return why the call ended. Cancelled, the call ends (``server_stop``),
        and the line is hung up all the same."""
        call = self._call
        structlog.contextvars.bind_contextvars(call=call.id)
        try:
            self._gateway.switchboard.register(self._admission, call)
            self._admission.connected()
            async with asyncio.TaskGroup() as self._tasks:
                if not call.finished.is_set():
                    call.answered()
                await call.finished.wait()
                for task in self._controls:
                    task.cancel()
        except asyncio.CancelledError:
            call.hang_up("server_stop")
            raise
        finally:
            self._tasks = None
            if self._gone is not None:
                self._gone.cancel()
            if not call.finished.is_set():
                call.hang_up("internal_error")
            await self._free_line()
        return self._cause

    @property
    def _cause(self) -> str:
        return self._call.record.cause or "internal_error"

    async def _free_line(self) -> None:
        """After this nothing of the line is left, or it is counted and logged."""
        self._gateway.metrics.phone_media(self._file_quality())
        try:
            async with asyncio.timeout(HANG_UP_S):
                await self._line.hang_up(self._cause)
        except TimeoutError:
            self._gateway.metrics.count("line_hang_up_timeout")
            _log.warning("a line took too long to hang up", cause=self._cause)
        except Exception as error:  # noqa: BLE001 (a line that breaks down at the end must not take its call along)
            self._line_broke(error)

    def _line_broke(self, error: Exception) -> None:
        self._gateway.metrics.count("line_defect")
        _log.error("a phone line broke down", call=self._call.id, exc_info=error)

    # --- what the line tells (LineEvents): none of these block, none raise ---------------------------------------

    def audio(self, pcm: Pcm16, rate_hz: int, at_ms: float | None = None) -> None:
        if self._tasks is None or self._call.finished.is_set():
            return
        if self._leg.held:
            return  # music, or an announcement of the exchange: nobody speaks to us
        gaps = self._ear.gaps
        try:
            blocks = self._ear.hear(pcm, rate_hz, at_ms, self._loop.time())
        except ValueError:
            self._gateway.metrics.count("caller_audio_unusable")
            return
        if self._ear.gaps > gaps:
            self._gateway.metrics.count("caller_audio_gap")
        for block in blocks:
            self._call.hear_now(block)

    def dtmf(self, digit: str) -> None:
        key = digit.upper()
        if key not in KEYS:
            self._gateway.metrics.count("key_unknown")
        elif not self._call.finished.is_set():
            self._call.handle(Dtmf(key))

    def mark_played(self, name: str, *, cleared: bool = False) -> None:
        self._call.mark_returned(name, cleared=cleared)

    def held(self, on: bool) -> None:
        if on is self._leg.held or self._call.finished.is_set():
            return
        self._leg.held = on
        _log.info("the far end put the call on hold" if on else "the far end took the call back")
        self._gateway.metrics.count("line_held" if on else "line_resumed")
        self._call.handle(LineHeld(on))
        if not on:
            self._call.writable()

    def writable(self) -> None:
        self._call.writable()

    def hung_up(self, cause: str) -> None:
        if self._call.finished.is_set() or self._gone is not None:
            return
        if self._transferring and self._tasks is not None:
            self._gone = self._loop.call_later(HANDED_OVER_S, self._call.hang_up, cause)
            self._gone_for = cause
        else:
            self._call.hang_up(cause)

    # --- what the session wants of the line ---------------------------------------------------------------------

    def _control(self, effect: Control) -> None:
        """Begin it. It ends with the call at the latest, and is answered once."""
        if self._tasks is None or self._gone is not None or len(self._controls) >= MAX_CONTROLS:
            self._gateway.metrics.count("control_failed")
            self._call.handle(ControlDone(effect.tool_call, "line_busy", "the phone line cannot do it now"))
            return
        self._transferring = self._transferring or isinstance(effect, Transfer)
        task = self._tasks.create_task(self._perform(effect), name=type(effect).__name__)
        self._controls.add(task)
        task.add_done_callback(self._controls.discard)

    async def _perform(self, effect: Control) -> None:
        done = ControlDone(effect.tool_call)
        try:
            async with asyncio.timeout(CONTROL_S[type(effect)]):
                await self._ask(effect)
        except LineError as error:
            done = ControlDone(effect.tool_call, error.code, str(error))
        except TimeoutError:
            done = ControlDone(effect.tool_call, "timeout", "the phone line did not answer in time")
        except Exception as error:  # noqa: BLE001 (it is told to the model; the call goes on)
            self._line_broke(error)
            done = ControlDone(effect.tool_call, "line_failed", "the phone line could not do it")
        if done.code is not None:
            self._gateway.metrics.count("control_failed")
            _log.warning("a line could not do what its agent asked", what=type(effect).__name__, code=done.code)
        self._call.handle(done)
        if isinstance(effect, Transfer):
            self._transferring = False
            if self._gone is not None:
                self._call.hang_up(self._gone_for)  # after the answer: if the caller was handed over, that was why

    async def _ask(self, effect: Control) -> None:
        match effect:
            case Transfer(target=target):
                await self._line.transfer(target)
            case SendDtmf(digits=digits):
                await self._line.send_dtmf(digits)
            case _:
                await self._line.hold(effect.on)

    # --- the record ---------------------------------------------------------------------------------------------

    def _notified(self, notice: Notice) -> None:
        """Nobody at the other end reads what a client would be told; the record keeps what is of use."""
        if isinstance(notice, TurnRecorded):
            self._file_quality()

    def _file_quality(self) -> dict[str, int | float | None]:
        quality: dict[str, int | float | None] = dataclasses.asdict(self._line.quality())
        self._call.record.quality = quality
        return quality
