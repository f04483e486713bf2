from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from loadtest.address import call_address
from loadtest.run_report import StageTimes
from loadtest.server_readings import (
    MAX_READINGS,
    Exposition,
    Lane,
    ServerWatch,
    longest_ms,
    metrics_url,
    read_exposition,
    since,
)

METRICS = """\
# HELP offhook_info Always 1
offhook_info{fake="true",preset="null",stt="scripted \\"x\\""} 1.0
offhook_calls_live 3.0
offhook_calls_refused_total{reason="busy"} 2.0
offhook_calls_refused_total{reason="overloaded"} 1.0
offhook_turn_stage_seconds_bucket{le="0.1",stage="decision"} 1.0
offhook_turn_stage_seconds_bucket{le="+Inf",stage="decision"} 2.0
offhook_send_late_seconds_bucket{le="0.005",transport="sip"} 10.0
offhook_send_late_seconds_bucket{le="0.005",transport="websocket"} 20.0
offhook_send_late_seconds_bucket{le="+Inf",transport="websocket"} 21.0
offhook_loop_lag_seconds_bucket{le="0.01"} 5.0
offhook_loop_lag_seconds_bucket{le="0.05"} 6.0
offhook_loop_lag_seconds_bucket{le="+Inf"} 6.0
offhook_loop_lag_seconds_count 6.0
offhook_frames_late_total{transport="sip"} 4.0
offhook_lane_busy_seconds_total{host="cpu",lane="cpu"} 7.5
offhook_lane_slots{host="cpu",lane="cpu"} 2.0
offhook_lane_queue_age_seconds{host="cpu",lane="cpu"} 0.25
offhook_tasks 12.0
offhook_host_cpu_seconds_total{host="cpu"} 4.0
offhook_host_cpu_seconds_total{host="mlx"} 6.0
offhook_host_memory_bytes{host="cpu"} 1.0e+09
offhook_host_memory_bytes{host="mlx"} 2.0e+09
process_cpu_seconds_total 1.5
process_resident_memory_bytes 1.0e+08
process_threads 4.0
process_open_fds 20.0
something_else{a="b"} 1.0
"""

Answer = tuple[int, str]


