"""The heartbeat of a thread that runs quanta: how long each took, and whether the one in flight is stuck. Pure.

The thread calls :meth:`Pulse.beat` before it waits for work and :meth:`Pulse.awake` after, :meth:`Pulse.begin` and
:meth:`Pulse.end`; any thread may ask :meth:`Pulse.trouble`, :meth:`Pulse.quanta` and :attr:`Pulse.between`.
"""

from __future__ import annotations

from dataclasses import dataclass

OVERRUN = 4.0
"""A quantum is an overrun at so many times its learned bound."""
LEAST_OVERRUN_S = 0.5
"""No quantum shorter than this is one: a bound of a millisecond is exceeded by any hiccup of the machine."""


@dataclass(frozen=True, slots=True)
class QuantaOfKind:
    count: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0

    def plus(self, seconds: float) -> QuantaOfKind:
        return QuantaOfKind(self.count + 1, self.seconds + seconds, max(self.longest_s, seconds))


@dataclass(frozen=True, slots=True)
class _InFlight:
    name: str
    begun: float
    limit_s: float


class Pulse:
    """``stalled_after_s``: what a quantum of which nothing is known may take, and the thread between two quanta."""

    def __init__(self, now: float, stalled_after_s: float) -> None:
        self._stalled_after_s = stalled_after_s
        self._in_flight: _InFlight | None = None
        self._quanta: dict[str, QuantaOfKind] = {}
        self._outside_since: float | None = None
        self.last_beat = now
        self.overruns = 0
        self.between = QuantaOfKind()
        """Work outside of quanta: acts of the inbox, rows that leave, memory given back, results handed over. Such a
        stretch counts as an overrun from :data:`LEAST_OVERRUN_S` on."""

    def beat(self, now: float) -> None:
        self._note_outside(now)
        self.last_beat = now

    def awake(self, now: float) -> None:
        """The wait for work is over: it was no silence."""
        self.last_beat = self._outside_since = now

    def begin(self, name: str, bound_s: float | None, now: float) -> None:
        """A quantum begins that normally takes at most ``bound_s`` (None: unknown)."""
        self._note_outside(now)
        self.last_beat = now
        limit_s = self._stalled_after_s if bound_s is None else max(OVERRUN * bound_s, LEAST_OVERRUN_S)
        self._in_flight = _InFlight(name, now, min(limit_s, self._stalled_after_s))

    def end(self, now: float) -> float:
        """It ended. Returns its seconds."""
        flight = self._in_flight
        assert flight is not None
        self._in_flight = None
        self.last_beat = self._outside_since = now
        seconds = now - flight.begun
        self.overruns += seconds >= flight.limit_s
        self._quanta[flight.name] = self._quanta.get(flight.name, QuantaOfKind()).plus(seconds)
        return seconds

    def _note_outside(self, now: float) -> None:
        since, self._outside_since = self._outside_since, None
        if since is not None:
            self.between = self.between.plus(now - since)
            self.overruns += now - since >= LEAST_OVERRUN_S

    def trouble(self, now: float) -> str:
        """Why the thread can't be called healthy, for a person. Empty when it can."""
        flight = self._in_flight
        if flight is not None:
            seconds = now - flight.begun
            if seconds >= flight.limit_s:
                return f"a {flight.name} has run for {seconds:.1f} s, and at most {flight.limit_s:.1f} s was expected"
        elif now - self.last_beat >= self._stalled_after_s:
            return f"the executor has not been heard of for {now - self.last_beat:.1f} s"
        return ""

    def quanta(self) -> dict[str, QuantaOfKind]:
        """By kind, since the start."""
        return dict(self._quanta)
