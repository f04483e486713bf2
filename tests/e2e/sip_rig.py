"""The gateway at the end of a SIP line of tests: it says what it is told to, writes down what it hears, and at the
end of a test nothing is left of any call."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from engines.api import EngineSet, Pcm16
from engines.llm.scripted import ScriptedLlm
from engines.stt.scripted import ScriptedStt
from engines.tts.scripted import ScriptedTts
from engines.vad.scripted import EnergyStream, EnergyVad
from gateway.records.call_record import CallRecord
from gateway.settings import AgentSettings, Settings
from gateway.transports.sip.media import RtpMedia
from gateway.transports.sip.server import SipServer
from streaming.jobs import Synthesis, SynthesisChunk, Synthesize
from tests.e2e.baresip_peer import at_8_khz
from tests.gateway.transports.sip.media_rig import place_of
from tests.serving import Served, eventually, served

RATE_HZ = 16_000
ALIKE = 0.999
"""At least, of a correlation: through a transparent line."""
PIECE_SAMPLES, PART_SAMPLES = 2_000, 4_000
LINGER_S = 64.0
"""Longer than any transaction waits for what may still come of it (RFC 3261: 64 T1, 32 s)."""


class Voice(ScriptedTts):
    """Says this, at the rate of a phone line, whatever the words; without it, a tone for each word."""

    def __init__(self, says: Pcm16 | None = None) -> None:
        super().__init__(100, rate_hz=8_000)
        self._says = says

    def synthesize(self, request: Synthesize, deliver: Callable[[Synthesis], None]) -> None:
        if self._says is None:
            super().synthesize(request, deliver)
            return
        pcm = self._says.astype("<i2").tobytes()
        chunk = SynthesisChunk(request.epoch, request.segment, pcm, self.rate_hz, last=True)
        asyncio.get_running_loop().call_soon(deliver, chunk)


class Ears(EnergyVad):
    """Writes down each call's caller, at 16 kHz. ``deaf``: but takes nothing for speech, so that nobody is
    interrupted."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.calls: list[list[Pcm16]] = []
        self.open_streams = 0
        self._deaf = deaf

    def open(self, deliver: Callable[[float, int], None]) -> EnergyStream:
        blocks: list[Pcm16] = []
        self.calls.append(blocks)
        self.open_streams += 1
        return _Ear(self, blocks, (lambda _, end: deliver(0.0, end)) if self._deaf else deliver)

    def heard(self, call: int = 0) -> Pcm16:
        return np.concatenate([*self.calls[call], np.zeros(0, np.int16)])

    def same_as(self, said: Pcm16, call: int = 0) -> bool:
        """Whether ``said`` (at 8 kHz) was heard, as it is behind G.711 and in 16 kHz."""
        heard = at_8_khz(self.heard(call), RATE_HZ)
        return in_parts(said, lambda part: len(heard) >= len(part) and likeness(part, heard) >= ALIKE)


class _Ear(EnergyStream):
    def __init__(self, ears: Ears, blocks: list[Pcm16], deliver: Callable[[float, int], None]) -> None:
        super().__init__(deliver)
        self._ears, self._blocks, self._is_open = ears, blocks, True

    def feed(self, pcm: Pcm16) -> None:
        self._blocks.append(pcm)
        super().feed(pcm)

    def close(self) -> None:
        self._ears.open_streams -= self._is_open
        self._is_open = False
        super().close()


