"""What a run shows while it runs: a table that is drawn anew on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from loadtest.generator_messages import Counted
from loadtest.outcome import CallOutcome, Fate
from loadtest.percentiles import nearest_rank
from loadtest.readings import ServerReading

PLAIN_EVERY_S = 5.0
"""Between two lines where there is no terminal."""

RECENT_TURNS = 2_000
"""That the latencies shown are of."""

FAKE = "FAKE ENGINES: the times are those of transport and gateway alone"
VOID_MS = 5.0
"""The generators' own p99 lateness beyond which a run is void."""


@dataclass(slots=True)
class Tally:
    """What is known of a run so far. Filled in by :mod:`loadtest.run`."""

    scenario: str
    planned: int
    """Calls of the whole run."""
    length_s: float
    at_s: float = 0.0
    fates: dict[Fate, int] = field(default_factory=dict)
    good: int = 0
    frames_due: int = 0
    frames_late: int = 0
    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_TURNS))
    generators: dict[int, Counted] = field(default_factory=dict)
    """The last word of each."""
    server: ServerReading | None = None
    fake: bool | None = None
    problem: str | None = None
    """Of the last call that failed or was dropped, if it is known."""
    last_word: str = ""
    """What happens now, if it is not just running."""

    def ended(self, outcome: CallOutcome) -> None:
        self.fates[outcome.fate] = self.fates.get(outcome.fate, 0) + 1
        if outcome.fate in (Fate.FAILED, Fate.DROPPED) and outcome.problem:
            self.problem = outcome.problem
        self.good += outcome.good and outcome.fate not in (Fate.REFUSED, Fate.ABANDONED)
        self.frames_due += outcome.frames_due
        self.frames_late += outcome.frames_late
        self.latencies_ms.extend(turn.voice_to_voice_ms for turn in outcome.turns if turn.voice_to_voice_ms is not None)

    @property
    def up(self) -> int:
        return sum(counted.up for counted in self.generators.values())

    @property
    def offered(self) -> int:
        return sum(counted.offered for counted in self.generators.values())

    @property
    def over(self) -> int:
        return sum(self.fates.values())

    @property
    def generator_p99_ms(self) -> float | None:
        known = [each.late_p99_ms for each in self.generators.values() if each.late_p99_ms is not None]
        return max(known, default=None)

    def rows(self) -> list[tuple[str, str]]:
        """Names and values for a person."""
        bad = self.over - self.good - self.fates.get(Fate.REFUSED, 0) - self.fates.get(Fate.ABANDONED, 0)
        latencies = sorted(self.latencies_ms)
        cpu = max((each.cpu_share for each in self.generators.values()), default=0.0)
        p99 = self.generator_p99_ms
        rows = [
            ("up", f"{self.up}"),
            ("offered", f"{self.offered} of {self.planned}"),
            ("ended", f"{self.good} good, {bad} not good, {self.fates.get(Fate.REFUSED, 0)} refused"),
            ("voice to voice", f"p50 {_ms(nearest_rank(latencies, 0.5))}, p95 {_ms(nearest_rank(latencies, 0.95))}"),
            ("late frames", _percent(self.frames_late, self.frames_due)),
            (
                "callers themselves",
                f"{_ms(p99, 1)} late (p99){' VOID beyond 5 ms' if p99 is not None and p99 > VOID_MS else ''}, "
                f"{cpu:.0%} of a core" + (f", {len(self.generators)} processes" if len(self.generators) > 1 else ""),
            ),
        ]
        if self.problem is not None:
            rows.append(("last problem", self.problem))
        server = self.server
        if server is not None:
            told: Mapping[str, str | None] = {
                "CPU": None if server.all_cpu_cores is None else f"{server.all_cpu_cores:.0%} of a core",
                "memory": None if server.rss_bytes is None else f"{server.rss_bytes / 2**20:.0f} MiB",
                "loop lag": None if server.loop_lag_ms is None else _ms(server.loop_lag_ms),
                "calls": None if server.calls_live is None else f"{server.calls_live:.0f}",
            }
            rows.append(("server", ", ".join(f"{name} {value}" for name, value in told.items() if value is not None)))
        return rows

    @property
    def heading(self) -> str:
        left_s = max(0.0, self.length_s - self.at_s)
        word = self.last_word or (f"{left_s:.0f} s to go" if left_s else "waiting for the last calls")
        return f"{self.scenario}: {max(0.0, self.at_s):.0f} s of {self.length_s:.0f} s, {word}"


class Terminal(Console):
    """Standard error. One that is closed is an :class:`OSError`: rich would end the process and close standard output,
    where a report may have to go yet."""

    def __init__(self) -> None:
        super().__init__(stderr=True)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Progress:
    """Shows a :class:`Tally` each time it is told to; ``quiet`` shows nothing. A console that is gone (``| head``, a
    terminal that was closed) ends the showing, not the run."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._live: Live | None = None
        self._next_line_s = -math.inf
        self._told_fake = False

    @contextmanager
    def showing(self) -> Iterator[None]:
        """While a run is shown."""
        self._next_line_s = -math.inf
        if self._quiet or not self._console.is_terminal:
            yield
            return
        live = Live(console=self._console, auto_refresh=False, transient=True)
        try:
            with self._while_there():
                live.start()
                self._live = live
            yield
        finally:
            self._live = None
            with self._while_there():
                live.stop()

    def show(self, tally: Tally) -> None:
        if self._quiet:
            return
        if self._live is not None:
            with self._while_there():
                self._live.update(_drawn(tally), refresh=True)
            return
        if tally.fake and not self._told_fake:
            self._told_fake = True
            self.say(FAKE)
        if tally.at_s >= self._next_line_s:
            self._next_line_s = tally.at_s + PLAIN_EVERY_S
            self.say(f"{tally.heading} | " + " | ".join(f"{name} {value}" for name, value in tally.rows()))

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self._quiet:
            with self._while_there():
                self._console.print(Text(text), soft_wrap=True)

    @contextmanager
    def _while_there(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._quiet = True


def _drawn(tally: Tally) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    for name, value in tally.rows():
        table.add_row(name, Text(value))
    parts: list[RenderableType] = [Text(tally.heading, style="bold"), table]
    if tally.fake:
        parts.insert(0, Text(FAKE, style="bold black on yellow"))
    return Group(*parts)


def _ms(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f} ms"


def _percent(part: int, whole: int) -> str:
    return "-" if not whole else f"{part / whole:.2%}"
