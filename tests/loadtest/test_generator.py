"""The generator's process, from without and from within."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest import generator
from loadtest.arrivals import Arrival
from loadtest.generator_messages import (
    Broken,
    Counted,
    Done,
    Ended,
    FromGenerator,
    Go,
    Job,
    Ready,
    Stop,
    ToGenerator,
    decode_word,
    encode_line,
)
from loadtest.outcome import Fate
from tests.loadtest.realtime_server import Script, realtime_server
from tests.loadtest.test_generator_calls import SCENARIO, TALKING


class Pipes:
    """The generator in this process, between two pipes."""

    def __init__(self) -> None:
        heard, self._orders = os.pipe()
        self._words, self.told = os.pipe()
        self.stdin = os.fdopen(heard, "r")
        self.serving: asyncio.Task[None] | None = None

    def tell(self, order: ToGenerator) -> None:
        os.write(self._orders, encode_line(order))

    def hang_up(self) -> None:
        if self._orders >= 0:
            os.close(self._orders)
            self._orders = -1

    async def words(self) -> list[FromGenerator]:
        """All that it said, once it has ended."""
        words = os.fdopen(self._words, "rb")
        lines = await asyncio.to_thread(words.readlines)
        words.close()
        assert self.serving is not None
        await self.serving
        return [decode_word(line) for line in lines]

    def serve(self) -> None:
        self.serving = asyncio.create_task(generator._serve(self.told))


@pytest.fixture
def pipes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipes]:
    made = Pipes()
    monkeypatch.setattr(sys, "stdin", made.stdin)
    yield made
    made.hang_up()


def job(folder: Path, url: str, *, length_s: float = 5.0, scenario: str = SCENARIO) -> Job:
    path = folder / "test.yaml"
    path.write_text(scenario)
    arrivals = (Arrival(0, 0.0, length_s),)
    return Job(name="test", scenario=str(path), seed=1, urls=(url,), recordings=str(folder), arrivals=arrivals)


async def test_a_job_is_done_and_told_of(pipes: Pipes, tmp_path: Path) -> None:
    async with realtime_server(Script(replies=(300,))) as (url, _):
        pipes.serve()
        pipes.tell(job(tmp_path, url))
        pipes.tell(Go(time.monotonic()))
        words = await pipes.words()
    assert isinstance(words[0], Ready)
    assert isinstance(words[-1], Done)
    (ended,) = (word for word in words if isinstance(word, Ended))
    assert ended.outcome.fate is Fate.COMPLETED
    counted = [word for word in words if isinstance(word, Counted)]
    assert counted
    assert all(word.rss_bytes and word.cpu_share >= 0 for word in counted)


async def test_what_the_run_says_on_the_way_is_done(pipes: Pipes, tmp_path: Path) -> None:
    async with realtime_server(Script()) as (url, seen):
        pipes.serve()
        pipes.tell(job(tmp_path, url, length_s=600.0, scenario=TALKING))
        pipes.tell(Go(time.monotonic()))
        while not seen.paths:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        pipes.tell(Stop())
        words = await pipes.words()
    assert [word.outcome.fate for word in words if isinstance(word, Ended)] == [Fate.ABANDONED]
    assert isinstance(words[-1], Done)


async def test_a_run_that_is_gone_leaves_nobody_calling(pipes: Pipes, tmp_path: Path) -> None:
    async with realtime_server(Script()) as (url, seen):
        pipes.serve()
        pipes.tell(job(tmp_path, url, length_s=600.0, scenario=TALKING))
        pipes.tell(Go(time.monotonic()))
        while not seen.paths:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        pipes.hang_up()
        words = await pipes.words()
    assert not any(isinstance(word, Done) for word in words)


@pytest.mark.parametrize("order", [Go(0.0), Job(name="x", scenario="no-such-scenario", seed=1, urls=(), recordings="")])
async def test_what_can_not_be_done_is_said(pipes: Pipes, order: ToGenerator) -> None:
    pipes.serve()
    pipes.tell(order)
    (word,) = await pipes.words()
    assert isinstance(word, Broken)


async def test_as_a_process_it_leaves_ctrl_c_to_the_run_and_keeps_its_output_clean(tmp_path: Path) -> None:
    code = "import loadtest.generator as g\nprint('on its way', flush=True)\ng.main()"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert await process.stdout.readline() == b"on its way\n"
    process.stdin.write(encode_line(job(tmp_path, "ws://127.0.0.1:1/")))
    ready = json.loads(await process.stdout.readline())
    assert ready["type"] == "ready"
    process.send_signal(signal.SIGINT)
    process.stdin.write(encode_line(Go(time.monotonic())))
    said, _ = await process.communicate()  # the end of its input is the end of it, whatever it was doing
    assert process.returncode == 0
    assert all(line.startswith(b'{"type"') for line in said.splitlines())


def test_a_run_that_does_not_listen_costs_no_memory() -> None:
    written: list[bytes] = []

    class Transport:
        unread = generator.MAX_UNREAD_BYTES

        def get_write_buffer_size(self) -> int:
            return self.unread

        def is_closing(self) -> bool:
            return False

        def write(self, data: bytes) -> None:
            written.append(data)

    transport = Transport()
    words = generator._Words(transport, generator._Pipe())  # type: ignore[arg-type]
    words.say_if_read(Ready())
    assert written == []
    words.say(Ready())  # what must be heard is said all the same
    transport.unread = 0
    words.say_if_read(Ready())
    assert len(written) == 2
    assert written[0] == encode_line(Ready())


def test_audio_that_nobody_waits_for_is_thrown_away(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "call-0.wav").write_bytes(b"sound")
    generator._leave_nothing(str(tmp_path / "run"), os.getppid())
    assert (tmp_path / "run" / "call-0.wav").exists()
    generator._leave_nothing(str(tmp_path / "run"), os.getppid() + 1)
    assert list(tmp_path.iterdir()) == []
