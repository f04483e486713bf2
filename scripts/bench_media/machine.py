"""The machine under the measurement: which cores, and what else they do."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Cores:
    """The core of the server and that of the callers; None where processes cannot be pinned."""

    server: int | None
    callers: int | None

    def describe(self) -> str:
        if self.server is None:
            return "not pinned: this system cannot"
        if self.server == self.callers:
            return f"server and callers share core {self.server}: the machine has one, and the figures are poor"
        return f"server on core {self.server}, callers on core {self.callers}"


def choose_cores() -> Cores:
    """Two cores that are not two threads of one, if there are."""
    if not hasattr(os, "sched_setaffinity"):
        return Cores(None, None)
    allowed = sorted(os.sched_getaffinity(0))
    siblings = _siblings(allowed[0])
    others = [core for core in allowed if core not in siblings] or allowed[1:] or allowed
    return Cores(server=others[-1], callers=allowed[0])


def pin(core: int) -> None:
    """Keep this process, and the threads it will start, on one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


@dataclass(frozen=True, slots=True)
class CoreClock:
    """How long one core has been busy, for whomever, in seconds. None where the system does not tell."""

    busy_s: float | None
    at_s: float

    @classmethod
    def read(cls, core: int | None) -> CoreClock:
        return cls(None if core is None else _busy_s(core), time.monotonic())

    def others_since(self, before: CoreClock, own_s: float) -> float | None:
        """The share of the core that others than a process which took ``own_s`` have had since ``before``."""
        if self.busy_s is None or before.busy_s is None:
            return None
        return max(0.0, (self.busy_s - before.busy_s - own_s) / (self.at_s - before.at_s))


def machine_line() -> str:
    """The machine and how busy it is."""
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return f"{system}, load {load}"


def _siblings(core: int) -> set[int]:
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
    except OSError:
        return {core}
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _busy_s(core: int) -> float | None:
    """From proc(5), /proc/stat: all but idle, iowait and the guests' time, which is in user and nice already."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, *fields = line.split()
        if name == f"cpu{core}":
            user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[:8])
            return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return None
