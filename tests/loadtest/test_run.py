from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console

from loadtest import run
from loadtest.arrivals import Arrival
from loadtest.generator_messages import Job
from loadtest.generators import GeneratorsError
from loadtest.outcome import Fate
from loadtest.progress import Progress, Tally
from loadtest.run import Interruption, RunPlan, RunRecord, run_load
from loadtest.run_report import StageTimes
from tests.loadtest.scripted_generator import scripted
from tests.loadtest.test_server_readings import METRICS, http_server


class Watched(Progress):
    """Calls ``on_show`` with what is known each time it is told."""

    def __init__(self, on_show: Callable[[Tally], None] = lambda tally: None) -> None:
        super().__init__(Console(file=io.StringIO()))
        self.words: list[str] = []
        self._on_show = on_show

    def show(self, tally: Tally) -> None:
        super().show(tally)
        self.words.append(tally.last_word)
        self._on_show(tally)


def plan(script: str, *, calls: int = 2, processes: int = 1, metrics: str | None = None) -> RunPlan:
    job = Job(name="talk", scenario="talk", seed=1, urls=("ws://127.0.0.1:1/",), recordings="")
    arrivals = tuple(Arrival(number, 0.0, 0.5) for number in range(calls))
    return RunPlan(job, arrivals, processes, metrics, settle_s=0.2, command=scripted(script))


async def held(
    planned: RunPlan, progress: Progress | None = None, interruption: Interruption | None = None
) -> RunRecord:
    return await run_load(planned, progress or Watched(), interruption or Interruption())


async def test_what_generators_tell_is_put_together() -> None:
    script = (
        "say(Ready(('no espeak-ng here',)))\nhear()\n"
        "for arrival in job.arrivals: end(arrival.number)\n"
        "count(1.02, up=2, offered=2)\ncount(2.01, up=1, offered=2)\n"
        "finish(kept={job.arrivals[0].number: 'call.wav'}, unkept='the disk is full')"
    )
    record = await held(plan(script, calls=4, processes=2))
    assert sorted(outcome.number for outcome in record.outcomes) == [0, 1, 2, 3]
    assert {outcome.number: outcome.recording for outcome in record.outcomes} == {
        0: "call.wav",
        1: "call.wav",
        2: None,
        3: None,
    }
    assert [(report.process, report.calls, report.most_up, report.skipped) for report in record.generators] == [
        (0, 2, 2, 1),
        (1, 2, 2, 1),
    ]
    assert [(reading.at_s, reading.up, reading.cpu_cores) for reading in record.generator_readings] == [
        (1.0, 4, 0.25),
        (2.0, 2, 0.25),
    ]
    assert record.notes == ["no espeak-ng here", "audio of calls could not be kept: the disk is full"]
    assert record.void_reasons == []
    assert not record.interrupted
    assert (record.base_before, record.server.readings) == (None, ())


@pytest.mark.parametrize(
    ("last_words", "why"),
    [
        ("import os\nos.kill(os.getpid(), 9)", "generator 0 died (signal 9)"),
        ("say(Broken('MemoryError: '))", "MemoryError: "),
        ("finish(broken={'KeyError: 1': 3})", "3 simulated callers broke down: KeyError: 1"),
        (
            "finish(offered_late_ms=1500)",
            "generator 0 offered calls up to 1.5 s after their time: it could not make its callers fast enough",
        ),
    ],
)
async def test_a_generator_that_breaks_makes_the_run_void_and_keeps_what_is_known(last_words: str, why: str) -> None:
    record = await held(plan(f"say(Ready())\nhear()\nend(0)\n{last_words}"))
    assert [outcome.number for outcome in record.outcomes] == [0]
    assert record.void_reasons == [why]


async def test_callers_that_can_not_be_prepared_are_no_run() -> None:
    with pytest.raises(GeneratorsError, match="no voice"):
        await held(plan("say(Broken('no voice speaks that'))"))


async def test_callers_that_are_never_ready_are_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PREPARED_S", 0.1)
    with pytest.raises(GeneratorsError, match="not ready"):
        await held(plan("hear()"))


async def test_the_first_interruption_stops_the_run_and_its_report_is_of_what_there_was() -> None:
    script = (
        "say(Ready())\nhear()\ncount(up=2)\nstop = hear()\nassert not stop.at_once\n"
        "for number in (0, 1): end(number, Fate.ABANDONED)\nfinish()"
    )
    interruption = Interruption()
    progress = Watched(lambda tally: interruption() if tally.up and not interruption.count else None)
    record = await held(plan(script), progress, interruption)
    assert record.interrupted
    assert [outcome.fate for outcome in record.outcomes] == [Fate.ABANDONED] * 2
    assert record.void_reasons == []
    assert "hanging up" in progress.words


async def test_a_second_interruption_stops_it_at_once() -> None:
    script = "say(Ready())\nhear()\ncount(up=2)\nassert not hear().at_once\nassert hear().at_once\nfinish()"
    interruption = Interruption()
    progress = Watched(lambda tally: interruption() if tally.up and interruption.count < 2 else None)
    record = await held(plan(script), progress, interruption)
    assert record.interrupted
    assert record.void_reasons == []
    assert "breaking off" in progress.words


async def test_an_interruption_while_callers_are_prepared_offers_no_call() -> None:
    interruption = Interruption()
    asyncio.get_running_loop().call_later(0.1, interruption)
    record = await held(plan("hear()"), None, interruption)
    assert record.interrupted
    assert record.outcomes == []


