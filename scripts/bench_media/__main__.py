"""``make bench-media``: what a WebRTC call costs: stock aiortc, this gateway, and pipecat, in one run."""

from __future__ import annotations

import asyncio
import sys
from itertools import product

from scripts.bench_loss import loss_table, measure_losses
from scripts.bench_media.talk import Pattern
from scripts.call_cost.bench import Measured, Plan
from scripts.call_cost.command import parser_of, plan_of, run
from scripts.call_cost.servers import PORT, Subject
from scripts.call_cost.table import ratios
from scripts.call_cost.windows import TALKERS
from scripts.loopback import only_loopback

USUAL = Plan(calls=(5, 10), climb=(10, 80))
QUICK = Plan(calls=(5,), rounds=1, ramp_s=2.0, window_s=10.0)
ALWAYS, HALF = "talks all the time", "talks half the time"
PATTERNS = {ALWAYS: Pattern(3_000, 0), HALF: Pattern(3_000, 3_000)}
AIMS = {("stock", ALWAYS): 0.65, ("stock", HALF): 0.50}
"""Ours against stock: no more than this share of its cost."""

LOSS_PACKETS = 800


def subject(kind: str, python: str, asked: str) -> Subject:
    """``kind`` of server, run by ``python``, whose agents talk as is asked of them."""
    pattern = PATTERNS[asked]
    command = (python, "-m", "scripts.bench_media.server", kind, PORT, str(pattern.on_ms), str(pattern.off_ms))
    return Subject(kind, asked, command, f"http://127.0.0.1:{PORT}", TALKERS, {"LOGURU_LEVEL": "ERROR"})


def beside(measured: Measured) -> str:
    return ratios(measured.windows, "ours", AIMS)


def main() -> int:
    parser = parser_of("scripts.bench_media", __doc__)
    parser.add_argument("--pipecat-python", help="the interpreter of the environment that has pipecat")
    parser.add_argument("--servers", default="stock,ours,pipecat", help="which to compare (stock,ours,pipecat)")
    parser.add_argument("--loss", action="store_true", help="add what packet loss does to stock's audio and to ours")
    options = parser.parse_args()
    interpreters = {"stock": sys.executable, "ours": sys.executable, "pipecat": options.pipecat_python}
    kinds = [kind for kind in options.servers.split(",") if interpreters[kind]]
    subjects = [subject(kind, interpreters[kind], asked) for asked, kind in product(PATTERNS, kinds)]
    climbing = [each for each in subjects if each.asked == ALWAYS]
    code = run(subjects, plan_of(options, USUAL, QUICK), beside, climbing=climbing, save=options.json)
    if options.loss and not code:
        only_loopback()
        print(f"\n{loss_table(asyncio.run(measure_losses(packets=LOSS_PACKETS)))}")
    return code


if __name__ == "__main__":
    sys.exit(main())
