"""From what somebody asked for to the plan of a run: the scenario's own numbers where nothing else was said."""

from __future__ import annotations

import os
from pathlib import Path

from loadtest.address import CallAddress, call_address, is_http
from loadtest.arrivals import most_at_once, plan_arrivals
from loadtest.call import Transport
from loadtest.generator_messages import Job
from loadtest.generators import processes_for
from loadtest.run import RunPlan
from loadtest.run_options import METRICS_OFF, RunOptions, RunUsageError
from loadtest.scenario import Scenario
from loadtest.scenario_file import find_scenario
from loadtest.server_readings import metrics_url
from loadtest.sip_call import check_phone

MAX_URLS = 16


def addresses_of(options: RunOptions, scenario: Scenario) -> tuple[CallAddress, ...]:
    """Where the calls go. Raises :class:`RunUsageError` and :class:`~loadtest.scenario_file.ScenarioError`."""
    if not 1 <= len(options.urls) <= MAX_URLS:
        raise RunUsageError(
            f"a run needs a server to call, or up to {MAX_URLS} of them: --url ws://127.0.0.1:8080/v1/realtime"
        )
    try:
        addresses = tuple(call_address(url, options.agent) for url in options.urls)
        if any(address.transport is Transport.SIP for address in addresses):
            check_phone(options.phone)
    except ValueError as error:
        raise RunUsageError(str(error)) from error
    for address in addresses:
        scenario.check(address.transport)
    return addresses


def metrics_of(options: RunOptions, addresses: tuple[CallAddress, ...]) -> str | None:
    """Where the server tells of itself, if that is known and wanted. Raises :class:`RunUsageError`."""
    if options.metrics == METRICS_OFF:
        return None
    if options.metrics is not None and not is_http(options.metrics):
        raise RunUsageError("not the address of metrics (http://HOST:PORT/metrics), nor off: --metrics")
    known = (metrics_url(address) for address in addresses)
    return options.metrics or next((url for url in known if url is not None), None)


def plan_run(
    options: RunOptions,
    scenario: Scenario,
    *,
    calls: int | None = None,
    codes: bool,
    recordings: Path,
    words_begin: int = 0,
) -> RunPlan:
    """``calls`` at once in place of what was asked for; ``words_begin`` code words were used just now. Raises as
    :func:`addresses_of`."""
    addresses = addresses_of(options, scenario)
    _check_cores(options.cores)
    arrivals = scenario.arrivals
    try:
        planned = plan_arrivals(
            arrivals.pattern,
            calls=calls or options.calls or arrivals.calls,
            ramp_s=arrivals.ramp_s if options.ramp_s is None else options.ramp_s,
            hold_s=options.for_s or arrivals.for_s,
            length_s=scenario.length_s,
            jitter=scenario.jitter,
            every_s=arrivals.every_s,
            seed=options.seed,
        )
    except ValueError as error:
        raise RunUsageError(str(error)) from error
    processes = options.processes or processes_for(
        [address.transport for address in addresses],
        most_at_once(planned),
        impaired=scenario.packets() is not None,
        cores=len(options.cores) or os.cpu_count(),
    )
    job = Job(
        name=scenario.name,
        scenario=str(find_scenario(options.scenario).resolve()),
        seed=options.seed,
        urls=options.urls,
        agent=options.agent,
        key=options.key,
        phone=options.phone,
        codes=codes,
        words_begin=words_begin,
        recordings=str(recordings),
        keep=options.keep,
        cores=options.cores,
    )
    return RunPlan(job, planned, min(processes, len(planned)), metrics_of(options, addresses))


def _check_cores(cores: tuple[int, ...]) -> None:
    if not cores:
        return
    if not hasattr(os, "sched_getaffinity"):
        raise RunUsageError("this system lets nobody choose cores (--pin)")
    there = os.sched_getaffinity(0)
    if not there.issuperset(cores):
        raise RunUsageError(f"there are no such cores (--pin); there are {', '.join(map(str, sorted(there)))}")
