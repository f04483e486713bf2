"""What is known of one call: who said what, how long each turn took, how it ended. Bounded, whatever the call does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import msgspec

from streaming.turn_times import TurnTimes

MAX_ENTRIES = 500
MAX_TURNS = 500
MAX_ENTRY_CHARACTERS = 16_000

CallState = Literal["ringing", "answered", "ended"]


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """``text`` is what was said by the caller, or heard of the agent: ``cut`` when the caller cut in. ``at_ms``
    counts from the start of the call."""

    item_id: str
    role: str
    text: str
    cut: bool
    at_ms: float


class CallRecord:
    """Written by the call that it is of; read by ``/v1/calls``. Times come from the caller's own clock, as
    milliseconds since the record was made."""

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 (a keyword, and what every view calls it)
        transport: str,
        agent: str | None,
        started_at: datetime,
    ) -> None:
        self.id = id
        self.transport = transport
        self.agent = agent
        self.started_at = started_at
        self.state: CallState = "ringing"
        self.phase: str | None = None
        """What the call does now (listening, thinking, speaking); whatever its session says."""
        self.answered_ms: float | None = None
        self.ended_ms: float | None = None
        self.cause: str | None = None
        self.entries_dropped = 0
        self.turns_dropped = 0
        self._entries: dict[str, TranscriptEntry] = {}
        self._turns: dict[str, TurnTimes] = {}

    @property
    def transcript(self) -> tuple[TranscriptEntry, ...]:
        return tuple(self._entries.values())

    @property
    def turns(self) -> tuple[TurnTimes, ...]:
        return tuple(self._turns.values())

    def answered(self, at_ms: float) -> None:
        if self.state == "ringing":
            self.state, self.answered_ms = "answered", at_ms

    def ended(self, cause: str, at_ms: float) -> None:
        """The first cause stands."""
        if self.state != "ended":
            self.state, self.cause, self.ended_ms = "ended", cause, at_ms

    def say(self, item_id: str, role: str, text: str, *, cut: bool = False, at_ms: float) -> None:
        """Add an entry, or replace the text of the one with this id (it keeps its place and time)."""
        known = self._entries.get(item_id)
        at_ms = at_ms if known is None else known.at_ms
        self._entries[item_id] = TranscriptEntry(item_id, role, text[:MAX_ENTRY_CHARACTERS], cut, at_ms)
        if len(self._entries) > MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]
            self.entries_dropped += 1

    def forget(self, item_id: str) -> None:
        """The client deleted the item."""
        self._entries.pop(item_id, None)

    def turn(self, times: TurnTimes) -> TurnTimes | None:
        """File a turn's times; a later record of the same response replaces the earlier one, which is returned."""
        before = self._turns.get(times.response_id)
        self._turns[times.response_id] = times
        if len(self._turns) > MAX_TURNS:
            del self._turns[next(iter(self._turns))]
            self.turns_dropped += 1
        return before

    def summary(self) -> dict[str, Any]:
        """One row of ``GET /v1/calls``."""
        return {
            "id": self.id,
            "object": "call",
            "transport": self.transport,
            "agent": self.agent,
            "state": self.state,
            "phase": None if self.state == "ended" else self.phase,
            "started_at": self.started_at.isoformat(timespec="milliseconds"),
            "answered_ms": _rounded(self.answered_ms),
            "ended_ms": _rounded(self.ended_ms),
            "cause": self.cause,
            "turn_count": len(self._turns) + self.turns_dropped,
        }

    def view(self) -> dict[str, Any]:
        """All of ``GET /v1/calls/{id}``."""
        return self.summary() | {
            "transcript": [
                {"item_id": e.item_id, "role": e.role, "text": e.text, "cut": e.cut, "at_ms": _rounded(e.at_ms)}
                for e in self._entries.values()
            ],
            "transcript_dropped": self.entries_dropped,
            "turns": [turn_view(times) for times in self._turns.values()],
            "turns_dropped": self.turns_dropped,
        }


def turn_view(times: TurnTimes) -> dict[str, Any]:
    """The latency record of one turn: every field of :class:`TurnTimes`, milliseconds rounded to 0.1."""
    return {
        name: _rounded(value) if isinstance(value, float) else value
        for name, value in msgspec.structs.asdict(times).items()
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 1)
