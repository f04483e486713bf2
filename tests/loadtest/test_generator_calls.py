"""The calls of a generator, against a scripted server on loopback, in this process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtest.arrivals import Arrival
from loadtest.call import CallPlan, CallTape, EndCause, PhoneOptions, Wire
from loadtest.code_pool import REST_S
from loadtest.generator_calls import GeneratorCalls
from loadtest.generator_messages import Ended, FromGenerator, Job, decode_order, encode_line
from loadtest.measured_call import OfferedCall
from loadtest.measuring import Measuring
from loadtest.outcome import CallOutcome, Fate
from loadtest.placing import dial
from loadtest.twilio_call import signature
from streaming.audio.code_words import WORDS, code_word
from tests.loadtest import sip_server, twilio_server
from tests.loadtest.realtime_server import Script, realtime_server

SCENARIO = """\
name: test
about: Ask once.
patience: {greeting_ms: 100, answer_ms: 1000, pause_ms: 100, stalled_ms: 500, agent_turn_ms: 2000}
steps: [{say: "Stop."}, wait_agent]
"""
TALKING = SCENARIO.replace('steps: [{say: "Stop."}, wait_agent]', "steps: [{repeat: {steps: [{pause_s: 1}]}}]")


@asynccontextmanager
async def calls_of(
    url: str, arrivals: Sequence[Arrival], folder: Path, scenario: str = SCENARIO, **known: Any
) -> AsyncIterator[GeneratorCalls]:
    path = folder / "test.yaml"
    path.write_text(scenario)
    job = Job(
        name="test", scenario=str(path), seed=1, urls=(url,), arrivals=tuple(arrivals), recordings=str(folder), **known
    )
    told = decode_order(encode_line(job))
    assert isinstance(told, Job)
    assert told == job
    with ThreadPoolExecutor(1) as making, ThreadPoolExecutor(1) as measuring:
        calls = GeneratorCalls(told, making=making, measuring=measuring)
        try:
            await calls.prepare()
            yield calls
        finally:
            await asyncio.to_thread(calls.close)


def outcomes(said: Sequence[FromGenerator]) -> list[CallOutcome]:
    return sorted((word.outcome for word in said if isinstance(word, Ended)), key=lambda outcome: outcome.number)


async def run(calls: GeneratorCalls) -> list[CallOutcome]:
    said: list[FromGenerator] = []
    await calls.run(time.monotonic(), said.append)
    return outcomes(said)


async def test_calls_are_placed_measured_and_told_of(tmp_path: Path) -> None:
    arrivals = [Arrival(number, 0.1 * number, 5.0) for number in range(3)]
    async with realtime_server(Script(replies=(300,))) as (url, seen), calls_of(url, arrivals, tmp_path) as calls:
        told = await run(calls)
        done = await calls.done()
    assert [outcome.fate for outcome in told] == [Fate.COMPLETED] * 3
    assert all(outcome.turns[0].voice_to_voice_ms is not None for outcome in told)
    assert [outcome.offered_s >= 0.1 * outcome.number for outcome in told] == [True] * 3
    assert len(seen.paths) == 3
    assert set(done.kept) == {0, 1, 2}
    assert (tmp_path / done.kept[1]).exists()
    assert done.broken == {}
    assert calls.counted(1.0, 0.1, None).offered == 3
    assert calls.counted(1.0, 0.1, None).up == calls.counted(1.0, 0.1, None).measuring == 0


async def test_callers_have_the_words_of_their_generator_and_rather_none_than_one_of_another(tmp_path: Path) -> None:
    """Of so many generators that each has two."""
    arrivals = [Arrival(number, 0.1 * number, 5.0) for number in range(3)]
    async with (
        realtime_server(Script(replies=(300,))) as (url, _),
        calls_of(url, arrivals, tmp_path, codes=True, generator=5, generators=WORDS // 2) as calls,
    ):
        told = await run(calls)
        done = await calls.done()
    assert [outcome.turns[0].code for outcome in told] == [code_word(5), code_word(5 + WORDS // 2), None]
    assert done.wordless == 1
    assert calls._words.take(time.monotonic()) is None
    assert calls._words.take(time.monotonic() + REST_S) == code_word(5)


async def test_callers_answer_a_challenge_and_have_a_number_each(tmp_path: Path) -> None:
    phone = PhoneOptions(user="alice", password=sip_server.PASSWORD, codec="pcma")
    challenging = sip_server.Script(challenge="SHA-256", payload="8 101")
    one = [Arrival(7, 0.0, 5.0)]
    async with (
        sip_server.sip_server(challenging) as (url, seen),
        calls_of(url, one, tmp_path, phone=phone) as calls,
    ):
        (told,) = await run(calls)
    assert told.fate is Fate.COMPLETED
    assert seen.methods()[:4] == ["INVITE", "ACK", "INVITE", "ACK"]
    assert "sip:+15550000007@" in sip_server.header(seen.request("INVITE"), "From")
    assert "RTP/AVP 8 101" in seen.request("INVITE")


async def test_callers_sign_their_streams(tmp_path: Path) -> None:
    phone = PhoneOptions("+1666", auth_token="token", signed_url="wss://public/", parameters={"a": "b"})
    one = [Arrival(0, 0.0, 5.0)]
    async with (
        twilio_server.twilio_server(twilio_server.Script()) as (url, seen),
        calls_of(url, one, tmp_path, phone=phone) as calls,
    ):
        (told,) = await run(calls)
    assert told.fate is Fate.COMPLETED
    assert seen.signatures == [signature("token", "wss://public/")]
    assert seen.of("start")[0]["start"]["customParameters"] == {"a": "b", "from": "+1666"}


async def test_a_lines_calls_wait_for_each_other_and_others_do_not(tmp_path: Path) -> None:
    lines = [Arrival(0, 0.0, 5.0, 0), Arrival(1, 0.0, 5.0, 1), Arrival(2, 0.01, 5.0, 0)]
    async with realtime_server(Script(replies=(300,))) as (url, _), calls_of(url, lines, tmp_path) as calls:
        first, other, second = await run(calls)
    assert other.offered_s < first.ended_s
    assert second.offered_s >= first.ended_s


async def test_calls_that_come_late_for_want_of_their_callers_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those that waited for their line."""
    plan = GeneratorCalls._plan

    def slowly(self: GeneratorCalls, arrival: Arrival, code: str | None) -> CallPlan:
        time.sleep(1.0 if arrival.number == 3 else 0.0)
        return plan(self, arrival, code)

    monkeypatch.setattr(GeneratorCalls, "_plan", slowly)
    lines = [Arrival(0, 0.0, 5.0, 0), Arrival(1, 0.01, 5.0, 0)]
    async with realtime_server(Script(replies=(300,))) as (url, _), calls_of(url, lines, tmp_path) as calls:
        first, second = await run(calls)
        assert second.offered_s >= first.ended_s
        assert (await calls.done()).offered_late_ms < (second.offered_s - 0.01) * 1000
        calls._job = msgspec.structs.replace(calls._job, arrivals=(Arrival(3, 0.2, 5.0),))
        await run(calls)
        assert (await calls.done()).offered_late_ms >= 700


