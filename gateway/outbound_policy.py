"""Whether a call may be placed: rules about its destination, and what may be spent. Pure, over a clock.

What it guards against is toll fraud: whoever gets at the key, or talks a program into dialling, calls numbers that earn
them money, at night, as many and as long as the line lets them. So nothing may be dialled that is not allowed by name,
and what is allowed is bounded in calls at once, calls an hour, minutes a day and calls to one destination. The bounds
hold for one process since its start: a restart begins them anew.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.outbound_address import Destination, keys_of
from gateway.outbound_settings import OutboundSettings, parse_pattern

HOUR_S = 3_600.0
DAY_S = 86_400.0
MIN_CALL_S = 60.0
"""With less than this left of a day's minutes no call begins."""
BUSY_RETRY_S = 5.0

EMERGENCY = frozenset({"000", "112", "911", "999"})
"""Refused as an extension, too: a PBX would put it through."""
OUTSIDE_LINE = ("9", "0")
"""What a PBX may want before a number that is not its own: 9911 is 911 to most of them."""
SURE_EMERGENCY = frozenset({"112", "911"})
"""Those that are refused behind it as well; 0000, 9000 and the like are extensions of many."""
_FEATURE_CODES = tuple(re.compile(rf"^[*#]+[0-9]{{{digits}}}[*#]*") for digits in (2, 3))
"""``*67`` and its like, keyed before a number: to withhold one's own, and so on."""

PREMIUM_RATE = tuple(
    f"+{prefix}"
    for prefix in (
        # International services: shared cost, satellites, personal and premium-rate numbers (ITU-T E.164 annex D).
        *"808 870 878 881 882 883 979".split(),
        # Countries behind +1 whose calls cost like those abroad, and 900 numbers (North American Numbering Plan).
        *"1242 1246 1264 1268 1284 1345 1441 1473 1649 1658 1664 1721 1758 1767 1784 1809 1829 1849".split(),
        *"1868 1869 1876 1900".split(),
        # Premium-rate and personal numbers of some countries' own plans.
        *"31900 31906 31909 3290 3389 34803 34806 34807 34905 35315 358600 358700 3989 41900 41901 41906".split(),
        *"43900 43901 43930 43931 43939 4470 4476 44871 44872 44873 449 4590 46900 46939 46944 4782 4870".split(),
        *"49137 49900 6119 64900 81990 852900".split(),
    )
)
"""Beginnings of numbers that are dear to call (general knowledge, not a regulator's list, and far from complete). An
entry of ``outbound.allow`` that is at least as long allows them: ``+1876`` does, ``+1`` does not."""


