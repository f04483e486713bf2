"""``make bench-phones``: what a phone call costs over SIP and Twilio's media WebSocket, and how many a core holds."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from engines import fetch
from scripts.bench_media.machine import choose_cores, machine_line
from scripts.bench_media.wire import ChildError
from scripts.bench_phones.measure import QUICK, SUBJECTS, WIRES, Bench, Case, Plan
from scripts.bench_phones.report import as_json, report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench_phones", description=__doc__)
    parser.add_argument("--wires", default=",".join(WIRES), help="which to measure (sip,twilio)")
    parser.add_argument("--subjects", default=",".join(SUBJECTS), help="what stands behind them (echo,call)")
    parser.add_argument("--vad", default="on,off", help="whether Silero listens (on,off)")
    parser.add_argument("--quick", action="store_true", help="about a minute: 30 calls, one window each, no climb")
    parser.add_argument("--no-climb", action="store_true", help="leave out how many calls a core holds")
    parser.add_argument("--climb", help="the levels of the climb instead of the usual ones, such as 100,200,300")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save every window too")
    options = parser.parse_args()
    cases = tuple(
        Case(wire, subject, vad == "on")
        for wire in options.wires.split(",")
        for subject in options.subjects.split(",")
        for vad in options.vad.split(",")
    )
    climb = tuple(int(level) for level in options.climb.split(",")) if options.climb else Plan().climb
    plan = QUICK if options.quick else Plan(climb=() if options.no_climb else climb)
    cores = choose_cores()
    machine = machine_line()
    print(f"before: {machine}; {cores.describe()}")
    try:
        with fetch.console_progress() as progress:
            vad_model = fetch.ensure("silero-vad", progress)
        measured = asyncio.run(Bench(cases, cores, vad_model, say=say).run(plan))
    except ChildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"after:  {machine_line()}\n\n{report(measured, cases)}")
    if options.json:
        options.json.write_text(json.dumps(as_json(measured, cases, machine), indent=1) + "\n")
    return 0


def say(line: str) -> None:
    """Progress, apart from the result."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
