"""Whether there is memory for a model, before it is loaded: a refusal that names the shortfall, not a killed process.

What a model declares plus a reserve must be available. On Linux that is ``MemAvailable``, and what the process's
control groups leave; under memory pressure (PSI) the reserve doubles. On macOS it is what the kernel could hand out
(free, inactive, speculative and purgeable pages), and the kernel's own pressure level. If it is short, models that
nobody uses are unloaded, the least recently used first.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog

from engines.api import EngineError

RESERVE_MB = 1536
PRESSURE_FACTOR = 2
"""What the reserve is multiplied by while the machine is short already."""
IDLE_S = 10.0
"""A model used less long ago is in use."""
PRESSURE_PERCENT = 10.0
"""PSI: in this share of the last ten seconds something waited for memory."""
UNLIMITED_BYTES = 1 << 60
WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".npz", ".pt", ".pth", ".onnx", ".gguf"})

_MB = 1 << 20
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Reading:
    """``available_mb`` is infinite where it can't be told: a guess refuses no model. ``limit`` says what sets the
    bound: ``system``, or a control group."""

    available_mb: float
    under_pressure: bool = False
    limit: str = "system"


class Unloadable(Protocol):
    """A model that can be given up and loaded again when it is needed."""

    @property
    def name(self) -> str: ...

    def idle_s(self) -> float | None:
        """Seconds since it was last used; None while it is in use, or not loaded."""

    async def unload(self) -> None: ...


class MemoryGuard:
    """Admits loads one after the other; what is admitted and not yet loaded counts as taken."""

    def __init__(self, read: Callable[[], Reading] | None = None, *, reserve_mb: float = RESERVE_MB) -> None:
        self._read = read or read_memory
        self._reserve_mb = reserve_mb
        self._promised_mb = 0.0
        self._unloadable: list[Unloadable] = []
        self._turn = asyncio.Lock()

    def may_unload(self, model: Unloadable) -> None:
        """From now on this one may be unloaded for another."""
        self._unloadable.append(model)

    @contextlib.asynccontextmanager
    async def room_for(self, name: str, need_mb: float) -> AsyncIterator[None]:
        """Load inside; what is free afterwards is measured anew.

        Raises:
            EngineError: ``not_enough_memory``.
        """
        if need_mb <= 0:
            yield
            return
        async with self._turn:
            await self._make_room(name, need_mb)
            self._promised_mb += need_mb
        try:
            yield
        finally:
            self._promised_mb -= need_mb

    async def _make_room(self, name: str, need_mb: float) -> None:
        while True:
            reading = await asyncio.to_thread(self._read)
            reserve_mb = self._reserve_mb * (PRESSURE_FACTOR if reading.under_pressure else 1)
            free_mb = max(0.0, reading.available_mb - self._promised_mb)
            short_mb = need_mb + reserve_mb - free_mb
            if short_mb <= 0:
                return
            idle = [(idle_s, model) for model in self._unloadable if (idle_s := model.idle_s()) is not None]
            longest = max(idle, key=lambda entry: entry[0], default=None)
            if longest is None or longest[0] < IDLE_S:
                raise EngineError("not_enough_memory", refusal(name, need_mb, reserve_mb, free_mb, reading))
            _log.warning(
                "unloading a model for another", model=longest[1].name, needed_by=name, short_mb=round(short_mb)
            )
            await longest[1].unload()


def refusal(name: str, need_mb: float, reserve_mb: float, free_mb: float, reading: Reading) -> str:
    why = " (under memory pressure)" if reading.under_pressure else ""
    where = "" if reading.limit == "system" else f" in this {reading.limit}"
    return (
        f"not enough memory for {name}: needs {_gb(need_mb)} + {_gb(reserve_mb)} reserve{why}, "
        f"{_gb(free_mb)} available{where}, short by {_gb(need_mb + reserve_mb - free_mb)}"
    )


def read_memory(platform: str = sys.platform) -> Reading:
    """What could be taken now without anything else being pushed out."""
    return read_macos() if platform == "darwin" else read_linux()


def read_linux(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Reading:
    """``MemAvailable`` of meminfo(5), bounded by every control group above the process (version 2, else 1)."""
    said = _fields(proc / "meminfo", r"(\w+):\s+(\d+) kB").get("MemAvailable")
    available: float = math.inf if said is None else said * 1024
    limit = "system"
    for left in _groups_leave(proc, cgroups):
        if left < available:
            available, limit = left, "control group"
    pressure = _text(proc / "pressure" / "memory")
    some = re.search(r"some avg10=([\d.]+)", pressure)
    return Reading(max(0, available) / _MB, some is not None and float(some[1]) >= PRESSURE_PERCENT, limit)


def _groups_leave(proc: Path, cgroups: Path) -> list[int]:
    names = dict(
        line.split(":", 2)[1:] for line in _text(proc / "self" / "cgroup").splitlines() if line.count(":") >= 2
    )
    if "" in names and not (cgroups / "memory").is_dir():
        root, path, files = cgroups, names[""], ("memory.max", "memory.current", "inactive_file")
    else:
        path = next((path for kinds, path in names.items() if "memory" in kinds.split(",")), "/")
        root, files = cgroups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    # In a container the group's own path is often not visible: the root is then the group itself.
    group = root / path.strip("/")
    if not group.is_dir():
        group = root
    leave: list[int] = []
    while True:
        limit, used = _number(group / files[0]), _number(group / files[1])
        if limit is not None and used is not None and limit < UNLIMITED_BYTES:
            cache = _fields(group / "memory.stat", r"(\w+) (\d+)").get(files[2], 0)
            leave.append(limit - used + cache)
        if group == root:
            return leave
        group = group.parent


def read_macos(run: Callable[[list[str]], str] | None = None) -> Reading:
    """From ``vm_stat`` and the kernel's memory pressure level (1 normal, 2 warning, 4 critical).

    Written from their manuals and never run on a Mac.
    """
    ask = run or _run
    text = ask(["vm_stat"])
    page = re.search(r"page size of (\d+) bytes", text)
    pages = {name: int(count) for name, count in re.findall(r"Pages ([\w ]+):\s+(\d+)\.", text)}
    free: float = sum(pages.get(name, 0) for name in ("free", "inactive", "speculative", "purgeable"))
    if not pages:
        free = math.inf
    level = ask(["sysctl", "-n", "kern.memorystatus_vm_pressure_level"]).strip()
    return Reading(free * (int(page[1]) if page else 16_384) / _MB, level.isdecimal() and int(level) > 1)


def footprint_bytes() -> int:
    """Physical memory that this process holds now; 0 if that can't be told. On macOS its physical footprint, which
    counts compressed pages and what the GPU driver holds for it (the resident size counts neither)."""
    if sys.platform == "darwin":
        return _macos_footprint()
    pages = _text(Path("/proc/self/statm")).split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else 0


def _macos_footprint() -> int:
    """``ri_phys_footprint`` of ``proc_pid_rusage`` (libproc.h, flavour 2): after a 16-byte id, the eighth 64-bit
    count. Never run on a Mac."""
    usage = (ctypes.c_uint64 * 32)()
    try:
        failed = ctypes.CDLL("/usr/lib/libproc.dylib").proc_pid_rusage(os.getpid(), 2, ctypes.byref(usage))
    except OSError:
        return 0
    return 0 if failed else int(usage[2 + 7])


def device_short(mx: Any, need_mb: float) -> str | None:
    """What is missing on MLX's device for a model, in words; None if nothing is, or it has no memory of its own.

    Runs on the MLX thread. Metal tells what it advises to keep at most, CUDA what the device has.
    """
    info: Mapping[str, Any] = mx.device_info()
    limit = info.get("max_recommended_working_set_size") or info.get("total_memory") or info.get("memory_size") or 0
    if not limit or need_mb <= 0:
        return None
    free_mb = max(0.0, (int(limit) - mx.get_active_memory()) / _MB)
    if free_mb >= need_mb:
        return None
    return (
        f"needs {_gb(need_mb)}, {_gb(free_mb)} available on {info.get('device_name', 'the device')}, "
        f"short by {_gb(need_mb - free_mb)}"
    )


def weights_mb(folder: Path) -> float:
    """A guess at what a model will hold, from its files: what it computes with comes to a quarter of them, and more."""
    files = (path for path in folder.rglob("*") if path.suffix in WEIGHT_SUFFIXES and path.is_file())
    return sum(path.stat().st_size for path in files) / _MB * 1.25 + 200


def _gb(mb: float) -> str:
    return f"{mb / 1024:.1f} GB"


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text("utf-8")
    return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _fields(path: Path, pattern: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(pattern, _text(path))}


def _run(command: list[str]) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout
    return ""
