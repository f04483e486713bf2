from __future__ import annotations

from scripts.bench_drained import Drained, grown, read

TOLD = """\
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 1.048576e+08
# TYPE process_open_fds gauge
process_open_fds 17.0
# TYPE process_threads gauge
process_threads 3.0
# TYPE offhook_tasks gauge
offhook_tasks 9.0
# TYPE offhook_calls counter
offhook_calls_total{cause="caller_hung_up",transport="websocket"} 40.0
offhook_calls_total{cause="connection_lost",transport="websocket"} 2.0
"""


def test_a_drained_gateway_is_read() -> None:
    assert read(TOLD) == Drained(rss_mb=100.0, fds=17, threads=3, tasks=9, calls=42)


def test_the_first_load_may_leave_something_and_later_ones_must_not() -> None:
    first = Drained(rss_mb=110.0, fds=17, threads=3, tasks=9, calls=40)
    assert grown([first]) == []
    assert grown([first, Drained(200.0, 99, 9, 99, 80), Drained(111.9, 16, 3, 9, 120)]) == []
    assert grown([first, Drained(112.5, 18, 3, 11, 80)]) == ["memory: 2.5 MB more", "fds: 1 more", "tasks: 2 more"]
