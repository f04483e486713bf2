"""What is known of one call: who said what, how long each turn took, how it ended. Bounded, whatever the call does."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import msgspec

from gateway.telemetry.traces_context import CallTrace
from streaming.turn_times import TurnTimes

MAX_ENTRIES = 500
MAX_TURNS = 500
MAX_ENTRY_CHARACTERS = 16_000
MAX_PARTIALS = 4
"""Of what is being said now: a caller and an agent, and such as were given up without a word."""

Direction = Literal["inbound", "outbound"]
CallState = Literal["dialling", "ringing", "answered", "ended"]
"""``dialling``: a call that we place, of which the other side has not said yet that it rings."""


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """``text`` is what was said by the caller, or heard of the agent: ``cut`` when the caller cut in, and ``unheard``
    what would have come then. ``at_ms`` counts from the start of the call."""

    item_id: str
    role: str
    text: str
    cut: bool
    at_ms: float
    unheard: str = ""

    def view(self) -> dict[str, Any]:
        said = {"item_id": self.item_id, "role": self.role, "text": self.text, "cut": self.cut}
        return said | {"at_ms": _rounded(self.at_ms)} | ({"unheard": self.unheard} if self.unheard else {})


@dataclass(frozen=True, slots=True)
class Parties:
    """Who called whom by phone, and the other side's id of the call; empty where its wire does not say."""

    caller: str
    dialled: str
    wire_id: str


@dataclass(frozen=True, slots=True)
class Partial:
    """What is being said now, as far as it is known."""

    item_id: str
    role: str
    text: str
    at_ms: float