async def test_a_server_that_says_no_and_one_that_is_not_there(tmp_path: Path) -> None:
    arrivals = [Arrival(0, 0.0, 5.0)]
    async with realtime_server(Script(close_at_once=(1013, "busy"))) as (url, _):
        async with calls_of(url, arrivals, tmp_path) as calls:
            (refused,) = await run(calls)
        async with calls_of("ws://127.0.0.1:1/", arrivals, tmp_path) as calls:
            (failed,) = await run(calls)
    assert (refused.fate, refused.faults) == (Fate.REFUSED, ("refused",))
    assert failed.fate is Fate.FAILED


async def test_stop_hangs_up_what_is_up_and_offers_no_more(tmp_path: Path) -> None:
    arrivals = [Arrival(0, 0.0, 60.0), Arrival(1, 0.0, 60.0, 1), Arrival(2, 30.0, 60.0, 1), Arrival(3, 30.0, 60.0)]
    said: list[FromGenerator] = []
    async with realtime_server(Script()) as (url, _), calls_of(url, arrivals, tmp_path, TALKING) as calls:
        running = asyncio.create_task(calls.run(time.monotonic(), said.append))
        while calls.counted(0.0, 0.0, None).up < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        calls.stop(at_once=False)
        await running
    assert [(outcome.number, outcome.fate) for outcome in outcomes(said)] == [(0, Fate.ABANDONED), (1, Fate.ABANDONED)]
    assert all(outcome.answered_s is not None for outcome in outcomes(said))


