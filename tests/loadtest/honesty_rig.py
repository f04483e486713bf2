"""The real load test in a process of its own, as ``offhook loadtest`` runs it, and what it judged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.settings import Settings
from loadtest import run_options
from loadtest.outcome import CallOutcome
from loadtest.run_report import RunReport, Verdict, from_json
from tests.serving import Served

VOID_P99_MS = 1_000.0
"""The tests' machine is shared: a run that is late itself is judged all the same, and what it shows counts. What it
does not show is no failure (:func:`shown_by`)."""

DRIVER = """
import json, sys
from pathlib import Path
from loadtest.load_test import run_load_test
from loadtest.run_options import ReportOptions, RunOptions
told = json.loads(sys.argv[1])
folder = Path(told.pop("folder"))
report = ReportOptions(json=folder / "report.json", html=folder / "report.html", quiet=True)
sys.exit(run_load_test(RunOptions(**{**told, "urls": tuple(told["urls"])}), report, None))
"""

SETTINGS = Settings.model_validate(
    {"preset": "null", "max_calls": 24, "twilio": {"enabled": True, "allow_unsigned": True}}
)

_HEAD = """
name: honesty
about: What a dishonest server does to callers.
patience: {greeting_ms: 300, answer_ms: 2500, agent_turn_ms: 6000, stalled_ms: 2000, pause_ms: 600}
expect: {answer_within_ms: 2500, stop_within_ms: 400, setup_within_ms: 2000, max_late_share: 0.02}
"""
"""Limits are wide where the tests' own machine may be slow: an honest server has to be good on it."""

_ASK = """
steps:
  - wait_agent
  - repeat:
      steps:
        - say: "Hello, can you hear me?"
        - wait_agent
"""

TALK = f"{_HEAD}arrivals: {{pattern: lines, calls: 4, ramp_s: 0.4, for_s: 8}}\nlength_s: 8{_ASK}"
SHORT = f"{_HEAD}arrivals: {{pattern: lines, calls: 2, ramp_s: 0.2, for_s: 4}}\nlength_s: 4{_ASK}"

INTERRUPT = f"""{_HEAD}
arrivals: {{pattern: lines, calls: 4, ramp_s: 0.4, for_s: 8}}
length_s: 8
steps:
  - wait_agent
  - repeat:
      steps:
        - say: "Tell me more."
        - interrupt: {{say: "Stop.", after_ms: 800}}
        - wait_agent
"""

DIALECTS = ("realtime", "twilio")


def address(here: Served, dialect: str) -> str:
    """Where the gateway itself is called."""
    return here.ws if dialect == "realtime" else f"twilio+{here.url.replace('http', 'ws', 1)}/v1/carriers/twilio/stream"


@dataclass(frozen=True)
class Judged:
    """``code`` is the exit code, ``said`` what a person was told."""

    code: int
    report: RunReport
    said: str

    @property
    def faults(self) -> set[str]:
        return set(self.report.faults)

    @property
    def outcomes(self) -> list[CallOutcome]:
        return [detail.outcome for detail in self.report.calls_detail]

    @property
    def was_late_itself(self) -> bool:
        """The machine was too busy for a run: anywhere else it would be void, and nothing be said of the server."""
        offered_late = any("after their time" in reason for reason in self.report.void_reasons)
        return offered_late or (self.report.lateness.generator_p99_ms or 0.0) > run_options.VOID_P99_MS

    @property
    def is_good(self) -> bool:
        """In every way in which it is said."""
        report = self.report
        return (self.code, report.verdict, report.reasons, report.faults) == (0, Verdict.GOOD, (), {})

    @property
    def is_not_good(self) -> bool:
        """And says why, wherever it is looked at."""
        report = self.report
        told = all(reason in self.said for reason in report.reasons)
        return (self.code, report.verdict) == (1, Verdict.NOT_GOOD) and bool(report.reasons) and told


@contextlib.contextmanager
def shown_by(*judged: Judged) -> Iterator[None]:
    """What is asserted here is to be shown by these runs. If it isn't, and one of them would have been void anywhere
    else, the machine was too busy to show anything, and the test is skipped."""
    try:
        yield
    except AssertionError as error:
        late = [each for each in judged if each.was_late_itself]
        if late:
            pytest.skip(f"{len(late)} of {len(judged)} runs were late themselves: {str(error)[:200]}")
        raise


def counts_add_up(judged: Judged) -> bool:
    """Every call that was offered is counted once, by how it ended."""
    calls = judged.report.calls
    ends = (calls.completed, calls.refused, calls.failed, calls.dropped, calls.abandoned, calls.left)
    return calls.offered == sum(ends) == sum(judged.report.end_causes.values()) == len(judged.outcomes)


async def judge(
    folder: Path, scenario: str, url: str, *, metrics: str | None = "off", codes: bool | None = True, **options: object
) -> Judged:
    """One run. ``folder`` is made. Fails where no report was written."""
    await asyncio.to_thread(_lay_out, folder, scenario)
    told = {
        "folder": str(folder),
        "scenario": str(folder / "scenario.yaml"),
        "urls": [url],
        "metrics": metrics,
        "codes": codes,
        "void_p99_ms": VOID_P99_MS,
        "processes": 1,
        "keep": 2,
        **options,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DRIVER, json.dumps(told), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        _, errors = await process.communicate()
    except BaseException:
        process.terminate()
        await process.wait()
        raise
    said = errors.decode()
    assert (folder / "report.json").exists(), said
    report = from_json((folder / "report.json").read_bytes())
    html = (folder / "report.html").read_text("utf-8")
    assert html.endswith("</html>\n")
    return Judged(process.returncode or 0, report, said)


def _lay_out(folder: Path, scenario: str) -> None:
    folder.mkdir()
    (folder / "scenario.yaml").write_text(scenario)
