"""What a quantum costs: moving averages a (model, kind, batch bucket, length bucket), seeded by warm-up.

Pure: seconds come in with :meth:`Costs.observe`, estimates go out. Buckets are powers of two. Between known buckets
the estimate is interpolated; what is unknown is guessed so that it gets tried: a batch a little wider than any seen
is taken to cost a little more, and the first such quantum says what it really costs.
"""

from __future__ import annotations

import itertools
import math
from bisect import insort
from dataclasses import dataclass, field

from engines.executor.kinds import Kind

MAX_CELLS = 512
"""Cells of all kinds together; the one not heard of for longest goes first."""
EARLY = 3
"""A new cell takes the middle of its first samples: one of them may have compiled a kernel for seconds."""
GAIN = 0.1
CLIP = 2.0
"""A sample counts for at most so many times its cell's average: an outlier moves it by a tenth, while a machine that
became ten times slower is believed within 25 quanta."""
BELIEVED = 4.0
"""The first samples of a cell count for at most so many times what its neighbours led to expect. One that compiled a
kernel for seconds would not be put right by others: what looks dear is avoided."""
DOUBTED_AFTER = 256
"""For the same reason a cell that was not run in the last so many quanta of its kind, and is dearer by more than
:data:`CLIP` than the rest of them say, is forgotten: only trying it again shows whether that is still so."""
WORTH_TELLING = 0.05
"""Estimates already given stay valid until an average has moved by this share."""
UNKNOWN_WIDER = 1.25
"""The guess for a doubled batch nobody has run yet."""
MAX_REMEMBERED = 4096
BOUND_DEVIATIONS = 4.0
"""As TCP's retransmission timer: the average plus four mean deviations is what a quantum may take."""


@dataclass(slots=True)
class _Cell:
    batch: float
    length: float
    seconds: float
    deviation: float
    told: float
    last_seen: int
    most: float
    """What an early sample counts for at most."""
    heard: int = 0
    """Quanta of the kind when it was last run."""
    early: list[float] = field(default_factory=list)


