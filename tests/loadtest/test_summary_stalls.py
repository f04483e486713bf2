"""A run whose callers stood still for a while, too short for the p99 of their lateness."""

from __future__ import annotations

from loadtest.readings import GeneratorReport
from loadtest.run_report import Verdict
from tests.loadtest.recordings import outcome
from tests.loadtest.test_summary import good, report


def test_a_stall_of_the_callers_is_not_the_servers() -> None:
    quiet = (GeneratorReport(process=0, p99_ms=1.0, worst_ms=3_000.0),)
    stalled = [outcome(number, faults=("lost_code",), caller_lag_ms=3_000.0) for number in range(20, 25)]
    run = report([*good(20), *stalled], generators=quiet)
    assert run.verdict is Verdict.VOID
    assert run.void_reasons == ("the callers of 5 calls with faults stood still themselves, for up to 3000 ms",)
    assert report([*good(600), *stalled], generators=quiet).verdict is Verdict.GOOD, "too few to matter"
