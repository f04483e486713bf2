"""The report in a terminal."""

from __future__ import annotations

from msgspec.structs import replace

from loadtest.readings import ServerReport
from loadtest.run_report import CrossTalk, Knee, Lateness, Verdict
from loadtest.run_text import to_text
from tests.loadtest.sample_reports import smoke


def test_who_was_late_itself_is_told_what_to_do() -> None:
    late = to_text(replace(smoke(), verdict=Verdict.VOID, lateness=Lateness(generator_p99_ms=6.0)))
    assert late.startswith("smoke: VOID")
    assert "--pin" in late
    assert "--pin" not in to_text(replace(smoke(), lateness=Lateness(generator_p99_ms=4.0)))


def test_what_was_stopped_by_hand_says_so_though_it_is_void() -> None:
    void = replace(smoke(), verdict=Verdict.VOID, interrupted=True)
    assert "  and it was stopped by hand, before its time\n" in to_text(void)
    assert "by hand" not in to_text(replace(void, interrupted=False))


def test_code_words_are_of_the_answers_that_had_to_hold_them() -> None:
    cut = replace(smoke(), cross_talk=CrossTalk(calls_checked=1, turns_checked=9, own=7, lost=1))
    assert "code words     7 of 8 came back" in to_text(cut)


def test_a_climb_says_whose_numbers_follow() -> None:
    found = to_text(replace(smoke(), knee=Knee(held=12, stopped_by="16 calls were not held")))
    assert "capacity       12 calls (16 calls were not held); the numbers below are theirs" in found
    none = to_text(replace(smoke(), knee=Knee(held=0, stopped_by="1 calls were not held")))
    assert "capacity       none found (1 calls were not held); the numbers below are of the last level" in none


def test_what_a_call_costs_says_whether_engine_hosts_are_in_it() -> None:
    alone = ServerReport(cpu_cores_per_call=0.01, rss_bytes_per_call=2048.0)
    assert "server         1.00% of a core a call, 2 KiB a call" in to_text(replace(smoke(), server=alone))
    told = to_text(replace(smoke(), server=replace(alone, hosts_cpu_cores_per_call=0.005)))
    assert "1.00% of a core a call, 2 KiB a call (with its engine hosts)" in told


def test_a_server_that_told_nothing_has_no_line() -> None:
    told = replace(smoke(), server=ServerReport(), lateness=Lateness())
    assert "\nserver" not in to_text(told)