class KindCosts:
    """The costs of one kind. Made by :meth:`Costs.of`."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], _Cell] = {}
        self.observed = 0
        self._remembered: dict[tuple[int, int], float] = {}

    def estimate(self, batch: int, length: int) -> float:
        """Seconds; 0 while nothing is known of the kind."""
        key = (batch, length)
        known = self._remembered.get(key)
        if known is None:
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            known = self._remembered[key] = self._interpolated(batch, length)
        return known

    def forget_estimates(self) -> None:
        self._remembered.clear()

    def doubtful(self) -> list[tuple[int, int]]:
        """Cells that were not run for long and are dearer than the others make likely."""
        last = self.observed - DOUBTED_AFTER
        return [
            key
            for key, cell in self.cells.items()
            if cell.heard <= last
            and cell.seconds > CLIP * (self._interpolated(round(cell.batch), round(cell.length), key) or cell.seconds)
        ]

    def _interpolated(self, batch: int, length: int, without: tuple[int, int] | None = None) -> float:
        rows: dict[int, list[_Cell]] = {}
        for key, cell in sorted(self.cells.items()):
            if key != without:
                rows.setdefault(key[0], []).append(cell)
        points = [
            (
                sum(cell.batch for cell in row) / len(row),
                _between([(cell.length, cell.seconds) for cell in row], length, proportional=True),
            )
            for row in rows.values()
        ]
        return _between(points, batch, proportional=False) if points else 0.0


def _between(points: list[tuple[float, float]], at: float, *, proportional: bool) -> float:
    """Piecewise linear over points in order of x. Below the first: as the first. Above the last: on along the last
    slope; with one point alone in proportion, or a little more a doubling."""
    last_x, last_y = points[-1]
    if at <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if at <= x1:
            return y0 + (y1 - y0) * (at - x0) / (x1 - x0) if x1 > x0 else y1
    if len(points) > 1:
        before_x, before_y = points[-2]
        slope = max(0.0, (last_y - before_y) / (last_x - before_x)) if last_x > before_x else 0.0
        return float(last_y + slope * (at - last_x))
    if proportional:
        return float(last_y * at / last_x)
    doublings = _bucket(round(at)) - _bucket(round(last_x))
    return float(last_y * UNKNOWN_WIDER**doublings)


class Costs:
    """The cost model of one lane."""

    def __init__(self, max_cells: int = MAX_CELLS) -> None:
        self._max_cells = max_cells
        self._kinds: dict[tuple[str, str], KindCosts] = {}
        self._observed = 0
        self._cells = 0

    def __len__(self) -> int:
        """Cells kept."""
        return self._cells

    def of(self, kind: Kind) -> KindCosts:
        """The kind's own table; it stays the same object for the life of this model."""
        key = (kind.owner, kind.name)
        table = self._kinds.get(key)
        if table is None:
            table = self._kinds[key] = KindCosts()
        return table

    def estimate(self, kind: Kind, batch: int = 1, length: int = 1) -> float:
        """Seconds that a quantum of ``batch`` jobs takes. ``length`` is what else its cost depends on: the padded
        bucket of kinds that batch alike, the sum of units of kinds that can be cut (tokens to prefill), and the
        longest job's units otherwise. 0 while nothing is known."""
        return self.of(kind).estimate(batch, length)

    def bound(self, kind: Kind) -> float | None:
        """The longest that a quantum of the kind normally takes, in seconds, whatever its shape; None while nothing
        is known. The heartbeat calls a quantum an overrun at four times this."""
        cells = self.of(kind).cells.values()
        return max((cell.seconds + BOUND_DEVIATIONS * cell.deviation for cell in cells), default=None)

    def seed(self, kind: Kind, batch: int, length: int, seconds: float) -> None:
        """A cost known beforehand (warm-up, a table). It replaces what was learned of that cell."""
        cell = self._cell(kind, batch, length, seconds)
        cell.batch, cell.length, cell.seconds, cell.deviation = batch, length, seconds, seconds / 4
        cell.early = [seconds] * EARLY
        cell.told = seconds
        self.of(kind).forget_estimates()

    def observe(self, kind: Kind, batch: int, length: int, seconds: float) -> None:
        """A quantum took so long."""
        table = self.of(kind)
        table.observed += 1
        cell = self._cell(kind, batch, length, seconds, believed=BELIEVED)
        cell.batch += GAIN * (batch - cell.batch)
        cell.length += GAIN * (length - cell.length)
        if len(cell.early) < EARLY:
            insort(cell.early, min(seconds, cell.most))
            cell.seconds = cell.early[(len(cell.early) - 1) // 2]
            cell.deviation = cell.seconds / 4
        else:
            error = min(seconds, CLIP * cell.seconds) - cell.seconds
            cell.seconds += GAIN * error
            cell.deviation += GAIN * (abs(error) - cell.deviation)
        if abs(cell.seconds - cell.told) > WORTH_TELLING * cell.told:
            cell.told = cell.seconds
            table.forget_estimates()
        if table.observed % DOUBTED_AFTER == 0:
            for key in table.doubtful():
                self._forget(table, key)

    def _cell(self, kind: Kind, batch: int, length: int, seconds: float, believed: float = math.inf) -> _Cell:
        table = self.of(kind)
        batch, length = max(1, batch), max(1, length)
        key = (_bucket(batch), _bucket(length))
        cell = table.cells.get(key)
        self._observed += 1
        if cell is None:
            if self._cells >= self._max_cells:
                self._forget_oldest()
            expected = table.estimate(batch, length)
            most = believed * expected if expected > 0.0 else math.inf
            cell = table.cells[key] = _Cell(batch, length, seconds, seconds / 4, seconds, self._observed, most)
            self._cells += 1
            table.forget_estimates()
        cell.last_seen, cell.heard = self._observed, table.observed
        return cell

    def _forget_oldest(self) -> None:
        table, key = min(
            ((table, key) for table in self._kinds.values() for key in table.cells),
            key=lambda place: place[0].cells[place[1]].last_seen,
        )
        self._forget(table, key)

    def _forget(self, table: KindCosts, key: tuple[int, int]) -> None:
        del table.cells[key]
        table.forget_estimates()
        self._cells -= 1


def _bucket(number: int) -> int:
    """Which power of two it fits in."""
    return max(0, number - 1).bit_length()
