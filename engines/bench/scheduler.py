"""The scheduler's benchmark: the simulator's results as a table, and its properties over many random runs."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from engines.executor.properties import broken_property
from engines.executor.simulator import GOODPUT, POLICIES, SEEDS, Result, max_calls, simulate
from engines.executor.tables import TABLES


def compare(
    costs: str, *, calls: int | None = None, seconds: float = 600.0, seeds: tuple[int, ...] = SEEDS
) -> dict[str, Result]:
    """Each policy's result, with the most calls it serves or with so many."""
    table = TABLES[costs]
    if calls is not None:
        return {name: simulate(name, table, calls, seconds=seconds, seeds=seeds) for name in POLICIES}
    return {name: max_calls(name, table, seconds=seconds, seeds=seeds) for name in POLICIES}


def check(runs: int) -> list[tuple[int, str]]:
    """The random runs (by seed) in which a property did not hold, and which."""
    return [(seed, problem) for seed in range(runs) if (problem := broken_property(seed)) is not None]


def show(costs: str, results: Mapping[str, Result], console: Console | None = None) -> None:
    """The results for a person."""
    console = console if console is not None else Console()
    table = Table(title=f"{costs}: {TABLES[costs].machine}")
    for heading in ("policy", "calls", "goodput", "turns/s", "first audio p50", "p95", "busy", "rows a step"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for name, result in results.items():
        table.add_row(
            name,
            str(result.calls) if result.passed else f"{result.calls} fails",
            f"{result.goodput:.1%}",
            f"{result.turns_per_s:.2f}",
            f"{result.first_audio_p50_ms:.0f} ms",
            f"{result.first_audio_p95_ms:.0f} ms",
            f"{result.busy:.0%}",
            f"{result.rows_per_step:.1f}",
        )
    console.print(table)
    console.print(f"calls: the most at which {GOODPUT:.0%} of calls are good (or as many as were asked for)")
