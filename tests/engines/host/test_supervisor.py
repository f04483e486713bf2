"""Real host processes: they die, hang, lie and get nothing done, and the gateway knows."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import uvloop

from engines.api import EngineError, Overload
from engines.host.process import HostSpec, SetUp
from engines.host.times import HostTimes
from streaming.jobs import GenerationDone, SynthesisChunk
from tests.engines.host.rig import (
    TIMES,
    Answers,
    alive,
    fake,
    fds,
    final,
    generate,
    hosts,
    spec,
    synthesize,
    the_host,
    transcription,
    until,
)

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[3]


async def all_three() -> None:
    """A transcript, a reply and its speech through a host, which then ends with 0 and leaves nothing."""
    async with hosts() as place:
        stt = place.engine(spec("stt", lines=["what is the time"], partial_every_ms=100), [])
        llm, tts = place.engine(spec("llm"), []), place.engine(spec("tts"), [])
        await asyncio.gather(stt.start(), llm.start(), tts.start())
        assert (tts.rate_hz, tts.voices) == (24_000, ("tone",))
        assert place.health().healthy
        heard, said, spoken = Answers(), Answers(), Answers()
        stream = stt.open(transcription(), heard)
        for _ in range(60):
            stream.feed(np.full(320, 5_000, np.int16))
        stream.finalize(final())
        llm.generate(generate(), said)
        tts.synthesize(synthesize(), spoken)
        await until(lambda: said.ended and heard.all and heard.all[-1].text == "what is the time")
        await until(lambda: spoken.all and spoken.all[-1].last)
        assert "what" in [result.text for result in heard.all]
        assert said.text == "You said: good morning."
        assert isinstance(said.all[-1], GenerationDone)
        assert sum(len(chunk.pcm) for chunk in spoken.all) == 24 * 500 * 2
        host = the_host(place)
        pid = host.pid
        assert pid is not None
        await until(lambda: place.health().hosts["cpu"].memory_bytes > 10 << 20)
        assert place.health().hosts["cpu"].cpu_s > 0
        assert place.health().hosts["cpu"].pid == pid
        await llm.close()
        assert not llm.available
        llm.generate(generate(2), said)
        await until(lambda: "host_down" in said.codes)
        assert place.health().healthy
        stream.close()
    assert host.exit_code == 0
    assert not alive(pid)
    await place.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_all_three_stages_and_an_orderly_end(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(all_three())
        before = fds()  # a loop opens some of its own when they are first needed
        runner.run(all_three())
        assert fds() == before


async def test_killed_in_mid_reply_both_calls_know_at_once_and_it_comes_back() -> None:
    async with hosts() as place:
        llm, tts = place.engine(spec("llm", token_delay_s=0.05), []), place.engine(spec("tts", realtime_factor=1.0), [])
        stt = place.engine(spec("stt", final_delay_s=60.0), [])
        await asyncio.gather(llm.start(), tts.start(), stt.start())
        host = the_host(place)
        first, second, speech, words = Answers(), Answers(), Answers(), Answers()
        long = "word " * 200
        llm.generate(generate(1, call="anna", text=long), first)
        llm.generate(generate(1, call="bert", text=long), second)
        tts.synthesize(synthesize(1, text=long, call="anna"), speech)
        stream = stt.open(transcription(7), words)
        stream.feed(np.zeros(1600, np.int16))
        stream.finalize(final(3, 7))
        await until(lambda: len(first.all) > 2 and len(second.all) > 2 and speech.all)
        assert host.pid is not None
        os.kill(host.pid, signal.SIGKILL)
        await until(lambda: first.codes and second.codes and speech.codes and words.codes)
        assert first.codes == second.codes == speech.codes == words.codes == ["host_lost"]
        assert (words.all[-1].utterance, words.all[-1].revision) == (7, 3)
        assert not place.health().healthy
        assert "cpu host is down" in place.health().reason
        later, another = Answers(), Answers()
        llm.generate(generate(2, call="anna"), later)
        stream.finalize(final(4, 7))
        stt.open(transcription(8), another).finalize(final(0, 8))
        assert later.all == another.all == []
        await until(lambda: later.codes == ["host_down"] and another.codes == ["host_down"])
        assert words.codes == ["host_lost", "host_lost"]
        await until(lambda: llm.available and tts.available and stt.available)
        assert (host.restarts, place.health().healthy) == (1, True)
        again = Answers()
        llm.generate(generate(3, call="anna"), again)
        await until(lambda: again.ended)
        assert again.text == "You said: good morning."
        stream.finalize(final(5, 7))
        stream.close()
        await until(lambda: len(words.codes) <= 3)
    assert host.exit_code == 0


async def test_a_host_that_stands_still_is_killed_and_replaced() -> None:
    times = dataclasses.replace(TIMES, silent_pings=10, silent_pings_loading=200)
    async with hosts(times=times) as place:
        llm = place.engine(spec("llm", token_delay_s=0.02), [])
        await llm.start()
        answers = Answers()
        llm.generate(generate(text="word " * 500), answers)
        await until(lambda: len(answers.all) > 2)
        pid = the_host(place).pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: answers.codes)
        assert answers.codes == ["host_lost"]
        await until(lambda: llm.available)
        assert not alive(pid)


async def test_a_host_that_ceases_to_answer_fails_its_jobs_and_is_itself_again_when_it_goes_on() -> None:
    times = dataclasses.replace(TIMES, suspect_pings=20, silent_pings=10_000)
    async with hosts(times=times) as place:
        llm, stt = place.engine(spec("llm", token_delay_s=0.02), []), place.engine(spec("stt", final_delay_s=0.0), [])
        await asyncio.gather(llm.start(), stt.start())
        host = the_host(place)
        pid = host.pid
        assert pid is not None
        answers, words = Answers(), Answers()
        llm.generate(generate(text="word " * 500), answers)
        stream = stt.open(transcription(), words)
        await until(lambda: len(answers.all) > 2)
        sent: list[str] = []
        send = host.send

        def noted(message: object) -> None:
            sent.append(type(message).__name__)
            send(message)

        host.send = noted  # type: ignore[method-assign]
        os.kill(pid, signal.SIGSTOP)
        try:
            stream.finalize(final())
            await until(lambda: answers.codes)
            assert (answers.codes, words.codes) == (["host_lost"], ["host_lost"])
            assert [name for name in sent if name in ("CancelEpoch", "CloseStream")] == ["CancelEpoch", "CloseStream"]
            assert place.health().reason == "the cpu host does not answer"
            refused = Answers()
            llm.generate(generate(2), refused)
            await until(lambda: refused.codes)
            assert refused.codes == ["host_down"]
        finally:
            os.kill(pid, signal.SIGCONT)
        stream.close()
        await until(lambda: llm.available and stt.available)
        assert place.health().healthy
        count = len(answers.all)
        after = Answers()
        llm.generate(generate(3), after)
        await until(lambda: after.ended)
        assert after.codes == []
        assert (host.restarts, host.pid, len(answers.all)) == (0, pid, count)


async def test_a_host_that_loads_a_model_may_be_silent_for_longer() -> None:
    times = dataclasses.replace(TIMES, suspect_pings=5, silent_pings=10)
    async with hosts(times=times) as place:
        llm = place.engine(spec("llm", token_delay_s=0.02), [])
        await llm.start()
        answers = Answers()
        llm.generate(generate(text="word " * 500), answers)
        slow = place.engine(spec("llm", factory="tests.engines.host.engines:SlowToLoad"), [])
        loading = asyncio.create_task(slow.start())
        await until(lambda: len(answers.all) > 2)
        pid = the_host(place).pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            await until(lambda: the_host(place)._silent > 40)
            assert answers.codes == []
        finally:
            os.kill(pid, signal.SIGCONT)
        count = len(answers.all)
        await until(lambda: len(answers.all) > count)
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        llm.cancel("call", 1)


async def test_a_host_that_reads_nothing_is_given_up_before_its_mail_fills_our_memory(tmp_path: Path) -> None:
    times = dataclasses.replace(TIMES, outbox_bytes=1 << 20, silent_pings=10_000)
    async with hosts(times=times, cpu=fake(tmp_path, "deaf")) as place:
        stt = place.engine(spec("stt"), [])
        await stt.start()
        words = Answers()
        stream = stt.open(transcription(), words)
        stream.finalize(final())
        for _ in range(100):
            stream.feed(np.zeros(16_000, np.int16))
            await asyncio.sleep(0)
        await until(lambda: words.codes)
        assert words.codes == ["host_lost"]
        stream.close()
        await until(lambda: the_host(place).restarts)


@pytest.mark.parametrize(("mode", "reason"), [("stuck", "a decode has run for 40.0 s"), ("dead", "")])
async def test_an_mlx_thread_that_is_stuck_or_dead_is_a_reason_to_start_anew(
    tmp_path: Path, mode: str, reason: str
) -> None:
    async with hosts(cpu=fake(tmp_path, mode)) as place:
        llm = place.engine(spec("llm"), [])
        await llm.start()
        await until(lambda: place.health().overload is Overload.REFUSE_CALLS or the_host(place).restarts)
        if mode == "stuck":
            assert place.health().reason == f"the cpu host: {reason}"
            assert llm.available
            assert place.health().hosts["cpu"].device_bytes == 2
        answers = Answers()
        llm.generate(generate(), answers)
        await until(lambda: answers.codes)
        await until(lambda: the_host(place).restarts and llm.available)


@pytest.mark.parametrize(
    ("mode", "code", "message"),
    [
        ("exits", "host_failed", "could not be started: .*ended with exit code 3"),
        ("version", "host_failed", "must run the same release of Offhook"),
        ("mute", "host_failed", "it did not greet in 1 s"),
        ("garbage", "host_failed, host_lost", "a frame that cannot be read"),
        ("huge", "host_failed, host_lost", "a frame of 4294967295 bytes"),
        ("half", "host_failed, host_lost", "6 bytes into a frame"),
    ],
)
async def test_a_host_that_is_none_is_an_error_that_says_so(tmp_path: Path, mode: str, code: str, message: str) -> None:
    before = fds()
    times = dataclasses.replace(TIMES, greet_s=1.0 if mode == "mute" else 60.0)
    async with hosts(times=times, cpu=fake(tmp_path, mode)) as place:
        llm = place.engine(spec("llm"), [])
        with pytest.raises(EngineError, match=message) as caught:
            await llm.start()
        assert caught.value.code in code  # one that lies at once may be seen to greet before, or not
        await until(lambda: not the_host(place).started)
        assert place.health().healthy
    assert fds() == before


async def test_an_interpreter_that_is_not_there() -> None:
    async with hosts(cpu=HostSpec("cpu", python=Path("/no/such/python"))) as place:
        with pytest.raises(EngineError, match="/no/such/python") as caught:
            await place.engine(spec("llm"), []).start()
        assert caught.value.code == "host_failed"


async def test_a_model_that_does_not_load_is_its_own_error_and_the_host_stays() -> None:
    async with hosts() as place:
        llm = place.engine(spec("llm"), [])
        await llm.start()
        pid = the_host(place).pid
        for broken, code in (
            (spec("llm", start_fails=True), "scripted"),
            (spec("llm", no_such_option=1), "load_failed"),
            (spec("llm", factory="engines.no_such_module:Engine"), "load_failed"),
        ):
            with pytest.raises(EngineError) as caught:
                await place.engine(broken, []).start()
            assert caught.value.code == code
        missing = dataclasses.replace(spec("llm", factory="engines.no_such_module:Engine"), extra="embedded")
        with pytest.raises(EngineError, match=r"pip install -e '\.\[embedded\]'") as caught:
            await place.engine(missing, []).start()
        assert caught.value.code == "missing_extra"
        assert the_host(place).pid == pid
        assert llm.available
        assert place.health().healthy


async def test_a_load_that_takes_too_long_or_is_given_up() -> None:
    times = dataclasses.replace(TIMES, load_s=0.3)
    async with hosts(times=dataclasses.replace(times, load_s=30.0)) as place:
        slow = place.engine(spec("llm", factory="tests.engines.host.engines:SlowToLoad"), [])
        loading = asyncio.create_task(slow.start())
        await until(lambda: the_host(place).pid)
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        assert not slow.available
        await slow.close()
    async with hosts(times=times) as place:
        with pytest.raises(EngineError) as caught:
            await place.engine(spec("llm", factory="tests.engines.host.engines:SlowToLoad"), []).start()
        assert caught.value.code in ("load_timeout", "host_failed")


async def test_while_it_is_down_nothing_is_loaded_into_it(tmp_path: Path) -> None:
    async with hosts() as place:
        llm = place.engine(spec("llm"), [])
        await llm.start()
        host = the_host(place)
        assert host.pid is not None
        host._backoff._first_s = host._backoff._next_s = 60.0
        os.kill(host.pid, signal.SIGKILL)
        await until(lambda: host.pid is None)
        with pytest.raises(EngineError, match="SIGKILL") as caught:
            await place.engine(spec("tts"), []).start()
        assert caught.value.code == "host_down"
        llm.cancel("call", 1)
        llm.forget("call")
        await llm.close()
    with pytest.raises(EngineError) as caught:
        await place.engine(spec("tts"), []).start()
    assert caught.value.code == "host_closed"


async def test_one_that_died_while_nobody_needed_it_starts_again_for_whoever_does() -> None:
    """A model that stands in is unloaded when memory is short, and its host may be killed for the same reason."""
    async with hosts() as place:
        llm = place.engine(spec("llm"), [])
        await llm.start()
        await llm.close()
        host = the_host(place)
        assert host.pid is not None
        os.kill(host.pid, signal.SIGKILL)
        await until(lambda: not host.started)
        assert place.health().healthy
        again = place.engine(spec("llm"), [])
        await again.start()
        assert again.available


async def test_a_model_that_does_not_load_again_is_tried_again(tmp_path: Path) -> None:
    flag = tmp_path / "broken"
    async with hosts() as place:
        llm = place.engine(spec("llm", factory="tests.engines.host.engines:Moody", broken_if=str(flag)), [])
        tts = place.engine(spec("tts"), [])
        await asyncio.gather(llm.start(), tts.start())
        flag.touch()
        pid = the_host(place).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: the_host(place).restarts and tts.available)
        assert not llm.available
        assert place.health().reason == "the cpu host was restarted and loads hosted-llm"
        flag.unlink()
        await until(lambda: llm.available)
        assert place.health().healthy


@pytest.mark.parametrize("mode", ["deathless"])
async def test_one_that_does_not_stop_is_killed(tmp_path: Path, mode: str) -> None:
    times = dataclasses.replace(TIMES, close_s=0.5)
    async with hosts(times=times, cpu=fake(tmp_path, mode)) as place:
        llm = place.engine(spec("llm"), [])
        await llm.start()
        await llm.close()  # it does not answer this, either
        pid = the_host(place).pid
        assert pid is not None
    assert not alive(pid)
    assert the_host(place).exit_code == -signal.SIGKILL


async def test_closing_while_it_starts(tmp_path: Path) -> None:
    async with hosts(cpu=fake(tmp_path, "mute")) as place:
        loading = asyncio.create_task(place.engine(spec("llm"), []).start())
        await until(lambda: the_host(place).pid)
    with pytest.raises(EngineError):
        await loading


async def test_two_hosts_do_not_hold_each_others_ends() -> None:
    """What one inherits of another would keep that one's connection open when we are gone."""
    async with hosts() as place:
        one, two = place.engine(spec("llm", "cpu"), []), place.engine(spec("llm", "mlx"), [])
        await asyncio.gather(one.start(), two.start())
        ends = []
        for name in ("cpu", "mlx"):
            folder = f"/proc/{the_host(place, name).pid}/fd"
            links = [os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder)]
            ends.append({link for link in links if link.startswith(("socket:", "pipe:"))})
        outputs = {os.readlink(f"/proc/self/fd/{number}") for number in (1, 2)}
        shared = (ends[0] & ends[1]) - outputs
        assert shared == set(), "the hosts share a descriptor"
        assert os.getsid(the_host(place).pid or 0) != os.getsid(0)


