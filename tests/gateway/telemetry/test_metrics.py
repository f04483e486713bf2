from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engines.api import EngineHealth, HostHealth, LaneHealth
from gateway.admission import Measure
from gateway.records.call_record import CallRecord
from gateway.switchboard import ENGINES
from gateway.telemetry.metrics import ALARMING, MAX_LABELS, Metrics, measure_loop_lag
from streaming.turn_times import TurnTimes
from tests.virtual_time import VirtualLoop, virtual


def read(metrics: Metrics) -> dict[tuple[str, str], float]:
    """(name, its label values joined) to value."""
    families = text_string_to_metric_families(b"".join(metrics.exposition()).decode())
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_calls_are_counted_by_how_they_ended_and_why_they_were_refused() -> None:
    metrics = Metrics()
    live = 3
    ready = True
    metrics.watch(live=lambda: live, limit=8, ready=lambda: ready)
    record = CallRecord(id="a", transport="websocket", agent=None, started_at=datetime.now(UTC))
    metrics.ended(record)
    record.ended("hung_up", 90_000.0)
    metrics.ended(record)
    metrics.refused("busy")
    seen = read(metrics)
    assert seen["offhook_calls_live", ""] == 3
    assert seen["offhook_calls_limit", ""] == 8
    assert seen["offhook_ready", ""] == 1
    assert seen["offhook_calls_total", "hung_up,websocket"] == 1
    assert seen["offhook_calls_total", "unknown,websocket"] == 1
    assert seen["offhook_call_seconds_sum", ""] == 90
    assert seen["offhook_calls_refused_total", "busy"] == 1
    live, ready = 0, False
    assert read(metrics)["offhook_calls_live", ""] == 0
    assert read(metrics)["offhook_ready", ""] == 0


def test_no_caller_can_grow_the_registry() -> None:
    metrics = Metrics()
    for number in range(MAX_LABELS + 10):
        metrics.count(f"name_{number}")
    metrics.count("name_0")
    metrics.count("x" * 65)
    seen = read(metrics)
    assert seen["offhook_events_total", "name_0"] == 2
    assert seen["offhook_events_total", "other"] == 11 + len(ALARMING)
    assert sum(name == "offhook_events_total" for name, _ in seen) == MAX_LABELS + 1


def test_each_stage_of_a_turn_is_observed_once() -> None:
    metrics = Metrics()
    early = TurnTimes("resp_1", 1, False, decision_ms=300.0, prompt_tokens=10, prefilled_tokens=4)
    late = TurnTimes(
        "resp_1",
        1,
        False,
        decision_ms=300.0,
        first_sent_ms=900.0,
        prompt_tokens=10,
        prefilled_tokens=4,
        completion_tokens=5,
    )
    metrics.turn(early)
    metrics.turn(late, early)
    seen = read(metrics)
    assert seen["offhook_turn_stage_seconds_count", "decision"] == 1
    assert seen["offhook_turn_stage_seconds_sum", "decision"] == 0.3
    assert seen["offhook_turn_stage_seconds_count", "first_sent"] == 1
    assert ("offhook_turn_stage_seconds_count", "final") not in seen
    assert seen["offhook_tokens_total", "prompt"] == 10
    assert seen["offhook_tokens_total", "prefilled"] == 4
    assert seen["offhook_tokens_total", "completion"] == 5


def test_buckets_are_those_of_the_stage() -> None:
    metrics = Metrics()
    metrics.turn(TurnTimes("resp_1", 1, False, decision_ms=300.0, first_sent_ms=3_400.0, cut_to_silence_ms=60.0))
    bounds: dict[str, list[str]] = {}
    for family in text_string_to_metric_families(b"".join(metrics.exposition()).decode()):
        for sample in family.samples:
            if sample.name == "offhook_turn_stage_seconds_bucket":
                bounds.setdefault(sample.labels["stage"], []).append(sample.labels["le"])
    assert bounds["cut_to_silence"][0] == "0.02"
    assert {"0.5", "2.0", "3.5"} < set(bounds["first_sent"])
    assert "3.5" not in bounds["decision"]
    assert all(of_stage[-1] == "+Inf" for of_stage in bounds.values())


def test_what_runs_here_is_told() -> None:
    metrics = Metrics()
    backends = {"vad": "energy", "stt": "scripted-stt", "llm": "scripted-llm", "tts": "scripted-tts", "turn": "none"}
    metrics.tell(version="1.0", preset="null", engines=backends, fake=True)
    labels = {"version": "1.0", "preset": "null", "fake": "true", **backends}
    del labels["turn"]
    assert metrics._registry.get_sample_value("offhook_info", labels) == 1