@asynccontextmanager
async def http_server(answer: Callable[[str, dict[str, str]], Answer]) -> AsyncIterator[str]:
    """Answers each GET by its path and headers; one a connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        status, body = answer(head[0].split(" ")[1], headers)
        writer.write(
            f"HTTP/1.1 {status} X\r\nContent-Length: {len(body.encode())}\r\nConnection: close\r\n\r\n".encode()
        )
        writer.write(body.encode())
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_what_is_known_is_taken_and_the_rest_left() -> None:
    told = read_exposition(METRICS)
    assert told == Exposition(
        values={
            "calls_live": 3,
            "calls_refused": 3,
            "send_late_frames": 4,
            "queue_age_ms": 250,
            "tasks": 12,
            "hosts_cpu_s": 10,
            "hosts_rss_bytes": 3e9,
            "cpu_s": 1.5,
            "rss_bytes": 1e8,
            "threads": 4,
            "fds": 20,
        },
        info={"fake": "true", "preset": "null", "stt": 'scripted "x"'},
        stages={"decision": {0.1: 1, math.inf: 2}},
        send_late={0.005: 30, math.inf: 21},
        loop_lag={0.01: 5, 0.05: 6, math.inf: 6},
        lanes={"cpu/cpu": Lane(7.5, 2)},
    )
    assert read_exposition("<html>\nno metrics here\n") == Exposition(values={})


def test_histograms_between_two_readings() -> None:
    before, now = {0.1: 1.0, math.inf: 2.0}, {0.1: 1.0, math.inf: 5.0}
    assert since(before, now) == {0.1: 0, math.inf: 3}
    assert since({}, now) == now
    assert since({0.1: 9.0}, now) == now  # the server began anew
    assert longest_ms({}) is None
    assert longest_ms({0.01: 0, math.inf: 0}) is None
    assert longest_ms({0.01: 3, 0.05: 3, math.inf: 3}) == 10
    assert longest_ms({0.01: 3, 0.05: 4, math.inf: 4}) == 50


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("ws://127.0.0.1:8080/v1/realtime", "http://127.0.0.1:8080/metrics"),
        ("wss://voice.example.com/a/v1/realtime?model=x", "https://voice.example.com/a/metrics"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/metrics"),
        ("twilio+ws://127.0.0.1:8080/v1/carriers/twilio/stream", "http://127.0.0.1:8080/metrics"),
        ("sip:sales@127.0.0.1:5060", None),
        ("audiosocket://127.0.0.1:9092", None),
    ],
)
def test_where_a_server_would_have_its_metrics(url: str, where: str | None) -> None:
    assert metrics_url(call_address(url, None)) == where


async def test_readings_tell_what_happened_since_the_last() -> None:
    cpu_s, busy_s, host_s = iter((1.5, 2.5, 2.75)), iter((7.5, 8.5, 12.5)), iter((6.0, 9.0, 1.0))
    seen: list[str | None] = []

    def answer(path: str, headers: dict[str, str]) -> Answer:
        assert path == "/metrics"
        seen.append(headers.get("authorization"))
        text = METRICS.replace("process_cpu_seconds_total 1.5", f"process_cpu_seconds_total {next(cpu_s)}")
        text = text.replace('{host="mlx"} 6.0', f'{{host="mlx"}} {next(host_s)}')
        return 200, text.replace('lane="cpu"} 7.5', f'lane="cpu"}} {next(busy_s)}')

    clock = Clock()
    async with http_server(answer) as url:
        watch = ServerWatch(f"{url}/metrics", "secret", clock)
        base = await watch.read(keep=False)
        for clock.now_s in (2.0, 2.5):
            await watch.read()
        await watch.aclose()
    assert base is not None
    assert (base.cpu_cores, base.utilisation, base.loop_lag_ms, base.calls_live) == (None, None, None, 3)
    assert [reading.at_s for reading in watch.readings] == [2.0, 2.5]
    assert [reading.cpu_cores for reading in watch.readings] == [0.5, 0.5]
    assert [reading.hosts_cpu_cores for reading in watch.readings] == [1.5, 0.0]  # one was started anew
    assert [reading.all_cpu_cores for reading in watch.readings] == [2.0, 0.5]
    assert (base.hosts_rss_bytes, base.all_rss_bytes) == (3e9, 3.1e9)
    assert [reading.utilisation for reading in watch.readings] == [0.25, 1.0]
    assert watch.readings[0].loop_lag_ms is None  # nothing new in it
    assert watch.info["fake"] == "true"
    assert watch.stages() == {"decision": {0.1: 0, math.inf: 0}}
    assert watch.send_late() == {0.005: 0, math.inf: 0}
    assert seen == ["Bearer secret"] * 3
    assert watch.failed == 0


async def test_a_clock_that_begins_anew_with_the_run_makes_no_old_lag_a_new_one() -> None:
    clock = Clock()
    clock.now_s = 9.0
    async with http_server(lambda path, headers: (200, METRICS)) as url:
        watch = ServerWatch(f"{url}/metrics", None, clock)
        await watch.read(keep=False)
        clock.now_s = 0.0
        reading = await watch.read()
        await watch.aclose()
    assert reading is not None
    assert (reading.cpu_cores, reading.utilisation, reading.loop_lag_ms) == (None, None, None)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((404, "not here"), "status 404"),
        ((200, "<html>welcome</html>"), "no metrics that are known"),
        ((200, "offhook_info{{{ 1\n"), ""),
    ],
)
async def test_a_server_without_metrics_has_no_readings(answer: Answer, why: str) -> None:
    async with http_server(lambda path, headers: answer) as url:
        watch = ServerWatch(f"{url}/metrics", None, Clock())
        assert await watch.read() is None
        await watch.aclose()
    assert watch.problem is not None
    assert why in watch.problem
    assert (watch.readings, watch.failed, watch.info, watch.stages(), watch.send_late()) == ([], 0, {}, {}, {})


async def test_readings_that_fail_later_are_counted() -> None:
    async with http_server(lambda path, headers: (200, METRICS)) as url:
        watch = ServerWatch(f"{url}/metrics", None, Clock())
        assert await watch.read() is not None
    assert await watch.read() is None
    await watch.aclose()
    assert (len(watch.readings), watch.failed) == (1, 1)


async def test_where_there_is_no_page_nothing_is_asked() -> None:
    watch = ServerWatch(None, None, Clock())
    assert await watch.read() is None
    assert await watch.stages_of("call") == ()
    await watch.aclose()


async def test_a_server_of_another_make_is_asked_once_for_what_it_does_not_have() -> None:
    asked: list[str] = []

    def answer(path: str, headers: dict[str, str]) -> Answer:
        asked.append(path)
        return (404, "{}") if len(asked) > 1 else (503, "starting")

    async with http_server(answer) as url:
        watch = ServerWatch(f"{url}/metrics", None, Clock())
        for _ in range(4):
            assert await watch.read() is None
        assert await watch.stages_of("call_1") == ()
        await watch.aclose()
    assert asked == ["/metrics"] * 2
    assert watch.problem == "status 404"


async def test_a_run_that_begins_after_the_first_reading_changes_no_share() -> None:
    clock = Clock()
    read = iter((10.0, 11.0))
    async with http_server(lambda path, headers: (200, f"process_cpu_seconds_total {next(read)}\n")) as url:
        watch = ServerWatch(f"{url}/metrics", None, clock)
        clock.now_s = 3.0
        await watch.read(keep=False)
        watch.start_s = 4.0
        clock.now_s = 8.0
        reading = await watch.read()
        await watch.aclose()
    assert reading is not None
    assert (reading.at_s, reading.cpu_cores) == (4.0, 0.2)


async def test_readings_of_a_long_run_are_thinned() -> None:
    clock = Clock()
    async with http_server(lambda path, headers: (200, "offhook_tasks 1\n")) as url:
        watch = ServerWatch(f"{url}/metrics", None, clock)
        first = await watch.read()
        assert first is not None
        watch.readings = [first] * MAX_READINGS
        for clock.now_s in (1.0, 2.0, 3.0, 4.0):
            await watch.read()
        await watch.aclose()
    assert len(watch.readings) <= MAX_READINGS // 2 + 3
    assert watch.readings[-1].at_s >= 3.0


async def test_the_record_of_a_call_is_found_by_its_id_or_by_its_wires_id() -> None:
    record = {
        "id": "call_1",
        "turns": [{"decision_ms": 500.0, "first_sent_ms": 700.5, "new": 1}, {"decision_ms": None}],
    }

    def answer(path: str, headers: dict[str, str]) -> Answer:
        if path == "/v1/calls/call_1":
            return 200, json.dumps(record)
        if path == "/v1/calls?limit=100":
            return 200, json.dumps(
                {"data": [{"id": "call_0", "wire_id": None}, {"id": "call_1", "wire_id": "a b@host"}]}
            )
        return (200, METRICS) if path == "/metrics" else (404, "{}")

    async with http_server(answer) as url:
        watch = ServerWatch(f"{url}/metrics", None, Clock())
        assert await watch.stages_of("call_1") == ()  # who it is, it has not said yet
        await watch.read()
        stages = (StageTimes(decision_ms=500.0, first_sent_ms=700.5),)
        assert await watch.stages_of("call_1") == stages
        assert await watch.stages_of("a b@host") == stages
        assert await watch.stages_of("unknown") == ()
        await watch.aclose()


def test_numbers_that_are_none_and_texts_without_end_are_left_out() -> None:
    lies = read_exposition(
        "process_cpu_seconds_total NaN\nprocess_open_fds 1e400\nprocess_threads -5\noffhook_calls_live +Inf\n"
        'offhook_tasks 12\noffhook_info{preset="' + "n" * 10_000 + '"} 1\n'
        'offhook_turn_stage_seconds_bucket{stage="decision",le="NaN"} 5\n'
        'offhook_turn_stage_seconds_bucket{stage="decision",le="+Inf"} 3\n'
    )
    assert lies.values == {"tasks": 12.0}
    assert len(lies.info["preset"]) == 200
    assert lies.stages == {"decision": {math.inf: 3.0}}
    many = "".join(f'offhook_turn_stage_seconds_bucket{{stage="{n}",le="1"}} 1\n' for n in range(1_000))
    assert len(read_exposition(many).stages) < 100
