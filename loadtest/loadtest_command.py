"""``offhook loadtest SCENARIO --url URL``: place many calls, report how they went, and judge the server by that.

:func:`add_loadtest_command` puts the command on a typer application. Exit codes: 0 good, 1 not good enough (goodput
below 99 %, an expectation missed, a regression), 2 it can't be done as asked, 3 void (the load test itself was late, or
broke), 130 interrupted. A report is written in all cases but 2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadtest.phone_options import AuthToken, Codec, Parameters, Password, SignedUrl, User
from loadtest.run_options import ClimbOptions, ReportOptions, RunOptions


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
    key: Annotated[
        str | None, typer.Option(envvar="OFFHOOK_KEY", help="Bearer key, of calls and of --metrics.")
    ] = None,
    calls: Annotated[
        int | None, typer.Option(min=1, help="Calls at once. This and the next two are the scenario's unless given.")
    ] = None,
    ramp: Annotated[float | None, typer.Option(min=0, help="Seconds until all are up.")] = None,
    for_: Annotated[float | None, typer.Option("--for", min=1, help="Seconds that they stay up after that.")] = None,
    seed: Annotated[int, typer.Option(help="Two runs of one seed offer the same calls.")] = 1,
    json: Annotated[Path | None, typer.Option(help="Write the report as JSON; - is standard output.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report as a page.")] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="The JSON of an earlier run; a regression from it is not good enough.")
    ] = None,
    find_capacity: Annotated[
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
    caller: Annotated[
        str | None, typer.Option(help="The number that calls (phones); by default another of each call.")
    ] = None,
    user: User = None,
    password: Password = None,
    codec: Codec = None,
    parameter: Parameters = None,
    auth_token: AuthToken = None,
    signed_url: SignedUrl = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Place many calls by a scenario, report how they went, and judge the server by that.

    Exit code 0: good, 1: not good enough, 2: it can't be done as asked,
    3: void (the load test was late itself), 130: interrupted.
    Ctrl-C hangs up and reports; a second one does so at once.
    """
    from loadtest.call import PhoneOptions  # the heavy part waits until it is needed
    from loadtest.command import custom_parameters
    from loadtest.load_test import list_library, run_load_test

    if scenario is None:
        list_library()
        return
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
        pin=pin,
        metrics=metrics,
        codes=codes,
        phone=PhoneOptions(caller, user, password, codec, custom_parameters(parameter or ()), auth_token, signed_url),
    )
    climb = ClimbOptions(calls, most) if find_capacity else None
    raise typer.Exit(run_load_test(options, ReportOptions(json, html, baseline, quiet=quiet), climb))
