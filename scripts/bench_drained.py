"""What a load leaves in a gateway: memory, tasks, threads and descriptors after each of some equal loads.

    python -m scripts.bench_drained [--rounds 3] [--calls 40] [--for 200]

The first load may leave something (what is imported and kept at first use); a load on a process that had one and
drained must not. Exit code 1 if one did, or if calls were not good. With the defaults a load is some 2,000 short calls.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from scripts.loadtest import gateway

SETTLE_S = 6.0
"""The gateway tidies up two to three seconds after the last call."""
MORE_MB = 2.0
SPARE_CALLS = 2
"""Places for each call that is up on average: arrivals are a Poisson process."""


@dataclass(frozen=True, slots=True)
class Drained:
    """What a gateway without calls holds."""

    rss_mb: float
    fds: int
    threads: int
    tasks: int
    calls: int
    """Ended so far."""

    def __str__(self) -> str:
        held = f"{self.rss_mb:.1f} MB, {self.fds} descriptors, {self.threads} threads, {self.tasks} tasks"
        return f"{held} after {self.calls} calls"


def read(exposition: str) -> Drained:
    """From the text of ``/metrics``."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return Drained(
        rss_mb=values["process_resident_memory_bytes"] / 2**20,
        fds=int(values["process_open_fds"]),
        threads=int(values["process_threads"]),
        tasks=int(values["offhook_tasks"]),
        calls=int(values.get("offhook_calls_total", 0.0)),
    )


def grown(drained: Sequence[Drained]) -> list[str]:
    """What is more than it was after the first load."""
    first, last = drained[0], drained[-1]
    found = [] if last.rss_mb - first.rss_mb < MORE_MB else [f"memory: {last.rss_mb - first.rss_mb:.1f} MB more"]
    for what in ("fds", "threads", "tasks"):
        more = getattr(last, what) - getattr(first, what)
        if more > 0:
            found.append(f"{what}: {more} more")
    return found


def main(given: Sequence[str]) -> int:
    options = _options(given)
    drained: list[Drained] = []
    good = True
    with gateway(max_calls=SPARE_CALLS * options.calls) as url:
        place = urlsplit(url)
        metrics = f"http://{place.netloc}/metrics"
        print(f"before: {_look(metrics)}", flush=True)
        for number in range(1, options.rounds + 1):
            good = _load(url, options.calls, options.for_s, number) and good
            time.sleep(SETTLE_S)
            drained.append(_look(metrics))
            print(f"load {number}: {drained[-1]}", flush=True)
    found = grown(drained)
    print("\n".join(found) if found else "nothing is left")
    return 0 if good and not found else 1


def _options(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_drained", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=40, help="up at once, on average")
    parser.add_argument("--for", type=float, default=200.0, dest="for_s", help="seconds a load lasts")
    return parser.parse_args(given)


def _load(url: str, calls: int, for_s: float, seed: int) -> bool:
    """Whether it was good; a load test that was late itself says nothing against the gateway."""
    command = [sys.executable, "-m", "gateway.cli", "loadtest", "churn", "--url", url, "--calls", str(calls)]
    ended = subprocess.run([*command, "--for", str(for_s), "--seed", str(seed)], check=False)
    return ended.returncode in (0, 3)


def _look(metrics: str) -> Drained:
    with urlopen(metrics, timeout=10) as answer:
        return read(answer.read().decode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