def test_frames_are_late_once_the_far_end_has_played_what_it_was_sent_ahead() -> None:
    metrics = Metrics()
    sender = metrics.sender("websocket")
    sender.sent(0.0004, 3)
    sender.sent(0.021, 2)
    sender.sent(0.02)
    metrics.sender("twilio").sent(0.299, 3, 0.3)
    metrics.sender("twilio").sent(0.301, 1, 0.3)
    seen = read(metrics)
    assert seen["offhook_send_late_seconds_count", "websocket"] == 6
    assert seen["offhook_send_late_seconds_bucket", "0.0005,websocket"] == 3
    assert seen["offhook_send_late_seconds_bucket", "0.02,websocket"] == 4
    assert seen["offhook_send_late_seconds_bucket", "+Inf,websocket"] == 6
    assert seen["offhook_frames_late_total", "websocket"] == 2
    assert seen["offhook_frames_late_total", "twilio"] == 1
    assert metrics.sender("websocket") is sender
    assert metrics.frames_sent() == (10, 3)


def test_calls_that_are_asked_for_are_counted() -> None:
    metrics = Metrics()
    metrics.admitted()
    metrics.answered("sip", 0.25)
    metrics.refused("overloaded")
    metrics.overloaded("loop_lag")
    seen = read(metrics)
    assert seen["offhook_calls_admitted_total", ""] == 1
    assert seen["offhook_call_setup_seconds_sum", "sip"] == 0.25
    assert seen["offhook_calls_overloaded_total", "loop_lag"] == 1


def test_every_cause_of_overload_is_there_from_the_start() -> None:
    """Of a counter that begins at 1 Prometheus sees no increase."""
    seen = read(Metrics())
    began = {measure for name, measure in seen if name == "offhook_calls_overloaded_total"}
    assert began == {*Measure, ENGINES}


def test_the_process_is_read() -> None:
    seen = read(Metrics(started_s=12.0))
    assert seen["process_start_time_seconds", ""] == 12
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_threads"):
        assert seen[name, ""] > 0
    assert seen["process_max_fds", ""] >= seen["process_open_fds", ""]
    assert seen["offhook_tasks", ""] == 0


async def test_tasks_are_counted() -> None:
    metrics = Metrics()
    before = read(metrics)["offhook_tasks", ""]
    waiting = asyncio.create_task(asyncio.sleep(60))
    assert read(metrics)["offhook_tasks", ""] == before + 1
    waiting.cancel()


def test_lanes_are_told_of_wherever_they_run() -> None:
    metrics = Metrics()
    here, there = LaneHealth(2, 3, 2, 40.0, 12.5), LaneHealth(1, 0, 1, 0.0, 3.0)
    health = EngineHealth(True, hosts={"mlx": HostHealth(True, lanes={"mlx": there})}, lanes={"cpu": here})
    metrics.watch_engines(lambda: health)
    seen = read(metrics)
    assert seen["offhook_lane_busy_seconds_total", "gateway,cpu"] == 12.5
    assert seen["offhook_lane_queue_age_seconds", "gateway,cpu"] == 0.04
    assert seen["offhook_lane_waiting_jobs", "gateway,cpu"] == 3
    assert seen["offhook_lane_running_jobs", "mlx,mlx"] == 1
    assert seen["offhook_lane_slots", "mlx,mlx"] == 1


def test_the_worst_lag_is_kept_for_a_while_whoever_reads_it() -> None:
    now_s = 0.0
    metrics = Metrics(now_s=lambda: now_s)

    def worst() -> float:
        return read(metrics)["offhook_loop_lag_worst_seconds", ""]

    for lag_s in (0.01, 0.3, 0.02):
        metrics.lagged(lag_s)
    assert worst() == worst() == 0.3
    now_s = 16.0
    metrics.lagged(0.05)
    assert worst() == 0.3
    now_s = 32.0
    assert worst() == 0.05
    now_s = 48.0
    assert worst() == 0
    metrics.lagged(0.2)
    now_s = 100.0
    assert worst() == 0
    assert read(metrics)["offhook_loop_lag_seconds_count", ""] == 5


def test_two_applications_in_one_process_do_not_collide() -> None:
    first, second = Metrics(), Metrics()
    first.count("a")
    assert ("offhook_events_total", "a") not in read(second)


@virtual
async def test_a_busy_loop_shows_as_lag() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    measured: list[float] = []
    task = asyncio.create_task(measure_loop_lag(measured.append, every_s=1.0))
    await asyncio.sleep(1.5)
    loop._jumping.now_s += 2.0  # in which the loop was busy
    await asyncio.sleep(2.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert measured == pytest.approx([0.0, 1.5, 0.5, 0.0, 0.0]), "each second that was missed, too"
