"""The machine under a measurement: which cores, and how busy they are."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Cores:
    """The server's, and the callers'; none where processes cannot be pinned."""

    server: int | None
    callers: tuple[int, ...]

    @property
    def pin(self) -> str | None:
        """As ``offhook loadtest --pin`` has it."""
        return ",".join(map(str, self.callers)) or None

    def describe(self) -> str:
        if self.server is None:
            return "not pinned: this system cannot"
        if self.server in self.callers:
            return f"server and callers share core {self.server}: the machine has one, and the figures are poor"
        return f"server on core {self.server}, callers on {self.pin}"


def choose_cores() -> Cores:
    """The last for the server; for the callers those that are no threads of the same core, if there are."""
    if not hasattr(os, "sched_setaffinity"):
        return Cores(None, ())
    allowed = sorted(os.sched_getaffinity(0))
    siblings = _siblings(allowed[-1])
    return Cores(allowed[-1], tuple(core for core in allowed if core not in siblings) or tuple(allowed[:-1] or allowed))


def busy_s(core: int | None) -> float | None:
    """How long a core has been busy, for whomever. None where there is no core to tell of."""
    if core is None:
        return None
    times: dict[str, float] = psutil.cpu_times(percpu=True)[core]._asdict()
    # A guest's time is in the user's already.
    return sum(seconds for name, seconds in times.items() if name not in ("idle", "iowait", "guest", "guest_nice"))


def machine_line() -> str:
    """The machine and how busy it is."""
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return f"{system}, load {load}"


def _siblings(core: int) -> set[int]:
    """Linux: a list such as 0-1,4."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
    except OSError:
        return {core}
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
