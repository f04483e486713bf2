"""Admits, lists, drains and ends calls. Nothing else holds a call.

A call takes its place before it is answered, so that over capacity the answer is explicit and instant. The count is
an interface (:class:`Places`), because several gateway processes on one machine will share it; call ids carry the
process's worker id for the same reason.
"""

from __future__ import annotations

import asyncio
import enum
import secrets
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Protocol

import structlog

from engines.api import HEALTHY, EngineHealth, Overload
from gateway.records.call_record import CallRecord
from gateway.security.unconnected import Unconnected
from gateway.turns import Turns

_log = structlog.get_logger(__name__)

FAREWELL_S = 8.0
"""How long a drained call may take to say goodbye."""
ENGINES = "engines"
"""What is over its limit when the engines' own ladder says that they are too far behind."""
HANG_UP_S = 2.0
"""How long a call that was hung up may take to be gone."""


class Refused(Exception):  # noqa: N818 (an answer, not a defect)
    """No call now. ``code`` is ``busy``, ``draining``, ``overloaded``, ``engines_down`` or ``too_many_unconnected``;
    over HTTP a 503 (a 429 the last one), on a WebSocket close 1013."""

    code = "refused"


class Busy(Refused):
    code = "busy"


class Draining(Refused):
    code = "draining"


class Overloaded(Refused):
    """One more call would make those that are up worse. ``measure`` says by what: :class:`gateway.admission.Measure`,
    or :data:`ENGINES`."""

    code = "overloaded"

    def __init__(self, measure: str) -> None:
        super().__init__("the server has as much to do as it can; try again in a while")
        self.measure = measure


class EnginesDown(Refused):
    """A stage has no engine that works: the caller would hear nothing but apologies."""

    code = "engines_down"


class TooManyUnconnected(Refused):
    """Too many calls wait for their media: from where this one comes, or in all."""

    code = "too_many_unconnected"


class LiveCall(Protocol):
    """What the switchboard asks of a call. None of these block, none raise."""

    @property
    def id(self) -> str: ...

    @property
    def record(self) -> CallRecord: ...

    @property
    def finished(self) -> asyncio.Event:
        """Set once the call has ended and its task is about to end."""

    def drain(self) -> None:
        """Say goodbye, then end."""

    def hang_up(self, cause: str) -> None:
        """End now."""

    def load_changed(self, overload: Overload) -> None:
        """Make further replies as this level says."""


class PlacedCall(LiveCall, Protocol):
    """A call that we place, until it is answered. There is no goodbye to say: ``drain`` ends it."""

    def rings(self) -> None:
        """The other side says so."""

    def give_way_to(self, call: LiveCall) -> None:
        """It was answered: ``call`` is what it is from now on."""


class Places(Protocol):
    """How many calls may be up at once, over all processes that share the machine."""

    async def take(self) -> bool:
        """One place, or False at once when there is none."""

    def give_back(self) -> None: ...


class LocalPlaces:
    """The places of one process."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    async def take(self) -> bool:
        if self._left <= 0:
            return False
        self._left -= 1
        return True

    def give_back(self) -> None:
        self._left += 1


class _Stage(enum.IntEnum):
    OPEN = 0
    DRAINING = 1
    FAREWELL = 2
    ENDING = 3


class Observer(Protocol):
    """Told of what is counted."""

    def admitted(self) -> None: ...

    def refused(self, reason: str) -> None: ...

    def overloaded(self, measure: str) -> None: ...

    def ended(self, record: CallRecord) -> None: ...


class Admission:
    """A place for one call: leave it (``with``) and the call is off the board, however it ended."""

    def __init__(self, board: Switchboard, call_id: str, asked_at: float) -> None:
        self.call_id = call_id
        self.asked_at = asked_at
        """By the loop's clock."""
        self._board = board

    def connected(self) -> None:
        """Its media is there, or comes no more: it is not one of the calls that wait for it. Twice is fine."""
        self._board._unconnected.end(self)

    def rings(self) -> None:
        """The other side says that the call which we place rings. Twice is fine."""
        placed = self._board._placed.get(self.call_id)
        if placed is not None:
            placed.rings()

    def __enter__(self) -> Admission:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._board._leave(self)


