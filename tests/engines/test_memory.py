"""Room for a model: what is read, what is refused and in which words, what is unloaded for it."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines.api import EngineError
from engines.memory import (
    IDLE_S,
    MemoryGuard,
    Reading,
    device_short,
    footprint_bytes,
    read_linux,
    read_macos,
    read_memory,
    weights_mb,
)


class Model:
    """Takes ``mb`` of what :class:`Machine` has until it is unloaded."""

    def __init__(self, machine: Machine, name: str, mb: float, idle_s: float | None) -> None:
        self.machine = machine
        self.name = name
        self.mb = mb
        self.idle: float | None = idle_s

    def idle_s(self) -> float | None:
        return self.idle

    async def unload(self) -> None:
        self.machine.unloaded.append(self.name)
        self.machine.free_mb += self.mb
        self.idle = None


class Machine:
    def __init__(self, free_mb: float, *, under_pressure: bool = False) -> None:
        self.free_mb = free_mb
        self.under_pressure = under_pressure
        self.unloaded: list[str] = []

    def read(self) -> Reading:
        return Reading(self.free_mb, self.under_pressure)


async def test_a_refusal_names_the_shortfall() -> None:
    guard = MemoryGuard(Machine(2.2 * 1024).read, reserve_mb=1536)
    with pytest.raises(EngineError) as caught:
        async with guard.room_for("qwen3-4b", 3.1 * 1024):
            pytest.fail("loaded")
    assert caught.value.code == "not_enough_memory"
    assert str(caught.value) == (
        "not enough memory for qwen3-4b: needs 3.1 GB + 1.5 GB reserve, 2.2 GB available, short by 2.4 GB"
    )


async def test_under_pressure_the_reserve_is_larger() -> None:
    machine = Machine(3000)
    guard = MemoryGuard(machine.read, reserve_mb=1500)
    async with guard.room_for("a", 1000):
        pass
    machine.under_pressure = True
    with pytest.raises(EngineError, match=r"2\.9 GB reserve \(under memory pressure\)"):
        async with guard.room_for("a", 1000):
            pytest.fail("loaded")


async def test_what_is_being_loaded_counts_as_taken_until_it_is_measured() -> None:
    machine = Machine(3000)
    guard = MemoryGuard(machine.read, reserve_mb=1000)
    async with guard.room_for("a", 1500):
        with pytest.raises(EngineError, match=r"1\.5 GB available"):
            async with guard.room_for("b", 1000):
                pytest.fail("loaded")
    async with guard.room_for("b", 1000):  # the first turned out to need nothing
        pass
    with pytest.raises(ZeroDivisionError):
        async with guard.room_for("c", 1500):
            raise ZeroDivisionError
    async with guard.room_for("d", 1500):
        pass


async def test_what_needs_nothing_asks_nothing() -> None:
    def read() -> Reading:
        pytest.fail("asked")

    async with MemoryGuard(read).room_for("scripted", 0):
        pass


async def test_the_least_recently_used_is_unloaded_first_and_no_more_than_needed() -> None:
    machine = Machine(1000)
    guard = MemoryGuard(machine.read, reserve_mb=1000)
    for name, mb, idle_s in (
        ("newer", 400, 60.0),
        ("oldest", 300, 900.0),
        ("old", 300, 600.0),
        ("in use", 9000, None),
        ("just used", 9000, IDLE_S / 2),
    ):
        guard.may_unload(Model(machine, name, mb, idle_s))
    async with guard.room_for("wanted", 500):
        assert machine.unloaded == ["oldest", "old"]
    with pytest.raises(EngineError, match="short by"):
        async with guard.room_for("too much", 5000):
            pytest.fail("loaded")


async def test_two_that_ask_at_once_are_not_both_promised_the_same() -> None:
    guard = MemoryGuard(Machine(3000).read, reserve_mb=1000)
    entered: list[str] = []

    async def load(name: str) -> None:
        async with guard.room_for(name, 1500):
            entered.append(name)
            await asyncio.sleep(0.01)

    results = await asyncio.gather(load("a"), load("b"), return_exceptions=True)
    assert entered == ["a"]
    assert isinstance(results[1], EngineError)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8192000 kB\n"
PSI = "some avg10={} avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


def test_linux_has_what_meminfo_says(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    write(proc, {"meminfo": MEMINFO, "pressure/memory": PSI.format("9.99"), "self/cgroup": "0::/\n"})
    assert read_linux(proc, cgroups) == Reading(8000.0)
    write(proc, {"pressure/memory": PSI.format("10.00")})
    assert read_linux(proc, cgroups).under_pressure
    assert read_linux(tmp_path / "nothing", cgroups) == Reading(math.inf)


def test_the_tightest_control_group_above_us_sets_the_bound(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    write(proc, {"meminfo": MEMINFO, "self/cgroup": "0::/pod/us\n"})
    mb = 1 << 20
    write(
        cgroups,
        {
            "pod/us/memory.max": "max\n",
            "pod/us/memory.current": f"{100 * mb}\n",
            "pod/memory.max": f"{2000 * mb}\n",
            "pod/memory.current": f"{700 * mb}\n",
            "pod/memory.stat": f"anon {400 * mb}\ninactive_file {200 * mb}\n",
        },
    )
    assert read_linux(proc, cgroups) == Reading(1500.0, limit="control group")
    # In a container our own path is not there: what is mounted is our group.
    write(proc, {"self/cgroup": "0::/../elsewhere\n"})
    write(cgroups, {"memory.max": f"{900 * mb}\n", "memory.current": f"{1000 * mb}\n"})
    assert read_linux(proc, cgroups) == Reading(0.0, limit="control group")


def test_version_1_of_control_groups(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    write(proc, {"meminfo": MEMINFO, "self/cgroup": "12:cpu,cpuacct:/x\n5:memory:/docker/abc\n0::/x\n"})
    mb = 1 << 20
    group = {
        "memory.limit_in_bytes": f"{3000 * mb}\n",
        "memory.usage_in_bytes": f"{1000 * mb}\n",
        "memory.stat": f"inactive_file 1\ntotal_inactive_file {500 * mb}\n",
    }
    write(cgroups / "memory" / "docker" / "abc", group)
    write(cgroups / "memory", {"memory.limit_in_bytes": "9223372036854771712\n", "memory.usage_in_bytes": "1\n"})
    assert read_linux(proc, cgroups) == Reading(2500.0, limit="control group")


VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               64000.
Pages active:                            400000.
Pages inactive:                           32000.
Pages speculative:                        16000.
Pages purgeable:                          16000.
Pages wired down:                        100000.
"""


