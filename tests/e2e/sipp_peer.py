"""sipp as a caller: a scenario of tests/e2e/sipp, run against a gateway, and what came of its calls.

Each scenario is a file of its own that can be run by hand: docs/telephony/testing-sip.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.ports import LOOPBACK, free_port

SCENARIOS = Path(__file__).parent / "sipp"
OUTPUT = "output.log"
PCAPS = Path("/usr/share/sip-tester")

needs_sipp = pytest.mark.skipif(shutil.which("sipp") is None, reason="sipp is not installed (Debian: sip-tester)")


@dataclass(frozen=True)
class Ran:
    """What a run of sipp came to."""

    good: int
    """Calls that went through their scenario to its end."""
    failed: int
    counters: dict[str, int]
    """By the scenario's own names: how many calls got that far."""
    strays: int
    """Messages that came for no call, or for one that was over."""
    errors: str
    """What sipp says of messages that it did not expect."""


class Sipp:
    """One run, from its start on."""

    def __init__(self, name: str, folder: Path, process: asyncio.subprocess.Process, within_s: float) -> None:
        self.name, self._folder, self._process, self._within_s = name, folder, process, within_s

    async def done(self, *, all_good: bool = True) -> Ran:
        """Wait for its last call. Fails if one did not go through, unless not ``all_good``."""
        async with asyncio.timeout(self._within_s):
            code = await self._process.wait()
        if all_good:
            assert code == 0, (code, self._errors(), (self._folder / OUTPUT).read_text()[-2000:])
        ran = self._ran()
        assert ran.failed == 0 or not all_good, ran
        return ran

    def _ran(self) -> Ran:
        rows = list(csv.DictReader((self._folder / "stat.csv").read_text().splitlines(), delimiter=";"))
        last = rows[-1] if rows else {}
        counters = {name[:-3]: int(last[name]) for name in last if name.endswith("(C)") and name[:-3].islower()}
        good, failed, *strays = (
            int(last.get(f"{name}(C)", 0)) for name in ("SuccessfulCall", "FailedCall", "OutOfCallMsgs", "DeadCallMsgs")
        )
        return Ran(good, failed, counters, sum(strays), self._errors())

    def _errors(self) -> str:
        return "".join(path.read_text() for path in self._folder.glob("*_errors.log"))


@contextlib.asynccontextmanager
async def sipp(
    folder: Path,
    scenario: str,
    port: int,
    *options: str,
    calls: int = 1,
    rate: int = 0,
    host: str = LOOPBACK,
    within_s: int = 25,
) -> AsyncIterator[Sipp]:
    """Place ``calls`` at ``rate`` a second (0: all at once), as tests/e2e/sipp/``scenario``.xml says. Whatever is left
    of it at the end is killed."""
    _prepare(folder)
    arguments = ["-sf", str(SCENARIOS / f"{scenario}.xml"), "-i", host, "-p", str(free_port()), "-bind_local"]
    arguments += ["-mi", host, "-mp", str(free_port(above=3)), "-cp", str(free_port())]
    arguments += ["-m", str(calls), "-l", str(calls)]
    arguments += ["-r", str(rate or 1_000), "-nostdin", "-timeout", f"{within_s}s", "-timeout_error"]
    arguments += ["-trace_err", "-trace_stat", "-stf", "stat.csv", "-fd", "1", *options]
    async with launched(folder, f"{LOOPBACK}:{port}", *arguments) as process:
        yield Sipp(scenario, folder, process, within_s + 5)


@contextlib.asynccontextmanager
async def launched(folder: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """sipp with these arguments; killed at the end if it still runs."""
    with (folder / OUTPUT).open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            "sipp", *arguments, cwd=folder, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _prepare(folder: Path) -> None:
    """sipp looks for recordings beside its scenario, or where it is started."""
    folder.mkdir(exist_ok=True)
    pcap = folder / "pcap"
    if not pcap.exists():
        pcap.symlink_to(PCAPS)


async def run_sipp(
    folder: Path, scenario: str, port: int, *options: str, calls: int = 1, rate: int = 0, host: str = LOOPBACK
) -> Ran:
    """:func:`sipp` from its first call to its last, all of which go through."""
    async with sipp(folder, scenario, port, *options, calls=calls, rate=rate, host=host) as running:
        return await running.done()
