"""``offhook loadtest SCENARIO --url URL``: place many calls, report how they went, and judge the server by that.

:func:`add_loadtest_command` puts the command on a typer application. Exit codes: 0 good, 1 not good enough (goodput
below 99 %, an expectation missed, a regression), 2 it can't be done as asked, 3 void (the load test itself was late, or
broke), 130 interrupted. A report is written in all cases but 2.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loadtest.baseline import with_baseline
from loadtest.capacity import Climb
from loadtest.generators import GeneratorsError
from loadtest.html_report import to_html
from loadtest.load_run import LoadRun
from loadtest.progress import Progress
from loadtest.run import Interruption
from loadtest.run_options import RunOptions, RunUsageError
from loadtest.run_report import ReportError, RunReport, Verdict, from_json, to_json
from loadtest.run_text import to_text
from loadtest.scenario import load_scenario
from loadtest.scenario_file import ScenarioError, library_names

EXIT_CODES = {Verdict.GOOD: 0, Verdict.NOT_GOOD: 1, Verdict.VOID: 3, Verdict.INTERRUPTED: 130}
USAGE_ERROR = 2
STDOUT = Path("-")

_MISUSES = (RunUsageError, ScenarioError, GeneratorsError, ReportError, OSError)


def add_loadtest_command(app: typer.Typer) -> None:
    """Put ``loadtest`` on ``app``."""
    app.command("loadtest")(loadtest)


def loadtest(
    scenario: Annotated[
        str | None, typer.Argument(help="A YAML file, or one of the library; without it, the library is listed.")
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option(
            help="Where to call, as for `offhook call`: ws://, http://, sip:, twilio+ws://, audiosocket://. Given "
            "several times, calls take them in turn."
        ),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="The agent to ask for.")] = None,
    key: Annotated[str | None, typer.Option(envvar="OFFHOOK_KEY", help="Bearer key.")] = None,
    calls: Annotated[
        int | None, typer.Option(min=1, help="Calls at once. The scenario's, where it is not given; so below.")
    ] = None,
    ramp: Annotated[float | None, typer.Option(min=0, help="Seconds until all are up.")] = None,
    for_: Annotated[float | None, typer.Option("--for", min=1, help="Seconds that they stay up after that.")] = None,
    seed: Annotated[int, typer.Option(help="Two runs of one seed offer the same calls.")] = 1,
    json: Annotated[Path | None, typer.Option(help="Write the report as JSON; - is standard output.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report as a page.")] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="The JSON of an earlier run; a regression from it is not good enough.")
    ] = None,
    capacity: Annotated[
        bool, typer.Option("--find-capacity", help="Climb from --calls until calls are not held any more.")
    ] = False,
    most: Annotated[int, typer.Option(min=1, help="--find-capacity: climb no higher.")] = 10_000,
    processes: Annotated[
        int | None, typer.Option(min=1, max=64, help="Processes of callers; by default as many as they need.")
    ] = None,
    pin: Annotated[str | None, typer.Option(help="Cores for the callers, such as 1 or 2,3 (Linux).")] = None,
    metrics: Annotated[
        str | None, typer.Option(help="The server's Prometheus page, or off; by default /metrics of --url.")
    ] = None,
    codes: Annotated[
        bool | None,
        typer.Option(
            "--codes/--no-codes", help="Callers say code words; by default where the server says its engines are fakes."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Place many calls by a scenario, report how they went, and judge the server by that."""
    if scenario is None:
        typer.echo("\n".join(f"{name:<14}{load_scenario(name).about}" for name in library_names()))
        return
    console = Console(stderr=True)
    with _usage_told():
        options = RunOptions(
            scenario,
            tuple(url or ()),
            agent=agent,
            key=key,
            calls=calls,
            ramp_s=ramp,
            for_s=for_,
            seed=seed,
            processes=processes,
            cores=_cores(pin),
            metrics=metrics,
            codes=codes,
        )
        before = None if baseline is None else from_json(baseline.read_bytes())
        for path in (json, html):
            if path is not None and path != STDOUT and not path.parent.is_dir():
                raise RunUsageError(f"cannot write {path}: no such folder")
        with tempfile.TemporaryDirectory(prefix="offhook-loadtest-") as recordings:
            report = _run(
                options, Path(recordings), Progress(console, quiet=quiet), Climb(calls or 1, most) if capacity else None
            )
            if baseline is not None and before is not None:
                report = with_baseline(report, before, str(baseline))
            _write(report, json, html, Path(recordings))
    typer.echo(to_text(report), err=True)
    raise typer.Exit(EXIT_CODES[report.verdict])


def _run(options: RunOptions, recordings: Path, progress: Progress, climb: Climb | None) -> RunReport:
    scenario = load_scenario(options.scenario)

    async def run() -> RunReport:
        loop, interruption = asyncio.get_running_loop(), Interruption()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interruption)
        load_run = LoadRun(options, scenario, recordings, progress, interruption)
        return await (load_run.once() if climb is None else load_run.find_knee(climb))

    return asyncio.run(run())


def _write(report: RunReport, json: Path | None, html: Path | None, recordings: Path) -> None:
    if json == STDOUT:
        sys.stdout.buffer.write(to_json(report))
        sys.stdout.buffer.flush()
    elif json is not None:
        json.write_bytes(to_json(report))
    if html is not None:
        html.write_text(to_html(report, recordings), "utf-8")


def _cores(pin: str | None) -> tuple[int, ...]:
    if pin is None:
        return ()
    try:
        return tuple(int(core) for core in pin.split(","))
    except ValueError:
        raise RunUsageError(f"cores are numbers with commas between, not {pin}") from None


@contextlib.contextmanager
def _usage_told() -> Iterator[None]:
    try:
        yield
    except _MISUSES as error:
        typer.echo(f"offhook loadtest: {error}", err=True)
        raise typer.Exit(USAGE_ERROR) from None
