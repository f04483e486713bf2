"""Plots as inline SVG, made here: pure functions from numbers to markup.

All lie on percentages of the space there is and on fixed heights, so that one drawing fits a wide page, a phone and
paper, with letters of one size, and without a script. Colours are classes of the page's stylesheet; nothing is told by
colour alone. What a pointer finds is in ``<title>`` elements, which the page's script shows faster.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from loadtest.markup import Markup, join, number, tag

Say = Callable[[float], str]
Values = Sequence[float | None]

MOST_POINTS = 120
"""Of one curve: more are put into bins first, each shown by its worst value."""

_BOX = 1000
_HEAT_STEPS = 8


@dataclass(frozen=True, slots=True)
class Series:
    """One curve. ``tone``: its class, ``one`` to ``four``, which gives colour and dashes."""

    name: str
    tone: str
    values: Values


@dataclass(frozen=True, slots=True)
class Axis:
    """From ``low`` to ``high``, with ``ticks`` on it; ``log``: each doubling is as long as the other."""

    low: float
    high: float
    ticks: tuple[float, ...]
    say: Say
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies: 0 to 1, bounded to the axis."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if high <= low:
            return 0.0
        if self.log:
            return (math.log(at) - math.log(low)) / (math.log(high) - math.log(low))
        return (at - low) / (high - low)


@dataclass(frozen=True, slots=True)
class Limit:
    """A value that is not to be passed."""

    value: float
    name: str


@dataclass(frozen=True, slots=True)
class HeatColumn:
    """From ``at`` on, ``width`` long."""

    at: float
    width: float
    counts: Sequence[int]


def up_to(most: float, say: Say, *, least: float = 1.0, whole: bool = False) -> Axis:
    """From 0 to a round number at or above ``most`` (and at least ``least``), in about four even steps, of ``whole``
    numbers where only those make sense."""
    most = max(most, least) if math.isfinite(most) else least
    step = _round_up(most / 4)
    step = max(1.0, math.ceil(step)) if whole else step
    count = max(1, math.ceil(most / step - 1e-9))
    return Axis(0.0, step * count, tuple(step * index for index in range(count + 1)), say)


def around(low: float, high: float, say: Say, *, least: float) -> Axis:
    """From a round number below ``low`` to one above ``high``, ``least`` apart or more: for what hardly changes, beside
    what it is."""
    step = _round_up(max(high - low, least) / 3)
    first, last = math.floor(low / step), math.ceil(high / step)
    last = max(last, first + 2)
    return Axis(first * step, last * step, tuple(index * step for index in range(first, last + 1)), say)


def over_time(span_s: float) -> Axis:
    """From the run's first moment to its last, with at most six ticks."""
    span_s = max(span_s, 1.0)
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
    step = next((step for step in steps if span_s / step <= 6), math.ceil(span_s / 6))
    return Axis(0.0, span_s, tuple(float(at) for at in range(0, math.floor(span_s) + 1, step)), say_clock)


def over_latency(least_ms: float, most_ms: float) -> Axis:
    """By the logarithm, from the round number below to the one above (1, 2, 5 and their tens)."""
    rounds = [factor * 10.0**power for power in range(6) for factor in (1, 2, 5)]
    low = max((value for value in rounds if value <= max(least_ms, 1.0)), default=1.0)
    high = min((value for value in rounds if value >= most_ms), default=rounds[-1])
    if high <= low:
        high = low * 2
    return Axis(low, high, tuple(value for value in rounds if low <= value <= high), say_ms, log=True)


def say_ms(value: float) -> str:
    """512.4 is "512 ms", 1240 is "1.24 s", 3.21 is "3.2 ms"; no line breaks between number and unit."""
    if abs(value) >= 999.5:
        return f"{number(value / 1000)}\N{NO-BREAK SPACE}s"
    written = f"{value:.1f}".removesuffix(".0") if abs(value) < 10 else f"{value:.0f}"
    return f"{written}\N{NO-BREAK SPACE}ms"