async def test_ctrl_c_and_sigterm_are_for_the_gateway() -> None:
    async with hosts() as place:
        llm = place.engine(spec("llm"), [])
        await llm.start()
        pid = the_host(place).pid
        assert pid is not None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
        answers = Answers()
        llm.generate(generate(), answers)
        await until(lambda: answers.ended)
        assert the_host(place).pid == pid


PARENT = """
import asyncio, sys
from engines.host.process import SetUp
from tests.engines.host.rig import hosts, spec, the_host

async def main():
    async with hosts() as place:
        for name in ("cpu", "mlx"):
            await place.engine(spec("llm", name, factory=sys.argv[1]), []).start()
        print("pids", the_host(place, "cpu").pid, the_host(place, "mlx").pid, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("engine", ["engines.llm.scripted:ScriptedLlm", "tests.engines.host.engines:Stuck"])
def test_no_host_outlives_its_parent_whatever_it_is_at(engine: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, engine],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with parent:
        try:
            assert parent.stdout is not None
            line = next(line for line in parent.stdout if line.startswith("pids"))
            pids = [int(word) for word in line.split()[1:]]
            assert all(alive(pid) for pid in pids)
        finally:
            parent.kill()
    asyncio.run(until(lambda: not any(alive_and_not_zombie(pid) for pid in pids)))


def alive_and_not_zombie(pid: int) -> bool:
    """In a container nobody may reap what was orphaned."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    return False


