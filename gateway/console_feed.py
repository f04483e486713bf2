"""What a console is told: all there is at first, then what has changed. Bounded, whatever the calls do."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import msgspec

from gateway.readiness import unready
from gateway.records.call_record import CallRecord, Changes, TranscriptEntry, turn_view
from gateway.state import Gateway

MAX_CALLS_A_MESSAGE = 50
"""Further calls that changed are told of with the next message."""
MAX_ENTRIES_A_CALL = 20
PREVIEW_CHARACTERS = 300
"""Of the last entry of each call, at first: whoever opens a call asks for its record."""


class Feed:
    """What one console knows."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._told: dict[str, int] = {}
        """The version that was told of each live call; those told longest ago first."""
        self._server: dict[str, Any] = {}
        self._engines: dict[str, Any] = {}
        self._point = 0

    def snapshot(self) -> dict[str, Any]:
        """All but the transcripts, and of the live calls the newest; the others follow as changes."""
        gateway = self._gateway
        newest = list(itertools.islice(gateway.switchboard.calls(), MAX_CALLS_A_MESSAGE))
        self._told = {record.id: record.version for record in reversed(newest)}
        self._server, self._engines = _server_view(gateway), _engines_view(gateway)
        points = gateway.history.since(0)
        self._point = gateway.history.number
        return {
            "server": self._server,
            "engines": self._engines,
            "calls": [_preview(record) for record in newest],
            "points": points,
        }

    def changes(self) -> dict[str, Any] | None:
        """What is new since the last message; None: nothing is."""
        changes: dict[str, Any] = {}
        if calls := self._changed_calls():
            changes["calls"] = calls
        if gone := self._gone_calls(changes):
            changes["gone"] = gone
        server = _server_view(self._gateway)
        if server != self._server:
            changes["server"] = self._server = server
        if self._gateway.history.number > self._point:
            changes["points"] = self._gateway.history.since(self._point)
            self._point = self._gateway.history.number
            engines = _engines_view(self._gateway)
            if engines != self._engines:
                changes["engines"] = self._engines = engines
        return changes or None

    def _changed_calls(self) -> list[dict[str, Any]]:
        live = {record.id: record for record in self._gateway.switchboard.calls()}
        known = [live[call_id] for call_id in self._told if call_id in live]
        new = (record for call_id, record in reversed(live.items()) if call_id not in self._told)
        changed = (record for record in itertools.chain(new, known) if record.version != self._told.get(record.id))
        return [self._tell(record) for record in list(itertools.islice(changed, MAX_CALLS_A_MESSAGE))]

    def _gone_calls(self, changes: dict[str, Any]) -> list[str]:
        """Calls that are over: their last words come with this message, if their records are kept."""
        find = self._gateway.switchboard.find
        gone = list(itertools.islice((known for known in self._told if find(known) is None), MAX_CALLS_A_MESSAGE))
        for call_id in gone:
            record = self._gateway.recent.find(call_id)
            if record is not None:
                changes.setdefault("calls", []).append(self._tell(record))
            del self._told[call_id]
        return gone

    def _tell(self, record: CallRecord) -> dict[str, Any]:
        since = self._told.pop(record.id, 0)
        self._told[record.id] = record.version
        return call_view(record, since, MAX_ENTRIES_A_CALL)


def call_view(record: CallRecord, since: int, most: int) -> dict[str, Any]:
    """A call, and what of its record is new since a version."""
    return changes_view(record, record.since(since, most))


def changes_view(record: CallRecord, changes: Changes) -> dict[str, Any]:
    """A call, and these changes of its record. May be asked for in any thread."""
    view: dict[str, Any] = {
        **record.summary(),
        "version": record.version,
        "entries": [entry.view() for entry in changes.entries],
        "turns": [turn_view(times) for times in changes.turns],
        "partials": record.partials,
    }
    if changes.kept is not None:
        view["kept"] = changes.kept
    if changes.missed:
        view["missed"] = True
    return view


def _preview(record: CallRecord) -> dict[str, Any]:
    view = call_view(record, 0, 1)
    entries: Iterable[TranscriptEntry] = record.transcript[-1:]
    view["entries"] = [
        entry.view() | {"text": entry.text[:PREVIEW_CHARACTERS], "unheard": entry.unheard[:PREVIEW_CHARACTERS]}
        for entry in entries
    ]
    return view | {"turns": [], "missed": True}


def _server_view(gateway: Gateway) -> dict[str, Any]:
    switchboard = gateway.switchboard
    health = gateway.engines.health()
    why_not = unready(switchboard, health) or {}
    return {
        "stage": switchboard.stage,
        "status": why_not.get("status", "ready"),
        "reason": why_not.get("reason", ""),
        "live": switchboard.live,
        "limit": switchboard.max_calls,
        "overload": int(health.overload),
        "preset": gateway.settings.preset,
        "notice": gateway.notice,
        "drain_s": gateway.settings.drain_s,
    }


def _engines_view(gateway: Gateway) -> dict[str, Any]:
    health = gateway.engines.health()
    return {
        "takes_calls": health.takes_calls,
        "reason": health.reason,
        "backends": [
            {
                "stage": backend.stage,
                "name": backend.name,
                "state": backend.state,
                "host": backend.host,
                "failed": health.failed_requests.get((backend.stage, backend.name), 0),
            }
            for backend in health.backends
        ],
        "hosts": [
            {
                "name": name,
                "up": host.up,
                "reason": host.reason,
                "pid": host.pid,
                "restarts": host.restarts,
                "memory_mb": host.memory_bytes >> 20,
                "device_mb": host.device_bytes >> 20,
                "waiting": host.waiting,
            }
            for name, host in health.hosts.items()
        ],
    }


def encoded(event: str, told: object) -> bytes:
    """One server-sent event (HTML standard, section 9.2.6). JSON has no line break of its own."""
    return b"event: %b\ndata: %b\n\n" % (event.encode(), msgspec.json.encode(told))