class NotAllowed(Exception):  # noqa: N818 (an answer, not a defect)
    """The call is not placed. ``code`` is stable: ``destination_not_allowed``, ``destination_denied``,
    ``premium_rate``, ``emergency_number`` (it never will be), ``outbound_busy``, ``destination_busy``,
    ``destination_limit``, ``hour_limit``, ``day_limit`` (it may be in ``retry_after_s``)."""

    def __init__(self, code: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = None if retry_after_s is None else max(1, math.ceil(retry_after_s))


def _is_emergency(user: str) -> bool:
    keys = keys_of(user)
    return keys in EMERGENCY or (keys.startswith(OUTSIDE_LINE) and keys[1:] in SURE_EMERGENCY)


@dataclass(eq=False, slots=True)
class Ticket:
    """One call that may be placed: it may be talked for ``limit_s``."""

    key: str
    limit_s: float
    policy: OutboundPolicy = field(repr=False)

    def end(self, talked_s: float) -> None:
        """The call is over; what it did not use of the day's minutes is free again. Twice is fine."""
        self.policy._end(self, talked_s)

    def give_back(self) -> None:
        """No call was placed after all: it counts for nothing."""
        self.policy._give_back(self)


class OutboundPolicy:
    """``now_s`` is monotonic."""

    def __init__(self, settings: OutboundSettings, now_s: Callable[[], float]) -> None:
        self._settings = settings
        self._now_s = now_s
        self._allow = tuple(parse_pattern(text) for text in settings.allow)
        self._deny = tuple(parse_pattern(text) for text in settings.deny)
        self._live: set[Ticket] = set()
        self._begun: deque[tuple[float, Ticket]] = deque()
        """Of the last hour."""
        self._talked: deque[tuple[int, float]] = deque()
        """(the minute they ended in, seconds) of the last day's calls."""

    def judge(self, destination: Destination) -> None:
        """The rules alone. Raises :class:`NotAllowed`."""
        if any(entry.names_number(destination) or entry.names_host(destination) for entry in self._deny):
            raise NotAllowed("destination_denied", "this destination is forbidden by outbound.deny")
        if any(map(_is_emergency, (destination.user, *(code.sub("", destination.user) for code in _FEATURE_CODES)))):
            raise NotAllowed("emergency_number", "an agent does not call emergency services")
        if destination.host and not any(entry.names_host(destination) for entry in self._allow):
            raise NotAllowed("destination_not_allowed", "this host (with its port) is not in outbound.allow")
        if destination.number:
            self._judge_number(destination)

    def _judge_number(self, destination: Destination) -> None:
        allowed = max((len(entry.prefix) for entry in self._allow if entry.names_number(destination)), default=0)
        if not allowed:
            raise NotAllowed("destination_not_allowed", "no beginning of this number is in outbound.allow")
        dear = max((len(prefix) for prefix in PREMIUM_RATE if destination.number.startswith(prefix)), default=0)
        if allowed < dear:
            raise NotAllowed(
                "premium_rate", "this number may be dear to call, and outbound.allow does not name it as closely"
            )

    def take(self, destination: Destination) -> Ticket:
        """The rules, then the bounds, in the order of how soon they pass. Raises :class:`NotAllowed`."""
        self.judge(destination)
        self._forget()
        settings, now, key = self._settings, self._now_s(), destination.key
        if len(self._live) >= settings.max_calls:
            raise NotAllowed("outbound_busy", "as many placed calls are up as may be", BUSY_RETRY_S)
        if any(ticket.key == key for ticket in self._live):
            raise NotAllowed("destination_busy", "a call to this destination is up already", BUSY_RETRY_S)
        to_it = [at for at, ticket in self._begun if ticket.key == key]
        if len(to_it) >= settings.calls_per_destination:
            wait_s = to_it[-settings.calls_per_destination] + HOUR_S - now
            raise NotAllowed(
                "destination_limit", "this destination was called as often as it may be in an hour", wait_s
            )
        if len(self._begun) >= settings.calls_per_hour:
            wait_s = self._begun[-settings.calls_per_hour][0] + HOUR_S - now
            raise NotAllowed("hour_limit", "as many calls were placed as may be in an hour", wait_s)
        left_s = self.left_s
        if left_s < MIN_CALL_S:
            wait_s = self._talked[0][0] * 60 + 60 + DAY_S - now if self._talked else BUSY_RETRY_S
            raise NotAllowed("day_limit", "the minutes of a day are used up, or held by calls that are up", wait_s)
        ticket = Ticket(key, min(settings.minutes_per_call * 60.0, left_s), self)
        self._live.add(ticket)
        self._begun.append((now, ticket))
        return ticket

    @property
    def left_s(self) -> float:
        """What no call of the last 24 hours has used, nor one that is up holds for itself."""
        self._forget()
        held_s = sum(ticket.limit_s for ticket in self._live)
        return self._settings.minutes_per_day * 60.0 - held_s - sum(seconds for _, seconds in self._talked)

    def _forget(self) -> None:
        now = self._now_s()
        while self._begun and self._begun[0][0] <= now - HOUR_S:
            self._begun.popleft()
        while self._talked and self._talked[0][0] * 60 + 60 + DAY_S <= now:
            self._talked.popleft()

    def _end(self, ticket: Ticket, talked_s: float) -> None:
        if ticket not in self._live:
            return
        self._live.remove(ticket)
        if talked_s > 0:
            minute = math.floor(self._now_s() / 60)
            if self._talked and self._talked[-1][0] == minute:
                talked_s += self._talked.pop()[1]
            self._talked.append((minute, talked_s))

    def _give_back(self, ticket: Ticket) -> None:
        if ticket in self._live:
            self._live.remove(ticket)
            self._begun = deque(entry for entry in self._begun if entry[1] is not ticket)
