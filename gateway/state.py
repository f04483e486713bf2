"""What every part of a running gateway reaches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engines.api import EngineSet
from gateway.admission import Load, LoadGate
from gateway.agents.agent import Agents
from gateway.bridge_settings import AudioSocketSettings
from gateway.call_desk import CallDesk
from gateway.outbound_book import OutboundBook
from gateway.phrases import Phrases
from gateway.records.recent import RecentCalls
from gateway.settings import Settings
from gateway.switchboard import Switchboard
from gateway.telemetry.history import History, lanes_of
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.traces_context import CallTrace, asked_in
from gateway.transports.asterisk.desk import AsteriskDesk

if TYPE_CHECKING:
    from gateway.telemetry.traces import Traces
    from gateway.transports.sip.server import SipServer


@dataclass(slots=True)
class Consoles:
    """How many operators look."""

    open: int = 0


@dataclass(slots=True)
class Wires:
    """What is open beside the web server."""

    sip: SipServer | None = None
    traces: Traces | None = None


@dataclass(frozen=True, slots=True)
class Gateway:
    """At ``app.state.gateway`` once the engines are warm; until then nothing under ``/v1`` is served."""

    settings: Settings
    engines: EngineSet
    agents: Agents
    switchboard: Switchboard
    recent: RecentCalls
    metrics: Metrics
    phrases: Phrases
    strict: bool = False
    """Raise a call's defects where they happen (tests) in place of ending its turn."""
    notice: str = ""
    """What everybody who looks must know: that engines are fakes."""
    desk: CallDesk = field(default_factory=CallDesk)
    history: History = field(default_factory=History)
    consoles: Consoles = field(default_factory=Consoles)
    outbound: OutboundBook = field(default_factory=OutboundBook.of)
    wires: Wires = field(default_factory=Wires)
    asterisk: AsteriskDesk = field(default_factory=lambda: AsteriskDesk.of(AudioSocketSettings()))
    gate: LoadGate | None = None
    """None: calls are not refused by load."""

    def begin_trace(self, *, asked: bool) -> CallTrace | None:
        """For the record of a call that begins; None where calls are not traced. ``asked``: the request that is being
        served is for this call."""
        if self.wires.traces is None:
            return None
        return self.wires.traces.begin(asked_in.get() if asked else None)

    def lagged(self, lag_s: float) -> None:
        """The event loop was busy for so long."""
        self.metrics.lagged(lag_s)
        self.history.lagged(lag_s)
        if self.gate is not None:
            self.gate.lagged(lag_s)

    def load(self) -> Load:
        """For the gate."""
        frames, late_frames = self.metrics.frames_sent()
        return Load(frames, late_frames, lanes_of(self.engines.health()))