@dataclass(frozen=True, slots=True)
class Changes:
    """What of a record is new since a version. ``kept`` are the ids that are left where entries were taken out;
    ``missed``: there are more new entries or turns than these."""

    entries: Sequence[TranscriptEntry]
    turns: Sequence[TurnTimes]
    kept: Sequence[str] | None
    missed: bool


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
        direction: Direction = "inbound",
        parties: Parties | None = None,
        trace: CallTrace | None = None,
    ) -> None:
        self.id = id
        self.transport = transport
        self.agent = agent
        self.started_at = started_at
        self.direction: Direction = direction
        self.parties = parties
        self.trace = trace
        """Set where calls are traced."""
        self.quality: dict[str, int | float | None] | None = None
        """Of the media of a phone line, as last told (:class:`gateway.transports.phone.line.Quality`)."""
        self.state: CallState = "ringing"
        self.version = 0
        """Grows with every change."""
        self.answered_ms: float | None = None
        self.ended_ms: float | None = None
        self.cause: str | None = None
        self.entries_dropped = 0
        self.turns_dropped = 0
        self._entries: dict[str, TranscriptEntry] = {}
        self._turns: dict[str, TurnTimes] = {}
        self._partials: dict[str, Partial] = {}
        self._phase: str | None = None
        # Ids with the version of their last change, the latest last.
        self._entry_versions: dict[str, int] = {}
        self._turn_versions: dict[str, int] = {}
        self._forgot_in = 0

    @property
    def phase(self) -> str | None:
        """What the call does now (listening, thinking, speaking); whatever its session says."""
        return self._phase

    @phase.setter
    def phase(self, phase: str | None) -> None:
        if phase != self._phase:
            self._phase = phase
            self.version += 1

    @property
    def partials(self) -> tuple[Partial, ...]:
        return tuple(self._partials.values())

    @property
    def transcript(self) -> tuple[TranscriptEntry, ...]:
        return tuple(self._entries.values())

    @property
    def turns(self) -> tuple[TurnTimes, ...]:
        return tuple(self._turns.values())

    def rings(self) -> None:
        """Where we called."""
        if self.state == "dialling":
            self.state = "ringing"
            self.version += 1

    def answered(self, at_ms: float) -> None:
        if self.state in ("dialling", "ringing"):
            self.state, self.answered_ms = "answered", at_ms
            self.version += 1

    def ended(self, cause: str, at_ms: float) -> None:
        """The first cause stands."""
        if self.state != "ended":
            self.state, self.cause, self.ended_ms = "ended", cause, at_ms
            self._partials.clear()
            self.version += 1

    def partly(self, item_id: str, role: str, more: str, *, at_ms: float) -> None:
        """Some words of an item whose text is not known yet, after those that came before."""
        known = self._partials.get(item_id, Partial(item_id, role, "", at_ms))
        text = (known.text + more)[:MAX_ENTRY_CHARACTERS]
        self._partials[item_id] = Partial(item_id, role, text, known.at_ms)
        if len(self._partials) > MAX_PARTIALS:
            del self._partials[next(iter(self._partials))]
        self.version += 1

    def settle(self, item_id: str) -> None:
        """No more words of this item come; what it is now, :meth:`say` said, or nobody will."""
        if self._partials.pop(item_id, None) is not None:
            self.version += 1

    def settle_all(self, role: str) -> None:
        for partial in self.partials:
            if partial.role == role:
                self.settle(partial.item_id)

    def say(self, item_id: str, role: str, text: str, *, cut: bool = False, at_ms: float) -> None:
        """Add an entry, or replace the text of the one with this id (it keeps its place and time)."""
        known = self._entries.get(item_id)
        partial = self._partials.get(item_id)
        begun_at_ms = known.at_ms if known is not None else partial.at_ms if partial is not None else at_ms
        text = text[:MAX_ENTRY_CHARACTERS]
        unheard = _beyond(self._as_known(item_id), text) if cut else ""
        entry = TranscriptEntry(item_id, role, text, cut, begun_at_ms, unheard)
        if entry == known:
            return
        self._entries[item_id] = entry
        self.version += 1
        _touch(self._entry_versions, item_id, self.version)
        if len(self._entries) > MAX_ENTRIES:
            oldest = next(iter(self._entries))
            del self._entries[oldest], self._entry_versions[oldest]
            self.entries_dropped += 1

    def _as_known(self, item_id: str) -> str:
        """All words of an item that were ever told, heard or not."""
        known, partial = self._entries.get(item_id), self._partials.get(item_id)
        filed = "" if known is None else f"{known.text} {known.unheard}"
        return max(filed, "" if partial is None else partial.text, key=len)

    def forget(self, item_id: str) -> None:
        """The client deleted the item."""
        if self._entries.pop(item_id, None) is not None:
            del self._entry_versions[item_id]
            self.version += 1
            self._forgot_in = self.version

    def turn(self, times: TurnTimes) -> TurnTimes | None:
        """File a turn's times; a later record of the same response replaces the earlier one, which is returned."""
        before = self._turns.get(times.response_id)
        if times == before:
            return before
        self._turns[times.response_id] = times
        self.version += 1
        _touch(self._turn_versions, times.response_id, self.version)
        if len(self._turns) > MAX_TURNS:
            oldest = next(iter(self._turns))
            del self._turns[oldest], self._turn_versions[oldest]
            self.turns_dropped += 1
        return before

    def since(self, version: int, most: int) -> Changes:
        """What is new since then: of entries and of turns the ``most`` that changed last, in their order."""
        entries = _changed(self._entry_versions, version, most + 1)
        turns = _changed(self._turn_versions, version, most + 1)
        return Changes(
            [self._entries[item_id] for item_id in entries[-most:]],
            [self._turns[response_id] for response_id in turns[-most:]],
            tuple(self._entries) if version < self._forgot_in else None,
            missed=len(entries) > most or len(turns) > most,
        )

    def summary(self) -> dict[str, Any]:
        """One row of ``GET /v1/calls``."""
        return {
            "id": self.id,
            "object": "call",
            "transport": self.transport,
            "agent": self.agent,
            "direction": self.direction,
            "caller": self.parties.caller if self.parties is not None else None,
            "dialled": self.parties.dialled if self.parties is not None else None,
            "wire_id": self.parties.wire_id if self.parties is not None else None,
            "state": self.state,
            "phase": None if self.state == "ended" else self.phase,
            "started_at": self.started_at.isoformat(timespec="milliseconds"),
            "answered_ms": _rounded(self.answered_ms),
            "ended_ms": _rounded(self.ended_ms),
            "cause": self.cause,
            "turn_count": len(self._turns) + self.turns_dropped,
        }

    def view(self) -> dict[str, Any]:
        """All of ``GET /v1/calls/{id}``. May be asked for in any thread."""
        return self.summary() | {
            "transcript": [entry.view() for entry in self.transcript],
            "transcript_dropped": self.entries_dropped,
            "turns": [turn_view(times) for times in self.turns],
            "turns_dropped": self.turns_dropped,
            "quality": self.quality,
            "trace_id": self.trace.hex_id if self.trace is not None and self.trace.sampled else None,
        }


def _touch(versions: dict[str, int], key: str, version: int) -> None:
    versions.pop(key, None)
    versions[key] = version


def _changed(versions: dict[str, int], since: int, most: int) -> list[str]:
    latest = itertools.takewhile(lambda key: versions[key] > since, reversed(versions))
    return list(itertools.islice(latest, most))[::-1]


def _beyond(full: str, heard: str) -> str:
    """What of a text follows the part of it that was heard, by words."""
    words, begun = full.split(), heard.split()
    return " ".join(words[len(begun) :]) if words[: len(begun)] == begun else ""


def turn_view(times: TurnTimes) -> dict[str, Any]:
    """The latency record of one turn: every field of :class:`TurnTimes`, milliseconds rounded to 0.1."""
    return {
        name: _rounded(value) if isinstance(value, float) else value
        for name, value in msgspec.structs.asdict(times).items()
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 1)
