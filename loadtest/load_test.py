"""What ``offhook loadtest`` does once it knows what was asked for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import textwrap
from pathlib import Path

import typer

from loadtest.baseline import with_baseline
from loadtest.capacity import Climb
from loadtest.generators import GeneratorsError
from loadtest.html_report import to_html
from loadtest.load_run import LoadRun
from loadtest.progress import Progress, Terminal
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
        _tell(f"offhook loadtest: {error}")
        return USAGE_ERROR
    return INTERRUPTED if report.interrupted else EXIT_CODES[report.verdict]


def _reported(options: RunOptions, reports: ReportOptions, climb: ClimbOptions | None) -> RunReport:
    before = None if reports.baseline is None else _read_baseline(reports.baseline)
    _check_paths(reports)
    progress = Progress(Terminal(), quiet=reports.quiet)
    with tempfile.TemporaryDirectory(prefix="offhook-loadtest-", ignore_cleanup_errors=True) as folder:
        recordings = Path(folder)
        report = asyncio.run(_run(options, recordings, progress, climb))
        if before is not None:
            report = with_baseline(report, before, str(reports.baseline))
        _tell(to_text(report))
        _write(reports, report, recordings)
    return report


def _check_paths(reports: ReportOptions) -> None:
    """What can be known before a run of an hour is done for nothing."""
    if reports.html == STDOUT:
        raise RunUsageError("the page goes to a file, not to standard output")
    files = [path for path in (reports.json, reports.html) if path is not None and path != STDOUT]
    for path in files:
        if not path.parent.is_dir():
            raise RunUsageError(f"cannot write {path}: no such folder")
        if path.is_dir():
            raise RunUsageError(f"cannot write {path}: it is a folder")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise RunUsageError(f"cannot write {path}: not allowed")
    if len({path.resolve() for path in files}) < len(files):
        raise RunUsageError(f"cannot write both reports to {files[0]}")


def _write(reports: ReportOptions, report: RunReport, recordings: Path) -> None:
    """All that was asked for; what can't be written stops nothing else. Raises :class:`RunUsageError` after that, with
    where the document is instead."""
    document = to_json(report)
    problems: list[str] = []
    if reports.json is not None and (problem := _put(reports.json, document)) is not None:
        problems.append(problem)
        try:
            with tempfile.NamedTemporaryFile(prefix="offhook-report-", suffix=".json", delete=False) as file:
                file.write(document)
            problems.append(f"the report is in {file.name}")
        except OSError as error:
            problems.append(f"nor elsewhere: {error}")
    if reports.html is not None:
        page = to_html(report, recordings).encode()
        if (problem := _put(reports.html, page)) is not None:
            problems.append(problem)
    if problems:
        raise RunUsageError("; ".join(problems))


def _put(path: Path, data: bytes) -> str | None:
    """Why it could not be written, if it could not."""
    try:
        if path != STDOUT:
            path.write_bytes(data)
        else:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
    except OSError as error:
        if path == STDOUT:
            with contextlib.suppress(OSError, ValueError):  # Python's own flush at exit is not to fail again
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return f"cannot write {'to standard output' if path == STDOUT else path}: {error.strerror}"
    return None


def _tell(text: str) -> None:
    """On standard error, if anybody is still there."""
    with contextlib.suppress(OSError):
        typer.echo(text, err=True)


def _read_baseline(path: Path) -> RunReport:
    try:
        return from_json(path.read_bytes())
    except (OSError, ReportError) as error:
        raise RunUsageError(f"the baseline {path} can't be read: {error}") from error


async def _run(options: RunOptions, recordings: Path, progress: Progress, climb: ClimbOptions | None) -> RunReport:
    interruption = Interruption()
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup a terminal that is closed stops nothing
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, interruption)
    run = LoadRun(options, load_scenario(options.scenario), recordings, progress, interruption)
    if climb is None:
        return await run.once()
    try:
        levels = Climb(climb.start or 1, climb.most)
    except ValueError as error:
        raise RunUsageError(str(error)) from error
    return await run.find_knee(levels)