def test_macos_is_read_from_its_tools() -> None:
    answers = {"vm_stat": VM_STAT, "sysctl": "1\n"}
    assert read_macos(lambda command: answers[command[0]]) == Reading(2000.0)
    answers["sysctl"] = "2\n"
    assert read_macos(lambda command: answers[command[0]]).under_pressure
    assert read_macos(lambda command: "") == Reading(math.inf)


def test_this_machine_has_memory_and_so_do_we() -> None:
    assert read_memory().available_mb > 0
    assert footprint_bytes() > 1 << 20


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({"device_name": "AMD EPYC"}, None),
        ({"device_name": "M3", "max_recommended_working_set_size": 8 << 30}, None),
        (
            {"device_name": "M3", "max_recommended_working_set_size": 5 << 30},
            "needs 3.0 GB, 2.0 GB available on M3, short by 1.0 GB",
        ),
        ({"device_name": "H200", "total_memory": 140 << 30}, None),
    ],
)
def test_the_device_has_memory_of_its_own(info: dict[str, Any], said: str | None) -> None:
    mx = SimpleNamespace(device_info=lambda: info, get_active_memory=lambda: 3 << 30)
    assert device_short(mx, 3072) == said
    assert device_short(mx, 0) is None


def test_a_need_is_guessed_from_files_of_weights(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "model.safetensors").write_bytes(bytes(4 << 20))
    (tmp_path / "README.md").write_bytes(bytes(4 << 20))
    assert weights_mb(tmp_path) == 205.0
