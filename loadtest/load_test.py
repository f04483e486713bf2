"""What ``offhook loadtest`` does once it knows what was asked for."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import textwrap
from pathlib import Path

import typer
from rich.console import Console

from loadtest.baseline import with_baseline
from loadtest.capacity import Climb
from loadtest.generators import GeneratorsError
from loadtest.html_report import to_html
from loadtest.load_run import LoadRun
from loadtest.progress import Progress
from loadtest.run import Interruption
from loadtest.run_options import STDOUT, ClimbOptions, ReportOptions, RunOptions, RunUsageError
from loadtest.run_report import ReportError, RunReport, Verdict, from_json, to_json
from loadtest.run_text import to_text
from loadtest.scenario import load_scenario
from loadtest.scenario_file import LIBRARY, ScenarioError, library_names
from loadtest.voice import VoiceError

EXIT_CODES = {Verdict.GOOD: 0, Verdict.NOT_GOOD: 1, Verdict.VOID: 3}
USAGE_ERROR = 2
INTERRUPTED = 130
"""Whatever the report says of the time until then."""

_LEAST_WIDTH = 60


def list_library() -> None:
    """The scenarios that ship, on standard output, and how to run one."""
    width = max(_LEAST_WIDTH, shutil.get_terminal_size().columns)
    for name in library_names():
        told = textwrap.wrap(load_scenario(name).about, width, initial_indent=f"{name:<14}", subsequent_indent=" " * 14)
        typer.echo("\n".join(told))
    typer.echo(
        f"\nTheir files, to begin one of your own from, are in {LIBRARY}\n"
        "Run one: offhook loadtest talk --url ws://127.0.0.1:8080/v1/realtime --html report.html"
    )


def run_load_test(options: RunOptions, reports: ReportOptions, climb: ClimbOptions | None) -> int:
    """Run, report, judge: the exit code. ``climb``: look for the knee."""
    try:
        report = _reported(options, reports, climb)
    except (RunUsageError, ScenarioError, VoiceError, GeneratorsError, ReportError, OSError) as error:
        typer.echo(f"offhook loadtest: {error}", err=True)
        return USAGE_ERROR
    typer.echo(to_text(report), err=True)
    return INTERRUPTED if report.interrupted else EXIT_CODES[report.verdict]


def _reported(options: RunOptions, reports: ReportOptions, climb: ClimbOptions | None) -> RunReport:
    before = None if reports.baseline is None else _read_baseline(reports.baseline)
    for path in (reports.json, reports.html):
        if path is not None and path != STDOUT and not path.parent.is_dir():
            raise RunUsageError(f"cannot write {path}: no such folder")
    progress = Progress(Console(stderr=True), quiet=reports.quiet)
    with tempfile.TemporaryDirectory(prefix="offhook-loadtest-") as folder:
        recordings = Path(folder)
        report = asyncio.run(_run(options, recordings, progress, climb))
        if before is not None:
            report = with_baseline(report, before, str(reports.baseline))
        if reports.json == STDOUT:
            sys.stdout.buffer.write(to_json(report))
            sys.stdout.buffer.flush()
        elif reports.json is not None:
            reports.json.write_bytes(to_json(report))
        if reports.html is not None:
            reports.html.write_text(to_html(report, recordings), "utf-8")
    return report


def _read_baseline(path: Path) -> RunReport:
    try:
        return from_json(path.read_bytes())
    except (OSError, ReportError) as error:
        raise RunUsageError(f"the baseline {path} can't be read: {error}") from error


async def _run(options: RunOptions, recordings: Path, progress: Progress, climb: ClimbOptions | None) -> RunReport:
    interruption = Interruption()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interruption)
    run = LoadRun(options, load_scenario(options.scenario), recordings, progress, interruption)
    if climb is None:
        return await run.once()
    try:
        return await run.find_knee(Climb(climb.start or 1, climb.most))
    except ValueError as error:
        raise RunUsageError(str(error)) from error