async def test_what_does_not_end_is_hung_up_then_broken_off_then_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OVER_S", "HANG_UP_S", "BREAK_OFF_S"):
        monkeypatch.setattr(run, name, 0.1)
    progress = Watched()
    record = await held(plan("say(Ready())\nhear()\nhear()\nhear()\nhear()"), progress)
    assert record.void_reasons == ["generator 0 did not end its calls in time"]
    assert record.notes == ["calls were still up 0 s after their planned end"]
    assert not record.interrupted
    words = [word for word in dict.fromkeys(progress.words) if word]
    assert words[1:3] == ["hanging up", "breaking off"]


@pytest.mark.parametrize(
    ("calls", "broken_off"),
    [
        ("count(offered=2)\nend(0, Fate.FAILED)\nend(1, Fate.FAILED)", True),
        ("count(offered=3)\nend(0, Fate.FAILED)\nend(1, Fate.FAILED)", True),
        ("count(offered=4)\nend(0, Fate.FAILED)\nend(1, Fate.FAILED)", False),  # as many may yet come about
        ("count(offered=3)\nend(0, Fate.FAILED)\nend(1, Fate.FAILED)\nend(2, Fate.REFUSED)", False),
        ("count(offered=3)\nend(0, Fate.FAILED)\nend(1, Fate.FAILED)\nend(2, Fate.DROPPED)", False),
        ("count(offered=3, up=1)\nend(0, Fate.FAILED)\nend(1, Fate.FAILED)", False),
        ("count(offered=1)", False),
    ],
)
async def test_a_run_where_no_call_comes_about_ends_by_itself(
    monkeypatch: pytest.MonkeyPatch, calls: str, broken_off: bool
) -> None:
    monkeypatch.setattr(run, "HOPELESS_S", 0.5)
    monkeypatch.setattr(run, "OVER_S", 1.0)  # after the calls' 0.5 s: the run looks whether it is hopeless before
    record = await held(plan(f"say(Ready())\nhear()\n{calls}\nassert not hear().at_once\nfinish()"))
    assert (record.broken_off is not None) is broken_off
    assert record.void_reasons == []
    assert not record.interrupted
    late = [note for note in record.notes if "still up" in note]
    assert late == ([] if broken_off else ["calls were still up 1 s after their planned end"])


async def test_each_generator_has_words_of_its_own_and_callers_without_one_are_told_of() -> None:
    script = "say(Ready((f'{job.generator} of {job.generators} from {job.words_begin}',)))\nhear()\nfinish(wordless=3)"
    record = await held(plan(script, processes=2))
    assert sorted(record.notes[:2]) == ["0 of 2 from 0", "1 of 2 from 0"]
    assert record.notes[2].startswith("6 callers had no code word: all 4080 were others'")


async def test_the_server_is_read_and_asked_about_the_worst_calls() -> None:
    def answer(path: str, headers: dict[str, str]) -> tuple[int, str]:
        if path == "/metrics":
            return 200, METRICS
        return (200, '{"turns": [{"decision_ms": 500}]}') if path == "/v1/calls/call_1" else (404, "")

    script = "import time\nsay(Ready())\nhear()\nend(0)\nend(1, Fate.DROPPED, ('dropped',))\ntime.sleep(1.2)\nfinish()"
    async with http_server(answer) as url:
        record = await held(plan(script, metrics=f"{url}/metrics"))
    assert record.base_before is not None
    assert record.base_after is not None
    assert record.server.info["preset"] == "null"
    assert record.server.metrics_url == f"{url}/metrics"
    assert record.server.readings[0].calls_live == 3
    assert list(record.stages_s) == ["decision"]
    assert record.stages == {1: (StageTimes(decision_ms=500),)}


@pytest.mark.parametrize(("called", "told"), [("127.0.0.1", "Bearer secret"), ("elsewhere.example", None)])
async def test_the_key_goes_to_no_host_but_those_that_are_called(called: str, told: str | None) -> None:
    seen: set[str | None] = set()

    def answer(path: str, headers: dict[str, str]) -> tuple[int, str]:
        seen.add(headers.get("authorization"))
        return 200, METRICS

    async with http_server(answer) as url:
        planned = plan("say(Ready())\nhear()\nfinish()", metrics=f"{url}/metrics")
        job = msgspec.structs.replace(planned.job, key="secret", urls=(f"ws://{called}:1/",))
        record = await held(replace(planned, job=job))
    assert seen == {told}
    untold = ["the key was not told to --metrics: calls go to another host, or by TLS and that does not"]
    assert record.notes == ([] if told is not None else untold)


async def test_a_server_that_tells_nothing_is_a_note() -> None:
    async with http_server(lambda path, headers: (401, "")) as url:
        record = await held(plan("say(Ready())\nhear()\nfinish()", metrics=f"{url}/metrics"))
    assert record.notes == [f"nothing was read of the server at {url}/metrics: status 401"]
    assert record.server.metrics_url is None


async def test_a_server_that_gives_nothing_back_is_waited_for_no_longer_than_it_may_take() -> None:
    tasks = iter(range(10, 100))

    def answer(path: str, headers: dict[str, str]) -> tuple[int, str]:
        return 200, f"offhook_tasks {next(tasks)}\n"

    async with http_server(answer) as url:
        record = await held(plan("say(Ready())\nhear()\nfinish()", metrics=f"{url}/metrics"))
    assert record.base_before is not None
    assert record.base_after is not None
    assert record.base_after.tasks is not None
    assert record.base_before.tasks is not None
    assert record.base_after.tasks > record.base_before.tasks
    assert record.settled_s >= 0.2
