"""``make bench-media``: what a WebRTC call costs: stock aiortc, this gateway, and pipecat, in one run."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from scripts.bench_loss import LossRow, loss_table, measure_losses
from scripts.bench_media.machine import choose_cores, machine_line
from scripts.bench_media.measure import QUICK, Bench, Plan
from scripts.bench_media.report import as_json, report
from scripts.bench_media.wire import ChildError
from scripts.loopback import only_loopback


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench_media", description=__doc__)
    parser.add_argument("--pipecat-python", type=Path, help="the interpreter of the environment that has pipecat")
    parser.add_argument("--servers", default="stock,ours,pipecat", help="which to compare (stock,ours,pipecat)")
    parser.add_argument("--quick", action="store_true", help="about a minute: 5 calls, one window each, no climb")
    parser.add_argument("--no-climb", action="store_true", help="leave out how many calls a core holds")
    parser.add_argument("--loss", action="store_true", help="add what packet loss does to stock's audio and to ours")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save every window too")
    options = parser.parse_args()
    interpreters = {"stock": sys.executable, "ours": sys.executable, "pipecat": options.pipecat_python}
    servers = {name: str(interpreters[name]) for name in options.servers.split(",") if interpreters[name]}
    plan = QUICK if options.quick else Plan(climb=() if options.no_climb else Plan().climb)
    cores = choose_cores()
    machine = machine_line()
    print(f"before: {machine}; {cores.describe()}")
    try:
        measured = asyncio.run(Bench(servers, cores, say=say).run(plan))
    except ChildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"after:  {machine_line()}\n\n{report(measured, tuple(servers))}")
    rows = measured_losses() if options.loss else []
    if rows:
        print(f"\n{loss_table(rows)}")
    if options.json:
        saved = as_json(measured, tuple(servers), machine) | {"loss": [loss_row(row) for row in rows]}
        options.json.write_text(json.dumps(saved, indent=1) + "\n")
    return 0


def measured_losses() -> list[LossRow]:
    """16 s of speech through the relay at each loss, to both in this process."""
    only_loopback()
    return asyncio.run(measure_losses(packets=800))


def loss_row(row: LossRow) -> dict[str, Any]:
    return {
        "server": row.kind,
        "loss_percent": row.loss_percent,
        "delay_p50_ms": median(row.delays_ms),
        "worst_gap_ms": row.worst_gap_ms,
        "missing_share": row.missing / row.expected,
    }


def say(line: str) -> None:
    """Progress, apart from the result."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