async def test_stop_at_once_tells_of_calls_that_are_still_being_placed(tmp_path: Path) -> None:
    said: list[FromGenerator] = []
    arrivals = [Arrival(0, 0.0, 60.0)]
    async with realtime_server(Script(mute=True)) as (url, _), calls_of(url, arrivals, tmp_path) as calls:
        running = asyncio.create_task(calls.run(time.monotonic(), said.append))
        while calls.counted(0.0, 0.0, None).offered < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        calls.stop(at_once=False)
        calls.stop(at_once=True)
        await running
    (outcome,) = outcomes(said)
    assert (outcome.fate, outcome.end_cause) == (Fate.ABANDONED, EndCause.ABANDONED)


async def test_stop_at_once_loses_no_call_that_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is being measured, and one waits for its line."""
    may_go_on = threading.Event()
    measure = Measuring.measure

    def slowly(self: Measuring, offered: OfferedCall, tape: CallTape) -> CallOutcome:
        may_go_on.wait(20)
        return measure(self, offered, tape)

    monkeypatch.setattr(Measuring, "measure", slowly)
    said: list[FromGenerator] = []
    arrivals = [Arrival(0, 0.0, 5.0), Arrival(1, 0.0, 5.0, 0), Arrival(2, 0.0, 5.0, 0)]
    refusing = Script(close_at_once=(1013, "busy"))
    async with realtime_server(refusing) as (url, _), calls_of(url, arrivals[:1], tmp_path) as calls:
        running = asyncio.create_task(calls.run(time.monotonic(), said.append))
        while calls.counted(0.0, 0.0, None).measuring < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        calls.stop(at_once=False)
        calls.stop(at_once=True)
        may_go_on.set()
        await running
    async with realtime_server(Script(mute=True)) as (url, _), calls_of(url, arrivals[1:], tmp_path) as calls:
        running = asyncio.create_task(calls.run(time.monotonic(), said.append))
        while calls.counted(0.0, 0.0, None).offered < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        calls.stop(at_once=True)
        await running
    assert [(outcome.number, outcome.fate) for outcome in outcomes(said)] == [(0, Fate.REFUSED), (1, Fate.ABANDONED)]


async def test_a_caller_that_can_not_be_made_ends_the_run_however_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(self: GeneratorCalls, arrival: Arrival, code: str | None) -> CallPlan:
        raise ZeroDivisionError("no such caller")

    arrivals = [Arrival(0, 0.0, 5.0), Arrival(1, 3_600.0, 5.0)]
    async with calls_of("ws://127.0.0.1:1/", (), tmp_path) as idle:
        job = idle._job
    monkeypatch.setattr(GeneratorCalls, "_plan", plan)
    with ThreadPoolExecutor(1) as making, ThreadPoolExecutor(1) as measuring:
        calls = GeneratorCalls(
            msgspec.structs.replace(job, arrivals=tuple(arrivals)), making=making, measuring=measuring
        )
        try:
            with pytest.raises(ZeroDivisionError, match="no such caller"):
                await run(calls)
        finally:
            await asyncio.to_thread(calls.close)


async def test_a_caller_that_breaks_down_is_counted_and_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(plan: CallPlan) -> Wire:
        if plan.phone.caller == "+15550000001":
            raise ZeroDivisionError("division by zero")
        return await dial(plan)

    monkeypatch.setattr("loadtest.generator_calls.dial", broken)
    arrivals = [Arrival(number, 0.0, 5.0) for number in range(2)]
    async with realtime_server(Script(replies=(300,))) as (url, _), calls_of(url, arrivals, tmp_path) as calls:
        well, ill = await run(calls)
        done = await calls.done()
    assert well.fate is Fate.COMPLETED
    assert ill.fate is Fate.ABANDONED
    assert ill.problem == "the caller broke down: division by zero"
    assert done.broken == {"ZeroDivisionError: division by zero": 1}
