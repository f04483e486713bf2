from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from loadtest.call import Transport
from loadtest.generator_messages import Broken, Done, FromGenerator, Job, Ready
from loadtest.generators import Generators, GeneratorsError, open_generators, processes_for
from tests.loadtest.scripted_generator import scripted

JOB = Job(name="talk", scenario="talk", seed=1, urls=("ws://127.0.0.1:1/",), key="secret", recordings="")


class Run:
    """Generators that follow ``script`` after they heard their job."""

    def __init__(self, script: str, count: int = 1) -> None:
        self.words: list[tuple[int, FromGenerator]] = []
        self.change = asyncio.Event()
        self.opened = open_generators([JOB] * count, self._word, self.change.set, command=scripted(script))

    def _word(self, number: int, word: FromGenerator) -> None:
        self.words.append((number, word))

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self.change.wait()
            self.change.clear()


def words_of(run: Run, kind: type[object]) -> list[int]:
    return sorted(number for number, word in run.words if isinstance(word, kind))


async def test_all_are_told_their_job_started_together_and_heard_to_the_end() -> None:
    run = Run(
        "say(Ready((job.key,)))\ngo = hear()\nassert go.start_s == 12.5\n"
        "print('no word of ours', file=sys.stderr)\nstop = hear()\nassert stop.at_once\nfinish()",
        count=2,
    )
    async with run.opened as generators:
        await run.until(lambda: generators.ready)
        assert not generators.over
        generators.check()
        generators.go(12.5)
        generators.stop(at_once=True)
        await run.until(lambda: generators.over)
        assert generators.problems == {}
    assert words_of(run, Ready) == words_of(run, Done) == [0, 1]
    assert run.words[0][1] == Ready(("secret",))


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("sys.exit(3)", "generator 0 died (exit code 3)"),
        ("import os\nos.kill(os.getpid(), 9)", "generator 0 died (signal 9)"),
        ("raise RuntimeError('no more sockets')", "generator 0 died (exit code 1): RuntimeError: no more sockets"),
        ("print('gibberish', flush=True)\nhear()", "generator 0 said what nobody understands"),
        ("say(Broken('no such scenario'))", "no such scenario"),
    ],
)
async def test_one_that_can_not_go_on_is_noticed_and_told_of(script: str, problem: str) -> None:
    run = Run(script)
    generators: Generators
    async with run.opened as generators:
        await run.until(lambda: generators.over)
        assert generators.problems[0].startswith(problem)
        with pytest.raises(GeneratorsError, match=problem.partition("(")[0]):
            generators.check()
        generators.stop()  # nobody hears it


async def test_one_that_ends_without_its_last_word_is_a_problem_though_it_was_ready() -> None:
    run = Run("say(Ready())\nhear()")
    async with run.opened as generators:
        await run.until(lambda: generators.ready)
        generators.go(0.0)
        await run.until(lambda: generators.over)
        assert generators.problems == {0: "generator 0 died (exit code 0)"}
    assert words_of(run, Broken) == []


async def test_none_is_left_behind_when_the_run_breaks_off() -> None:
    run = Run("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay(Ready())\nhear()", count=2)

    async def break_off() -> Generators:
        async with run.opened as generators:
            await run.until(lambda: generators.ready)
            raise RuntimeError("broke off")

    with pytest.raises(RuntimeError, match="broke off"):
        await break_off()


def test_how_many_are_needed() -> None:
    assert processes_for([Transport.WEBSOCKET], 1, cores=8) == 1
    assert processes_for([Transport.WEBSOCKET], 100, cores=8) == 1
    assert processes_for([Transport.WEBSOCKET], 400, cores=8) == 3
    assert processes_for([Transport.WEBSOCKET], 400, cores=2) == 2
    assert processes_for([Transport.WEBSOCKET], 100, impaired=True, cores=8) == 2
    assert processes_for([Transport.WEBSOCKET, Transport.WEBRTC], 100, cores=8) == 2
    assert processes_for([Transport.WEBRTC], 1, impaired=True, cores=8) == 1
