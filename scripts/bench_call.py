"""``make bench-call``: a gateway of its own, called by two agents' callers: speculation off, and on.

The agents are the default one twice, without its greeting: it is spoken from a cache and tells nothing of a turn. Then
the same calls go to a gateway with the scripted engines, which take no time: what is left of their voice-to-voice
beside the silence that ends a turn and the caller's own buffer is the gateway's own share.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from gateway.agent_settings import DEFAULT_AGENT
from loadtest.bench_call import HEARD, Variant, machine_line, run_bench, stage_table
from loadtest.playout import PREBUFFER_MS

VARIANTS = {"waiting": False, "speculating": True}


def main() -> int:
    parser = argparse.ArgumentParser(description="Latency per stage, speculation off and on, and the gateway's share.")
    parser.add_argument("--preset", default="embedded")
    parser.add_argument("--calls", type=int, default=20, help="measured calls a variant")
    options = parser.parse_args()
    print(f"before: {machine_line()}")
    measured = measure(options.preset, options.calls)
    own = measure("null", max(3, options.calls // 4))
    print(f"after:  {machine_line()}\n{stage_table(measured)}")
    waits_ms = DEFAULT_AGENT.silence_ms + PREBUFFER_MS
    share_ms = float(np.percentile(own[-1].times[HEARD], 50)) - waits_ms if HEARD in own[-1].times else float("nan")
    print(f"the gateway's own share (engines that take no time, less {waits_ms} ms of waits), p50: {share_ms:.0f} ms")
    return 1 if any(variant.unanswered for variant in (*measured, *own)) else 0


def measure(preset: str, calls: int) -> list[Variant]:
    """Both variants, their calls taking turns."""
    with gateway(preset) as url:
        variants = [Variant(name, f"{url}?agent={name}") for name in VARIANTS]
        asyncio.run(run_bench(variants, calls=calls))
    return variants


@contextlib.contextmanager
def gateway(preset: str) -> Iterator[str]:
    """A gateway of this checkout; gives the URL to call."""
    table = DEFAULT_AGENT.model_dump(mode="json", exclude={"greeting"}, exclude_none=True)
    agents = {name: {**table, "speculate": speculate} for name, speculate in VARIANTS.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.cli", "serve", "--preset", preset, "--port", "0"],
        env={**os.environ, "OFFHOOK_AGENTS": json.dumps(agents), "OFFHOOK_LOG_LEVEL": "warning"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("Listening on http"):
            sys.exit(process.wait() or 1)
        yield line.removeprefix("Listening on ").strip().replace("http", "ws", 1) + "/v1/realtime"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
