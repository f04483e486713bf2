"""Servers that refuse, fail, drop, garble or lie about themselves: each is caught by a whole run in the right words,
and the report is written whatever they do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.listening import listening
from tests.loadtest.dishonest_gateway import (
    Deaf,
    Dropping,
    Failing,
    Garbage,
    Mute,
    Refusing,
    TenTimes,
    dishonest,
    nobody,
    wordless,
)
from tests.loadtest.honesty_rig import SETTINGS, SHORT, Judged, judge, shown_by
from tests.serving import served

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(120)]


def reasons(judged: Judged) -> str:
    return " / ".join(judged.report.reasons)


async def test_servers_that_take_no_call(tmp_path: Path) -> None:
    """Nobody is there, it says no, it fails, it says nothing, or nothing that can be understood."""
    refusing = SHORT.replace("expect: {", "expect: {refused_ok: true, ")
    async with contextlib.AsyncExitStack() as stack:
        tricks = (Refusing(), Failing(), Garbage(instead=True))
        no, fails, garbles = [await stack.enter_async_context(dishonest("ws://127.0.0.1:9/v1", t)) for t in tricks]
        silent = await stack.enter_async_context(wordless())
        wanted = [(SHORT, no), (refusing, no), (SHORT, fails), (SHORT, garbles), (SHORT, silent), (SHORT, nobody())]
        judged = await asyncio.gather(*(judge(tmp_path / str(n), *each) for n, each in enumerate(wanted)))
    with shown_by(*judged):
        for each in judged:
            assert each.is_not_good, each.said
            assert (each.report.calls.accepted, each.report.calls.offered, each.report.goodput) == (0, 2, 0.0)
        refused, allowed, failed, garbled, unheard, absent = judged
        assert (refused.report.faults, refused.report.calls.refused) == ({"refused": 2}, 2)
        assert (allowed.report.faults, reasons(allowed)) == ({}, "every call was refused: none was served")
        for each in (failed, garbled, unheard, absent):
            assert (each.report.faults, each.report.calls.failed) == ({"failed": 2}, 2)
        assert any("500" in problem for problem in failed.report.problems)
        assert garbled.report.end_causes == {"no_session": 2}
        assert absent.report.end_causes == {"refused": 2}
        assert all(each.report.problems for each in judged)


async def test_servers_that_take_calls_and_serve_none(tmp_path: Path) -> None:
    tricks = (Mute(), Deaf(20), TenTimes(), Garbage(instead=False), Dropping(2.0))
    async with served(settings=SETTINGS) as here, contextlib.AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(dishonest(here.ws, t)) for t in tricks]
        judged = await asyncio.gather(*(judge(tmp_path / str(n), SHORT, url) for n, url in enumerate(urls)))
    with shown_by(*judged):
        for each in judged:
            assert each.is_not_good, each.said
            assert (each.report.calls.accepted, each.report.goodput) == (2, 0.0)
        mute, deaf, flooding, garbling, gone = judged
        assert mute.report.faults == {"no_answer": 2}
        assert mute.report.media.due == 0
        assert deaf.report.faults["no_answer"] == 2
        assert deaf.faults <= {"no_answer", "lost_code"}, "half of a word was heard"
        assert flooding.faults & {"lost_code", "damaged"}
        assert garbling.report.faults == {"garbled": 2}
        assert any("malformed" in problem for problem in garbling.report.problems)
        assert (gone.report.faults["dropped"], gone.report.end_causes) == (2, {"connection_lost": 2})
        assert gone.report.calls.dropped == 2


LIES = (
    'offhook_info{fake="true",preset="<script>alert(1)</script>",version="'
    + "9" * 10_000
    + '"} 1\n'
    + "process_cpu_seconds_total NaN\nprocess_resident_memory_bytes -Inf\nprocess_open_fds 1e400\n"
    + "process_threads -5\noffhook_calls_live +Inf\noffhook_tasks 12\n"
    + 'offhook_turn_stage_seconds_bucket{stage="<b>",le="NaN"} 5\n'
    + 'offhook_turn_stage_seconds_bucket{stage="<b>",le="0.1"} 1e300\n'
    + 'offhook_turn_stage_seconds_bucket{stage="decision",le="+Inf"} 3\n'
    + 'offhook_lane_slots{host="a",lane="b"} NaN\noffhook_lane_queue_age_seconds{lane="b"} -1\n'
)


async def test_what_a_server_says_of_itself_spoils_no_run(tmp_path: Path) -> None:
    """Garbage, lies, a page without end, and one that comes byte by byte: the calls were good, and so is the run."""
    async with served(settings=SETTINGS) as here, contextlib.AsyncExitStack() as stack:
        pages = [await stack.enter_async_context(page(kind)) for kind in ("lies", "garbage", "endless", "trickle")]
        judged = await asyncio.gather(
            *(judge(tmp_path / str(n), SHORT, here.ws, metrics=url) for n, url in enumerate(pages))
        )
    with shown_by(*judged):
        for each in judged:
            assert each.is_good, each.said
            assert each.report.calls.good == each.report.calls.offered == 2
        lies, *others = (each.report.server for each in judged)
        assert lies.readings
        assert {(r.cpu_s, r.rss_bytes, r.threads, r.calls_live, r.tasks) for r in lies.readings} == {
            (None,) * 4 + (12.0,)
        }
        assert max(map(len, lies.info.values())) <= 200
        assert [server.readings for server in others] == [()] * 3


async def test_an_honest_gateway_is_good_by_what_it_says_of_itself_too(tmp_path: Path) -> None:
    async with served(settings=SETTINGS) as here:
        judged = await judge(tmp_path / "run", SHORT, here.ws, metrics=None, codes=None)
    with shown_by(judged):
        assert judged.is_good, judged.said
        report = judged.report
        assert report.fake_engines
        assert report.cross_talk.own == report.cross_talk.turns_checked > 0
        assert report.server.readings
        assert report.server.scrapes_failed == 0
        assert report.base is not None
        assert report.base.back
        assert {"decision", "first_sent"} <= set(report.stages_ms)


@contextlib.asynccontextmanager
async def page(kind: str) -> AsyncIterator[str]:
    """A page of metrics that can't be trusted."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n")
            match kind:
                case "lies":
                    writer.write(LIES.encode())
                case "garbage":
                    writer.write(b"offhook_info{{{\nprocess_threads}\n\xff\xfe\0" + b"x" * 10_000)
                case "endless" | "trickle":
                    part = b"offhook_calls_live 1\n" * 10_000 if kind == "endless" else b"#"
                    while True:
                        writer.write(part)
                        await writer.drain()
                        await asyncio.sleep(0.001 if kind == "endless" else 0.2)

    async with listening(answer) as port:
        yield f"http://127.0.0.1:{port}/metrics"
