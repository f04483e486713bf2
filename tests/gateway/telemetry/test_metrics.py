from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from prometheus_client.parser import text_string_to_metric_families

from gateway.records.call_record import CallRecord
from gateway.telemetry.metrics import MAX_LABELS, Metrics, measure_loop_lag
from streaming.turn_times import TurnTimes
from tests.virtual_time import virtual


def read(metrics: Metrics) -> dict[tuple[str, str], float]:
    """(name, its label values joined) to value."""
    families = text_string_to_metric_families(metrics.exposition().decode())
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
    assert seen["offhook_calls_total", "hung_up"] == 1
    assert seen["offhook_calls_total", "unknown"] == 1
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
    assert seen["offhook_events_total", "other"] == 11
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


def test_the_worst_lag_is_told_once() -> None:
    metrics = Metrics()
    metrics.lagged(0.01)
    metrics.lagged(0.3)
    metrics.lagged(0.02)
    assert read(metrics)["offhook_loop_lag_seconds", ""] == 0.3
    assert read(metrics)["offhook_loop_lag_seconds", ""] == 0


def test_two_applications_in_one_process_do_not_collide() -> None:
    first, second = Metrics(), Metrics()
    first.count("a")
    assert ("offhook_events_total", "a") not in read(second)


@virtual
async def test_a_busy_loop_shows_as_lag() -> None:
    class Clock:
        late_s = 0.0

    loop = asyncio.get_running_loop()
    measured: list[float] = []
    real_time = loop.time
    loop.time = lambda: real_time() + Clock.late_s  # type: ignore[method-assign]
    task = asyncio.create_task(measure_loop_lag(measured.append, every_s=1.0))
    await asyncio.sleep(1.5)
    Clock.late_s = 2.0
    await asyncio.sleep(2.5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert measured[0] < 0.01
    assert 1.0 < max(measured) < 2.1
