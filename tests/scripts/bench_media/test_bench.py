"""The bench itself, with one call and short windows: real processes, real calls, no judgement of the figures."""

import sys

import pytest

from scripts.bench_media.__main__ import ALWAYS, subject
from scripts.call_cost.bench import Plan, measure
from scripts.call_cost.machine import Cores

SMALL = Plan(calls=(1,), rounds=1, ramp_s=0.0, window_s=8.0)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["stock", "ours"])
async def test_a_call_to_each_of_our_servers_is_measured(kind: str) -> None:
    said: list[str] = []
    subjects = [subject(kind, sys.executable, ALWAYS)]
    measured = await measure(subjects, SMALL, Cores(None, ()), said.append, climbing=())
    (window,) = measured.windows
    assert (window.calls, window.report.calls.completed) == (1, 1)
    assert window.cpu_share > 0
    assert window.frames > 100
    assert len(said) == 1