@dataclass
class Line:
    """A gateway that takes calls over SIP."""

    here: Served
    ears: Ears
    llm: ScriptedLlm
    stt: ScriptedStt
    sip: SipServer

    @property
    def port(self) -> int:
        return self.sip.ports["udp"]

    @property
    def live(self) -> list[CallRecord]:
        return list(self.here.gateway.switchboard.calls())

    @property
    def records(self) -> list[CallRecord]:
        """Of calls that have ended, the oldest first."""
        return sorted(self.here.gateway.recent, key=lambda record: record.started_at)

    def counted(self, name: str) -> int:
        value = self.here.gateway.metrics._registry.get_sample_value("offhook_events_total", {"name": name})
        return int(value or 0)

    def hang_up(self, record: CallRecord, cause: str = "agent_hung_up") -> None:
        call = self.here.gateway.switchboard.find(record.id)
        if call is not None:
            call.hang_up(cause)

    def said_by_caller(self) -> list[str]:
        return [entry.text for record in self.records for entry in record.transcript if entry.role == "user"]

    async def until(self, holds: Callable[[], Any]) -> None:
        await eventually(holds)

    def let_time_pass(self) -> None:
        """For all that SIP waits for."""
        timers = self.sip.ua.timers
        clock = timers._now_s
        timers._now_s = lambda: clock() + LINGER_S
        try:
            timers.run()
        finally:
            timers._now_s = clock

    async def empty(self) -> None:
        """Wait until no call is left, then let the time go by in which its last messages might be sent again: then
        there is no dialog, transaction, timer, port, media, nor a stream of an engine."""
        await self.here.empty()
        server = self.sip
        await eventually(lambda: server.idle)
        await eventually(lambda: not media_ports(server))
        assert not server.ua._invites
        await eventually(lambda: not server._tasks)
        self.let_time_pass()
        assert (len(server.ua.transactions), len(server.ua.timers)) == (0, 0)
        assert self.ears.open_streams == 0
        await eventually(lambda: not medias_left())


def in_parts(said: Pcm16, is_heard: Callable[[Pcm16], bool]) -> bool:
    """Whether each half of a second of ``said`` is heard without a flaw. One in four may be lost: a machine that is
    busy with something else skips a frame."""
    parts = [said[at : at + PART_SAMPLES] for at in range(0, len(said), PART_SAMPLES)]
    return sum(not is_heard(part) for part in parts) <= len(parts) // 4


def media_of(record: CallRecord) -> dict[str, int]:
    """What was counted of a call's packets."""
    assert record.quality is not None
    return {name: int(count or 0) for name, count in record.quality.items()}


def likeness(said: Pcm16, heard: Pcm16) -> float:
    """Correlation of all of ``said`` with the place in ``heard`` that begins most like it; both at 8 kHz."""
    at = place_of(said[:PIECE_SAMPLES], heard[: len(heard) - len(said) + PIECE_SAMPLES])
    return float(np.corrcoef(said, heard[at : at + len(said)])[0, 1])


def media_ports(server: SipServer) -> set[int]:
    """UDP ports of this process that are not the server's own."""
    found = {connection.laddr.port for connection in psutil.Process().net_connections("udp")}
    return found - set(server.ports.values())


def medias_left() -> list[object]:
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) is RtpMedia]


QUIET = AgentSettings(greeting="", silence_ms=300)


@contextlib.asynccontextmanager
async def sip_line(
    *,
    says: Pcm16 | None = None,
    deaf: bool = False,
    agent: AgentSettings = QUIET,
    max_calls: int = 8,
    stt: ScriptedStt | None = None,
    llm: ScriptedLlm | None = None,
    **sip: Any,
) -> AsyncIterator[Line]:
    """It answers (with a greeting, if the agent has one), says ``says`` for it, and everything is checked to be gone
    at the end."""
    ears, heard, model = Ears(deaf=deaf), stt or ScriptedStt(), llm or ScriptedLlm()
    settings = Settings.model_validate(
        {
            "preset": "null",
            "max_calls": max_calls,
            "agents": {"default": agent},
            "sip": {"enabled": True, "port": 0, **sip},
        }
    )
    async with served(EngineSet(ears, None, heard, model, Voice(says)), settings) as here:
        server = here.gateway.wires.sip
        assert server is not None
        line = Line(here, ears, model, heard, server)
        yield line
        await line.empty()
