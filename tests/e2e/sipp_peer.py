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
    errors: str
    """What sipp says of messages that it did not expect."""


class Sipp:
    """One run, from its start on."""

    def __init__(self, folder: Path, scenario: str, process: asyncio.subprocess.Process, within_s: float) -> None:
        self._folder, self._scenario, self._process, self._within_s = folder, scenario, process, within_s

    async def done(self, *, all_good: bool = True) -> Ran:
        """Wait for its last call. Fails if one did not go through, unless not ``all_good``."""
        async with asyncio.timeout(self._within_s):
            output, _ = await self._process.communicate()
        ran = self._ran()
        if all_good:
            assert self._process.returncode == 0, (self._process.returncode, ran, output.decode()[-2000:])
            assert ran.failed == 0, ran
        return ran

    def _ran(self) -> Ran:
        errors = "".join(path.read_text() for path in self._folder.glob("*_errors.log"))
        rows = list(csv.DictReader((self._folder / "stat.csv").read_text().splitlines(), delimiter=";"))
        last = rows[-1] if rows else {}
        counters = {name[:-3]: int(last[name]) for name in last if name.endswith("(C)") and name[:-3].islower()}
        return Ran(int(last.get("SuccessfulCall(C)", 0)), int(last.get("FailedCall(C)", 0)), counters, errors)


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
    folder.mkdir(exist_ok=True)
    (folder / "pcap").exists() or (folder / "pcap").symlink_to(PCAPS)
    arguments = ["-sf", str(SCENARIOS / f"{scenario}.xml"), "-i", host, "-p", str(free_port()), "-bind_local", "-mi", host]
    arguments += ["-mp", str(free_port()), "-cp", str(free_port()), "-m", str(calls), "-l", str(calls)]
    arguments += ["-r", str(rate or 1_000), "-nostdin", "-timeout", f"{within_s}s", "-timeout_error"]
    arguments += ["-trace_err", "-trace_stat", "-stf", "stat.csv", "-fd", "1", *options]
    process = await asyncio.create_subprocess_exec(
        "sipp",
        f"{LOOPBACK}:{port}",
        *arguments,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield Sipp(folder, scenario, process, within_s + 5)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def run_sipp(folder: Path, scenario: str, port: int, *options: str, **given: int | str) -> Ran:
    async with sipp(folder, scenario, port, *options, **given) as running:  # type: ignore[arg-type]
        return await running.done()
