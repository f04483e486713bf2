"""``make bench-call``: a gateway of its own, called by two agents' callers: speculation off, and on.

The agents are the default one twice, without its greeting: it is spoken from a cache and tells nothing of a turn.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys

from gateway.settings import DEFAULT_AGENT

VARIANTS = {"waiting": False, "speculating": True}


def main() -> int:
    parser = argparse.ArgumentParser(description="Latency per stage, speculation off and on.")
    parser.add_argument("--preset", default="embedded")
    parser.add_argument("--calls", type=int, default=20, help="measured calls a variant")
    options = parser.parse_args()
    table = DEFAULT_AGENT.model_dump(mode="json", exclude={"greeting"}, exclude_none=True)
    agents = {name: {**table, "speculate": speculate} for name, speculate in VARIANTS.items()}
    gateway = subprocess.Popen(
        [sys.executable, "-m", "gateway.cli", "serve", "--preset", options.preset, "--port", "0"],
        env={**os.environ, "OFFHOOK_AGENTS": json.dumps(agents), "OFFHOOK_LOG_LEVEL": "warning"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert gateway.stdout is not None
    try:
        line = gateway.stdout.readline()
        if not line.startswith("Listening on http"):
            return gateway.wait() or 1
        url = line.removeprefix("Listening on ").strip().replace("http", "ws", 1) + "/v1/realtime"
        variants = [f"--variant={name}={url}?agent={name}" for name in VARIANTS]
        return subprocess.call([sys.executable, "-m", "loadtest.bench_call", *variants, "--calls", str(options.calls)])
    finally:
        gateway.send_signal(signal.SIGTERM)
        gateway.wait()


if __name__ == "__main__":
    sys.exit(main())
