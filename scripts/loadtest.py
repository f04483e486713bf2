"""``make loadtest``: a gateway of its own with scripted engines, simulated callers on it for a minute, and the report.

The engines take no time, so what is measured is transport and gateway. Whatever is given beside is passed on to
``offhook loadtest``, and wins over what is here: ``make loadtest LOADTEST="churn --calls 10"``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path

FOLDER = Path("artifacts/loadtest")
SCENARIO = "talk"
OPTIONS = {"--calls": "20", "--ramp": "5", "--for": "60"}
MAX_CALLS = 40
STOP_S = 45


def main(given: Sequence[str]) -> int:
    """Exit code of ``offhook loadtest``, or of a gateway that does not start."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    html = FOLDER / "report.html"
    with gateway() as url:
        code = run_out([sys.executable, "-m", "gateway.cli", "loadtest", *arguments(given, url, html)])
    if html.exists():
        address = html.resolve().as_uri()
        print(f"report: {address}")
        if on_a_screen():
            webbrowser.open(address)
    return code


def run_out(command: Sequence[str]) -> int:
    """Its exit code. Ctrl-C reaches it as well as us, and it has a report to write then: it is waited for."""
    with subprocess.Popen(command) as process:
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                return process.wait()


def arguments(given: Sequence[str], url: str, html: Path) -> list[str]:
    """What is given, and from here what is not."""
    scenario = [] if given and not given[0].startswith("-") else [SCENARIO]
    names = {word.partition("=")[0] for word in given}
    own = {"--html": str(html), "--json": str(html.with_suffix(".json")), "--url": url}
    own |= OPTIONS if scenario else {}
    added = [word for name, value in own.items() if name not in names for word in (name, value)]
    return [*scenario, *given, *added]


@contextlib.contextmanager
def gateway(max_calls: int = MAX_CALLS) -> Iterator[str]:
    """The address of a gateway that is stopped afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.cli", "serve"]
        + ["--preset", "null", "--port", "0", "--max-calls", str(max_calls), "--log-level", "warning"],
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # Ctrl-C is the load test's: the gateway stays until the report is written
    )
    try:
        yield _listening(process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _listening(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Listening on http"):
            return line.removeprefix("Listening on ").strip().replace("http", "ws", 1) + "/v1/realtime"
        print(line, end="")
    sys.exit(process.wait() or 1)


def on_a_screen() -> bool:
    """A browser that opened here would be seen."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