class Switchboard:
    """The calls of this process. ``on_ended`` gets the record of every registered call that is over. ``closed_by``
    says which measure of load is over its limit (:class:`gateway.admission.LoadGate`), if one is."""

    def __init__(
        self,
        max_calls: int,
        *,
        observer: Observer,
        on_ended: Callable[[CallRecord], None],
        worker: str = "0",
        places: Places | None = None,
        random_id: Callable[[], str] = lambda: secrets.token_hex(8),
        health: Callable[[], EngineHealth] = lambda: HEALTHY,
        closed_by: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.max_calls = max_calls
        self._places = places or LocalPlaces(max_calls)
        self._observer = observer
        self._on_ended = on_ended
        self._worker = worker
        self._random_id = random_id
        self._health = health
        self._closed_by = closed_by
        self._unconnected = Unconnected(max_calls)
        self._turns = Turns()
        """Of many calls that come at once: no frame of the calls that are up waits until all of them are set up."""
        self._admitted: set[Admission] = set()
        self._calls: dict[str, LiveCall] = {}
        self._placed: dict[str, PlacedCall] = {}
        """Of these calls, those that are not answered yet."""
        self._empty = asyncio.Event()
        self._empty.set()
        self._stage = _Stage.OPEN
        self.ended = 0
        """Places given back so far."""

    @property
    def draining(self) -> bool:
        return self._stage is not _Stage.OPEN

    @property
    def stage(self) -> str:
        """``open``, ``draining``, ``farewell`` (calls that are up are told goodbye) or ``ending``."""
        return self._stage.name.lower()

    @property
    def live(self) -> int:
        """Places taken, counting calls that are not answered yet."""
        return len(self._admitted)

    def new_call_id(self, kind: str = "call") -> str:
        return f"{kind}_{self._worker}_{self._random_id()}"

    async def admit(self, kind: str = "call", *, unconnected_from: str | None = None) -> Admission:
        """Take a place for a call whose id begins with ``kind``. ``unconnected_from`` is the address that a call comes
        from whose media may never come: so many may wait for it (:meth:`Admission.connected`). Raises
        :class:`Refused` at once."""
        self._refuse_when_draining()
        self._refuse_when_unable()
        admission = Admission(self, self.new_call_id(kind), asyncio.get_running_loop().time())
        if unconnected_from is not None and not self._unconnected.begin(admission, unconnected_from):
            raise self._refuse(TooManyUnconnected("too many calls wait for their media; try again in a while"))
        try:
            await self._take_place()
        except BaseException:
            self._unconnected.end(admission)
            raise
        self._admitted.add(admission)
        self._observer.admitted()
        self._empty.clear()
        try:
            await self._turns.wait()
        except BaseException:
            self._leave(admission)
            raise
        return admission

    async def _take_place(self) -> None:
        if not await self._places.take():
            raise self._refuse(Busy("every line is taken; try again in a while"))
        try:
            self._refuse_when_draining()  # it may have begun since the question was asked
        except Draining:
            self._places.give_back()
            raise

    def _refuse_when_draining(self) -> None:
        if self.draining:
            raise self._refuse(Draining("the server is stopping"))

    def _refuse_when_unable(self) -> None:
        health = self._health()
        if not health.takes_calls:
            raise self._refuse(EnginesDown(health.reason or "no engine serves this call"))
        measure = self.overloaded_by(health)
        if measure is not None:
            self._observer.overloaded(measure)
            raise self._refuse(Overloaded(measure))

    def overloaded_by(self, health: EngineHealth) -> str | None:
        """What is over its limit, so that new calls are refused; None: nothing is."""
        return ENGINES if health.overload >= Overload.REFUSE_CALLS else self._closed_by()

    def _refuse(self, refused: Refused) -> Refused:
        self._observer.refused(refused.code)
        return refused

    def place(self, admission: Admission, call: PlacedCall) -> None:
        """A call that we place exists, and may be ended; who answers is registered in its place."""
        self.register(admission, call)
        self._placed[admission.call_id] = call
        if self._stage is _Stage.DRAINING:  # register() tells it of what comes after that
            call.drain()

    def register(self, admission: Admission, call: LiveCall) -> None:
        """The call exists. One that came in while the server began to stop is told so at once."""
        placed = self._placed.pop(admission.call_id, None)
        if admission not in self._admitted or (admission.call_id in self._calls and placed is None):
            raise ValueError("a call is registered once, with the admission it was given")
        self._calls[admission.call_id] = call
        if placed is not None:
            placed.give_way_to(call)
        if self._stage is _Stage.FAREWELL:
            call.drain()
        elif self._stage is _Stage.ENDING:
            call.hang_up("server_drain")

    def _leave(self, admission: Admission) -> None:
        if admission not in self._admitted:
            return
        self._admitted.remove(admission)
        self.ended += 1
        self._unconnected.end(admission)
        self._places.give_back()
        if not self._admitted:
            self._empty.set()
        self._placed.pop(admission.call_id, None)
        call = self._calls.pop(admission.call_id, None)
        if call is not None:
            self._observer.ended(call.record)
            self._on_ended(call.record)

    def calls(self) -> Iterable[CallRecord]:
        """The records of live calls, newest first."""
        return [call.record for call in reversed(self._calls.values())]

    def load_changed(self, overload: Overload) -> None:
        """Tell every call how busy the engines are."""
        for call in list(self._calls.values()):
            call.load_changed(overload)

    def find(self, call_id: str) -> LiveCall | None:
        return self._calls.get(call_id)

    def hang_up_all(self, cause: str) -> None:
        """End every call now, and any that is still being set up."""
        self._stage = _Stage.ENDING
        for call in list(self._calls.values()):
            call.hang_up(cause)

    async def drain(self, grace_s: float, *, farewell_s: float = FAREWELL_S, hang_up_s: float = HANG_UP_S) -> None:
        """Refuse new calls; let those up end for ``grace_s``; then a spoken word; then hang up.

        Returns when no call is left, at the latest after the sum of the three."""
        self._enter(_Stage.DRAINING)
        _log.info("draining; a second signal hangs up at once", calls=self.live, grace_s=grace_s)
        for placed in list(self._placed.values()):
            placed.drain()
        if await self._emptied(grace_s):
            return
        self._enter(_Stage.FAREWELL)
        for call in list(self._calls.values()):
            call.drain()
        if await self._emptied(farewell_s):
            return
        _log.warning("hanging up calls that did not end", calls=self.live)
        self.hang_up_all("server_drain")
        if not await self._emptied(hang_up_s):
            _log.error("calls outlived their hang-up", calls=self.live)

    def _enter(self, stage: _Stage) -> None:
        """Stages only go forward: a second signal may have ended what a first one drains."""
        self._stage = max(self._stage, stage)

    async def _emptied(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await self._empty.wait()
        except TimeoutError:
            return not self._admitted
        return True