def say_clock(seconds: float) -> str:
    """75 seconds are "1:15"."""
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def say_count(value: float) -> str:
    """12345.0 is "12,345"."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else number(value)


def worst_of(
    at: Sequence[float], columns: Sequence[Values], most: int = MOST_POINTS
) -> tuple[list[float], list[Values]]:
    """At most ``most`` points: evenly many of each column become one, the largest of them, so that no peak is lost."""
    if len(at) <= most:
        return list(at), list(columns)
    bounds = [round(index * len(at) / most) for index in range(most + 1)]
    spans = list(itertools.pairwise(bounds))
    return [at[start] for start, _ in spans], [[_largest(column[s:e]) for s, e in spans] for column in columns]


def line_plot(
    title: str,
    at: Sequence[float],
    series: Sequence[Series],
    *,
    across: Axis,
    upward: Axis,
    limit: Limit | None = None,
    mark: Limit | None = None,
    dots: bool = False,
    tips: Sequence[str] | None = None,
) -> Markup:
    """Curves over one axis; ``at`` gives the place of each value. ``tips``: what to say at each place, in place of the
    values themselves. ``limit`` is a line across, ``mark`` an upright one. ``dots``: mark each value, as few measured
    points deserve."""
    if tips is None:
        tips = [_tip(across.say(x), series, index, upward.say) for index, x in enumerate(at)]
    parts, names = [_grid(across, upward)], []
    if limit is not None and upward.low <= limit.value <= upward.high:
        y = _percent(1 - upward.share(limit.value))
        parts.append(tag("line", class_="limit", x1="0", x2="100%", y1=y, y2=y))
        names.append(tag("text", limit.name, class_="limit-name", x="100%", y=y, dy="-4", text_anchor="end"))
    if mark is not None:
        x, left = _percent(across.share(mark.value)), across.share(mark.value) > 0.7
        place = {
            "x": x,
            "y": "100%",
            "dx": "-6" if left else "6",
            "dy": "-6",
            "text_anchor": "end" if left else "start",
        }
        parts.append(tag("line", class_="mark-line", x1=x, x2=x, y1="0", y2="100%"))
        names.append(tag("text", mark.name, class_="mark-name", **place))
    drawn = (
        tag(
            "path",
            class_=f"curve {one.tone}",
            d=_path(at, one.values, across, upward),
            vector_effect="non-scaling-stroke",
        )
        for one in series
    )
    parts.append(_stretched(drawn))
    if dots:
        parts += [_dot(x, value, one.tone, across, upward) for one in series for x, value in _known(at, one.values)]
    parts += names
    parts.append(_hits([across.share(x) for x in at], tips))
    return _svg(summary(title, series, upward.say), parts)


def heat_map(title: str, columns: Sequence[HeatColumn], rows: Sequence[str], *, across: Axis) -> Markup:
    """How many of something lie in each cell; a darker cell has more, by the logarithm. ``rows`` names them from the
    bottom; every column has a count for each."""
    most = max((count for column in columns for count in column.counts), default=0)
    height = 1 / max(len(rows), 1)
    drawn = []
    for column in columns:
        left, right = across.share(column.at), across.share(column.at + column.width)
        for row, count in enumerate(column.counts):
            if count:
                tip = tag("title", f"{across.say(column.at)}, {rows[row]}: {say_count(count)}")
                place = {"x": _percent(left), "width": _percent(right - left)}
                place |= {"y": _percent(1 - (row + 1) * height), "height": _percent(height)}
                drawn.append(tag("rect", tip, class_=f"heat h{heat_step(count, most)}", **place))
    every = math.ceil(len(rows) / 8)
    labels = [
        tag("text", name, x="0", y=_percent(1 - (row + 0.5) * height), dx="-8", dy="0.32em", text_anchor="end")
        for row, name in enumerate(rows)
        if row % every == 0
    ]
    axis = tag("g", _across(across), *labels, aria_hidden="true")
    return _svg(f"{title}. At most {most} in one cell.", [axis, tag("g", *drawn, class_="cells")], tall=True)


def heat_step(count: int, most: int) -> int:
    """1 to 8, by the logarithm of the count."""
    if most <= 1:
        return _HEAT_STEPS
    return 1 + round((_HEAT_STEPS - 1) * math.log(max(count, 1)) / math.log(most))


def range_bar(axis: Axis, p50: float, p95: float, p99: float, most: float | None) -> Markup:
    """One row of a table of percentiles: a bar to p50 to p95, a line to p99, a mark at the largest."""
    middle, high, higher = (_percent(axis.share(value)) for value in (p50, p95, p99))
    body = axis.share(p95) - axis.share(p50)
    parts = [
        tag("line", class_="grid", x1=x, x2=x, y1="0", y2="100%") for x in (_percent(axis.share(t)) for t in axis.ticks)
    ]
    parts += [
        tag("line", class_="whisker", x1=high, x2=higher, y1="50%", y2="50%"),
        tag("rect", class_="body", x=middle, y="25%", width=_percent(max(body, 0.004)), height="50%"),
        tag("line", class_="median", x1=middle, x2=middle, y1="12%", y2="88%"),
    ]
    if most is not None:
        parts.append(tag("circle", class_="largest", cx=_percent(axis.share(most)), cy="50%", r="3"))
    return tag("svg", *parts, class_="range", aria_hidden="true", focusable="false")


def range_scale(axis: Axis) -> Markup:
    """Names the places of an axis above its :func:`range_bar` rows; neighbours that would touch are left out."""
    drawn, last = [], -1.0
    for value in axis.ticks:
        share = axis.share(value)
        if share - last > 0.13:
            last = share
            anchor = "start" if share < 0.05 else "end" if share > 0.95 else "middle"
            drawn.append(tag("text", axis.say(value), x=_percent(share), y="75%", text_anchor=anchor))
    return tag("svg", *drawn, class_="plot range", aria_hidden="true", focusable="false")


def stacked_bar(parts: Sequence[tuple[str, str, int]]) -> Markup:
    """Shares of a whole in one bar: (name, class, count)."""
    whole = sum(count for _, _, count in parts) or 1
    drawn, done = [], 0
    for name, tone, count in parts:
        if count:
            tip = tag("title", f"{name}: {say_count(count)}")
            place = {"x": _percent(done / whole), "width": _percent(count / whole), "y": "0", "height": "100%"}
            drawn.append(tag("rect", tip, class_=f"part {tone}", **place))
        done += count
    return tag("svg", *drawn, class_="stacked", aria_hidden="true", focusable="false")


def summary(title: str, series: Sequence[Series], say: Say) -> str:
    """A plot in words, for who cannot see it."""
    told = []
    for one in series:
        known = [value for value in one.values if value is not None]
        span = f"from {say(min(known))} to {say(max(known))}, {say(known[-1])} at the end" if known else "no values"
        told.append(f"{one.name}: {span}")
    return f"{title}. {'; '.join(told)}."


# --- parts ---


def _svg(told: str, parts: Iterable[Markup], *, tall: bool = False) -> Markup:
    return tag("svg", *parts, class_="plot tall" if tall else "plot", role="img", aria_label=told)


def _stretched(parts: Iterable[Markup]) -> Markup:
    """Paths know no percentages: they are drawn in a box of 1000 by 1000 that fills the plot."""
    box = f"0 0 {_BOX} {_BOX}"
    size = {"width": "100%", "height": "100%", "overflow": "visible"}
    return tag("svg", *parts, viewBox=box, preserveAspectRatio="none", **size)


def _grid(across: Axis, upward: Axis) -> Markup:
    drawn = []
    for value in upward.ticks:
        y = _percent(1 - upward.share(value))
        drawn.append(tag("line", class_="grid", x1="0", x2="100%", y1=y, y2=y))
        drawn.append(tag("text", upward.say(value), x="0", y=y, dx="-8", dy="0.32em", text_anchor="end"))
    return tag("g", *drawn, _across(across), aria_hidden="true")


def _across(across: Axis) -> Markup:
    drawn, last = [], -1.0
    for value in across.ticks:
        share = across.share(value)
        close = share - last < 0.12  # on a phone the two would touch
        last = last if close else share
        anchor = "start" if share < 0.03 else "end" if share > 0.97 else "middle"
        drawn.append(
            tag(
                "text",
                across.say(value),
                x=_percent(share),
                y="100%",
                dy="16",
                text_anchor=anchor,
                class_="wide" if close else None,
            )
        )
    return join(drawn)


def _path(at: Sequence[float], values: Values, across: Axis, upward: Axis) -> str:
    drawn, down = "", False
    for index, (x, value) in enumerate(zip(at, values, strict=True)):
        if value is not None:
            place = f"{across.share(x) * _BOX:.1f} {(1 - upward.share(value)) * _BOX:.1f}"
            drawn += f"{'L' if down else 'M'}{place}"
            alone = not down and (index + 1 == len(values) or values[index + 1] is None)
            drawn += "h0.01" if alone else ""  # a value with no neighbour is a dot
        down = value is not None
    return drawn


def _dot(x: float, value: float, tone: str, across: Axis, upward: Axis) -> Markup:
    place = {"cx": _percent(across.share(x)), "cy": _percent(1 - upward.share(value))}
    return tag("circle", class_=f"dot {tone}", r="3.5", **place)


def _hits(shares: Sequence[float], tips: Sequence[str]) -> Markup:
    """Invisible columns, each reaching half way to its neighbours, with what is to be said there."""
    drawn = []
    for index, (share, tip) in enumerate(zip(shares, tips, strict=True)):
        left = (shares[index - 1] + share) / 2 if index else 0.0
        right = (share + shares[index + 1]) / 2 if index + 1 < len(shares) else 1.0
        place = {"x": _percent(left), "width": _percent(max(right - left, 0.0)), "y": "0", "height": "100%"}
        drawn.append(tag("rect", tag("title", tip), class_="hit", data_at=number(share * 100), **place))
    return tag("g", *drawn, class_="hits")


def _tip(place: str, series: Sequence[Series], index: int, say: Say) -> str:
    values = ((one.name, one.values[index]) for one in series)
    return "\n".join([place, *(f"{name}: {say(value)}" for name, value in values if value is not None)])


def _known(at: Sequence[float], values: Values) -> list[tuple[float, float]]:
    return [(x, value) for x, value in zip(at, values, strict=True) if value is not None]


def _largest(values: Values) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _percent(share: float) -> str:
    return f"{number(share * 100)}%"


def _round_up(value: float) -> float:
    """The next of 1, 2, 2.5, 5 and their tens."""
    power = 10.0 ** math.floor(math.log10(max(value, 1e-9)))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= value * 0.9999)
