"""``make bench-media``: what a WebRTC call costs: stock aiortc, this gateway, and pipecat, in one run."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from scripts.bench_media.machine import choose_cores, machine_line
from scripts.bench_media.measure import QUICK, Bench, Plan
from scripts.bench_media.report import as_json, report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench_media", description=__doc__)
    parser.add_argument("--pipecat-python", type=Path, help="the interpreter of the environment that has pipecat")
    parser.add_argument("--servers", default="stock,ours,pipecat", help="which to compare (stock,ours,pipecat)")
    parser.add_argument("--quick", action="store_true", help="about a minute: 5 calls, one window each, no climb")
    parser.add_argument("--no-climb", action="store_true", help="leave out how many calls a core holds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save every window too")
    options = parser.parse_args()
    interpreters = {"stock": sys.executable, "ours": sys.executable, "pipecat": options.pipecat_python}
    servers = {name: str(interpreters[name]) for name in options.servers.split(",") if interpreters[name]}
    plan = QUICK if options.quick else Plan(climb=() if options.no_climb else Plan().climb)
    cores = choose_cores()
    machine = machine_line()
    print(f"before: {machine}; {cores.describe()}")
    measured = asyncio.run(Bench(servers, cores, say=say).run(plan))
    print(f"after:  {machine_line()}\n\n{report(measured, tuple(servers))}")
    if options.json:
        options.json.write_text(json.dumps(as_json(measured, tuple(servers), machine), indent=1) + "\n")
    return 0


def say(line: str) -> None:
    """Progress, apart from the result."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
