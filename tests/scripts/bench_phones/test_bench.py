"""The whole of it, as small as it can be: a gateway, two callers on each wire, and what came back."""

from __future__ import annotations

import pytest

from scripts.bench_phones.__main__ import subject
from scripts.call_cost.bench import Plan, measure
from scripts.call_cost.machine import Cores

SMALL = Plan(calls=(2,), rounds=1, ramp_s=0.0, window_s=8.0)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("wire", ["sip", "twilio"])
async def test_two_callers_hear_themselves(wire: str) -> None:
    said: list[str] = []
    measured = await measure([subject(wire, "echo", "off")], SMALL, Cores(None, ()), said.append, climbing=())
    (window,) = measured.windows
    assert (window.calls, window.report.calls.completed) == (2, 2)
    assert window.cpu_share > 0
    assert window.frames > 200
    assert len(said) == 1