async def test_a_host_logs_as_it_is_told(tmp_path: Path) -> None:
    from engines.host.hosts import Hosts

    told = tmp_path / "told"
    place = Hosts(set_up=SetUp("tests.engines.host.engines:set_up", {"path": str(told), "level": "info"}), times=TIMES)
    await place.engine(spec("llm"), []).start()
    await place.close()
    assert told.read_text("utf-8") == "info"


async def test_long_audio_is_cut_and_a_cancel_is_heard() -> None:
    async with hosts() as place:
        tts = place.engine(spec("tts", factory="tests.engines.host.engines:WholeSegments"), [])
        await tts.start()
        spoken = Answers()
        tts.synthesize(synthesize(), spoken)
        await until(lambda: spoken.all and spoken.all[-1].last)
        chunks: list[SynthesisChunk] = spoken.all
        assert [len(chunk.pcm) for chunk in chunks] == [9_600] * 5
        assert [chunk.last for chunk in chunks] == [False] * 4 + [True]
        assert [len(chunk.words) for chunk in chunks] == [1, 0, 0, 0, 0]


def test_the_default_bounds_are_in_order() -> None:
    times = HostTimes()
    assert times.suspect_pings < times.silent_pings < times.silent_pings_loading
    assert times.greet_s < times.load_s
