"""The command line that the benchmarks share: how much is measured, and what is printed of it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from loadtest.generators import GeneratorsError
from loadtest.run_options import RunUsageError
from scripts.call_cost.bench import Measured, Plan, measure
from scripts.call_cost.machine import choose_cores, machine_line
from scripts.call_cost.servers import Subject
from scripts.call_cost.table import costs

FAILED = 1
INTERRUPTED = 130


def parser_of(module: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser with what every benchmark has."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=doc)
    parser.add_argument("--quick", action="store_true", help="a few minutes: few calls, one window each, no climb")
    parser.add_argument("--calls", type=_numbers, metavar="N,N", help="calls at once, whose cost is read")
    parser.add_argument("--rounds", type=int, metavar="N", help="windows of each server with each number of calls")
    parser.add_argument("--window-s", type=float, metavar="S", help="how long all calls are up")
    parser.add_argument("--climb", type=_numbers, metavar="FROM,MOST", help="levels of the climb: the first, the last")
    parser.add_argument("--no-climb", action="store_true", help="leave out how many calls a core holds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save every window, with the load test's report")
    return parser


def plan_of(options: argparse.Namespace, usual: Plan, quick: Plan) -> Plan:
    plan = quick if options.quick else usual
    given = {name: getattr(options, name) for name in ("calls", "rounds", "window_s", "climb")}
    plan = replace(plan, **{name: value for name, value in given.items() if value is not None})
    return replace(plan, climb=None) if options.no_climb else plan


def run(
    subjects: Sequence[Subject],
    plan: Plan,
    conclusion: Callable[[Measured], str],
    *,
    climbing: Sequence[Subject] = (),
    save: Path | None,
) -> int:
    """Measure and tell: the exit code, :data:`FAILED` where a server did not start or callers could not call."""
    cores = choose_cores()
    print(f"before: {machine_line()}; {cores.describe()}", flush=True)
    try:
        measured = asyncio.run(measure(subjects, plan, cores, _say, climbing=climbing))
    except (RuntimeError, OSError, RunUsageError, GeneratorsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    told = [costs(measured.windows), "\n".join(climbed.line() for climbed in measured.climbs), conclusion(measured)]
    print(f"after:  {machine_line()}\n\n" + "\n\n".join(text for text in told if text))
    if save is not None:
        measured.save(save)
    return 0


def _say(line: str) -> None:
    """Progress, apart from the result."""
    print(line, file=sys.stderr, flush=True)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))
