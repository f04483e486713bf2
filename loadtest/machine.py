"""The machine that callers run on, for reports."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from loadtest.readings import Machine


def load_average() -> float | None:
    """Over one minute."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:  # not told here
        return None


def this_machine(load_before: float | None) -> Machine:
    """Now, at the end of a run."""
    return Machine(
        cores=os.cpu_count() or 1,
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        load_before=load_before,
        load_after=load_average(),
    )


def _processor() -> str:
    try:
        told = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in told.splitlines() if line.startswith("model name"))
    return next(names, platform.machine())
