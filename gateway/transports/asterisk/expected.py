"""Which calls may come in by AudioSocket, whose only word about a call is its UUID; and where a caller goes afterwards.

The dialplan announces a call over HTTP, gets its UUID, and hands that to ``AudioSocket()``. An announcement opens one
call, once, within 30 s. A UUID of the settings opens any number of calls to its agent.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.transports.phone.line import Incoming

ANNOUNCED_S = 30.0
"""From the announcement to the call: the dialplan goes on at once."""
NEXT_S = 60.0
"""How long a dialplan may take to ask where a caller goes."""
MAX_KEPT = 1_000
"""Announcements, and callers on their way elsewhere: of each so many, the oldest are forgotten."""


class NotExpected(Exception):  # noqa: N818 (an answer, not a defect)
    """No call with this UUID now. ``code`` is ``call_unknown``, ``call_expired`` or ``call_replayed``."""

    def __init__(self, code: str) -> None:
        super().__init__("no call with this UUID is expected")
        self.code = code


class TooManyAnnounced(Exception):  # noqa: N818 (an answer: 503)
    """So many announced calls have not come yet."""


@dataclass(slots=True)
class _Announced:
    incoming: Incoming
    until: float
    used: bool = False


class ExpectedCalls:
    """``agents``: what the settings know. ``anyone``: a UUID that nobody knows is let in, too."""

    def __init__(
        self, now: Callable[[], float], *, agents: Mapping[uuid.UUID, str] | None = None, anyone: bool = False
    ) -> None:
        self._now = now
        self._agents = dict(agents or {})
        self._anyone = anyone
        self._announced: dict[uuid.UUID, _Announced] = {}

    def announce(self, call: uuid.UUID, incoming: Incoming) -> None:
        """Raises :class:`TooManyAnnounced`, and :class:`NotExpected` (``call_replayed``) for a UUID that is taken."""
        self._forget_old()
        if call in self._announced or call in self._agents:
            raise NotExpected("call_replayed")
        if len(self._announced) >= MAX_KEPT:  # those that came are remembered only to be told from strangers
            self._announced = {known: one for known, one in self._announced.items() if not one.used}
        if len(self._announced) >= MAX_KEPT:
            raise TooManyAnnounced
        self._announced[call] = _Announced(incoming, self._now() + ANNOUNCED_S)

    def take(self, call: uuid.UUID) -> Incoming:
        """Who calls whom. Raises :class:`NotExpected`."""
        wire_id = str(call)
        if call in self._agents:
            return Incoming("audiosocket", agent=self._agents[call], wire_id=wire_id)
        known = self._announced.get(call)
        if known is None:
            if self._anyone:
                return Incoming("audiosocket", wire_id=wire_id)
            raise NotExpected("call_unknown")
        if known.used:
            raise NotExpected("call_replayed")
        known.used = True
        if self._now() >= known.until:
            raise NotExpected("call_expired")
        return known.incoming

    def _forget_old(self) -> None:
        """Those long gone: until then an expired or used one is known for what it is."""
        now = self._now()
        while self._announced:
            oldest = next(iter(self._announced))
            if self._announced[oldest].until + ANNOUNCED_S > now:
                return
            del self._announced[oldest]


class NextSteps:
    """Where callers go whose agent transferred them: the dialplan asks when its application has returned."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._targets: dict[str, tuple[str, float]] = {}

    def hand_over(self, wire_id: str, target: str) -> None:
        self._targets.pop(wire_id, None)
        self._targets[wire_id] = (target, self._now() + NEXT_S)
        if len(self._targets) > MAX_KEPT:
            del self._targets[next(iter(self._targets))]

    def take(self, wire_id: str) -> str:
        """The target, once; empty if the call was not transferred."""
        target, until = self._targets.pop(wire_id, ("", 0.0))
        return target if self._now() < until else ""
