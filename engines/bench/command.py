"""``offhook bench``: what the parts cost and how they scale, for people and for programs."""

from __future__ import annotations

import enum
import json
from dataclasses import asdict
from typing import Annotated, Any

import typer


class CostsName(enum.StrEnum):
    cpu = "cpu"
    h200 = "h200"
    h200_library = "h200-library"
    mac = "mac"


def add_bench_commands(app: typer.Typer) -> typer.Typer:
    """Add ``bench`` to a command line; returns it, for more commands."""
    bench = typer.Typer(help="Benchmarks.", no_args_is_help=True)
    bench.command("scheduler")(scheduler)
    app.add_typer(bench, name="bench")
    return bench


def scheduler(
    costs: Annotated[CostsName, typer.Option(help="Whose costs: measured ones, and for mac published ones.")] = (
        CostsName.h200
    ),
    calls: Annotated[int | None, typer.Option(help="So many calls, instead of looking for the most.", min=1)] = None,
    seconds: Annotated[float, typer.Option(help="Simulated length of every call.", min=60.0)] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
    check: Annotated[
        int | None, typer.Option(help="Instead: check the policy's properties over so many random runs.", min=1)
    ] = None,
) -> None:
    """How many calls each policy serves: earliest deadline first, first in first out, a global lock. Simulated."""
    from engines.bench import scheduler as bench

    if check is not None:
        broken = bench.check(check)
        for seed, problem in broken:
            typer.echo(f"run {seed}: {problem}", err=True)
        typer.echo(f"{check} random runs, {len(broken)} broke a property")
        if broken:
            raise typer.Exit(1)
        return
    results = bench.compare(costs.value, calls=calls, seconds=seconds)
    if as_json:
        typer.echo(json.dumps({name: _fields(result) for name, result in results.items()}, indent=2))
    else:
        bench.show(costs.value, results)


def _fields(result: Any) -> dict[str, Any]:
    fields = asdict(result)
    return {"max_calls": fields["calls"] if result.passed else 0} | fields
