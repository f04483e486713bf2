"""``python -m scripts.bench_pipecat``: what a call costs this gateway, and what it costs pipecat."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from scripts.bench_media.machine import choose_cores, machine_line
from scripts.bench_pipecat.measure import Plan, Window, typical, window
from scripts.bench_pipecat.servers import Delays, ours, pipecat

SPARE_CALLS = 8


async def measure(python: str, heard_hz: int, plans: list[Plan], rounds: int, delays: Delays) -> list[Window]:
    cores = choose_cores()
    print(f"{cores.describe()}; {machine_line()}", flush=True)
    subjects = [ours(delays, max(plan.calls for plan in plans) + SPARE_CALLS), pipecat(python, delays, heard_hz)]
    windows = []
    for plan in plans:
        for _ in range(rounds):
            for subject in subjects:
                windows.append(await window(subject, plan, cores))
                print(windows[-1].line(), flush=True)
    print(machine_line())
    return windows


def ratios(windows: list[Window], calls: list[int]) -> str:
    """One line a number of calls."""
    lines = []
    for count in calls:
        our, their = typical(windows, "offhook", count), typical(windows, "pipecat", count)
        if our is not None and their is not None:
            lines.append(
                f"{count} calls, ours to pipecat's: CPU a call {our.cpu_share / their.cpu_share:.2f}, memory a call "
                f"{our.resident_bytes / their.resident_bytes:.2f}, turns answered "
                f"{our.turns / max(1.0, their.turns):.2f}"
            )
    return "\n".join(lines)


def main(
    pipecat_python: Annotated[str, typer.Option(help="The interpreter of pipecat's environment.")],
    pipecat_hz: Annotated[int, typer.Option(help="Rate of pipecat's caller audio, 8000 or 16000.")] = 16_000,
    calls: Annotated[str, typer.Option(help="Calls at once, comma-separated.")] = "10,20",
    rounds: Annotated[int, typer.Option(min=1, help="Windows of each server at each number of calls.")] = 2,
    window_s: Annotated[float, typer.Option(min=10, help="Length of a window.")] = 30.0,
    ramp_s: Annotated[float, typer.Option(min=0, help="Seconds until all calls are up.")] = 4.0,
    scenario: Annotated[str, typer.Option(help="What the callers do.")] = "talk",
    save: Annotated[Path | None, typer.Option("--json", help="Write every window.")] = None,
) -> None:
    counts = [int(each) for each in calls.split(",")]
    plans = [Plan(count, ramp_s, window_s, scenario) for count in counts]
    windows = asyncio.run(measure(pipecat_python, pipecat_hz, plans, rounds, Delays()))
    if save is not None:
        save.write_text(json.dumps([asdict(each) for each in windows]))
    sys.stdout.write(ratios(windows, counts) + "\n")


if __name__ == "__main__":
    typer.run(main)
