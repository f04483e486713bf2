"""Session timers (RFC 4028): a call whose other end is gone without a word is ended, also while it is on hold."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from gateway.transports.sip.message import Headers

MIN_SE_S = 90
"""The least interval that the RFC allows."""
MAX_SE_S = 86_400

Role = Literal["uac", "uas"]


class IntervalTooSmall(Exception):  # noqa: N818 (an answer: 422)
    """``min_se_s`` goes into Min-SE."""

    def __init__(self, min_se_s: int) -> None:
        super().__init__(f"the session interval is at least {min_se_s} s")
        self.min_se_s = min_se_s


@dataclass(frozen=True, slots=True)
class SessionInterval:
    """What both sides agreed on."""

    interval_s: int
    refresher: Role
    """By its role in the transaction that agreed on it."""

    @property
    def refresh_after_s(self) -> float:
        return self.interval_s / 2

    @property
    def give_up_after_s(self) -> float:
        """When the other side should have refreshed: a third of the interval before its end, at most 32 s."""
        return self.interval_s - min(32.0, self.interval_s / 3)

    def header(self) -> tuple[str, str]:
        return "session-expires", f"{self.interval_s};refresher={self.refresher}"


def of_request(headers: Headers, *, ours_s: int) -> SessionInterval | None:
    """What we answer to an INVITE or UPDATE. ``ours_s``: the interval we would have, 0 none. Raises
    :class:`IntervalTooSmall`; an unreadable header is none."""
    asked = read(headers)
    supported = "timer" in headers.tokens("supported") | headers.tokens("require")
    if asked is not None and asked[0] < MIN_SE_S:
        if supported:
            raise IntervalTooSmall(MIN_SE_S)
        asked = (MIN_SE_S, "uas")
    if asked is None and not ours_s:
        return None
    least = max(MIN_SE_S, _seconds(headers.get("min-se")) or 0)
    theirs_s, refresher = asked or (max(ours_s, least), None)
    interval_s = max(min(theirs_s, ours_s or theirs_s), least)
    if not supported:
        return SessionInterval(interval_s, "uas")
    return SessionInterval(interval_s, refresher or "uac")


def of_response(headers: Headers) -> SessionInterval | None:
    """What the other side answered to a request of ours; without a word, it is not held to refresh."""
    said = read(headers)
    if said is None:
        return None
    return SessionInterval(max(said[0], MIN_SE_S), said[1] or "uac")


def read(headers: Headers) -> tuple[int, Role | None] | None:
    value = headers.get("session-expires")
    interval_s = _seconds(value)
    if interval_s is None:
        return None
    refresher = re.search(r";\s*refresher\s*=\s*(uac|uas)\b", value, re.IGNORECASE)
    if refresher is None:
        return interval_s, None
    return interval_s, "uac" if refresher[1].lower() == "uac" else "uas"


def _seconds(value: str) -> int | None:
    number = value.partition(";")[0].strip()
    if not (number.isascii() and number.isdecimal() and len(number) <= 9):
        return None
    return min(int(number), MAX_SE_S)
