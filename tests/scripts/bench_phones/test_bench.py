"""The whole of it, as small as it can be: a gateway, two callers on each wire, and what came back."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.bench_media.machine import Cores
from scripts.bench_phones.measure import Bench, Case, Plan

SMALL = Plan(calls=(2,), rounds=1, tries=1, window_s=1.0, warm_up_s=1.0, climb=(1,))


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("subject", ["echo", "call"])
@pytest.mark.parametrize("wire", ["sip", "twilio"])
async def test_two_calls(wire: str, subject: str) -> None:
    case = Case(wire, subject, vad=False)
    said: list[str] = []
    measured = await Bench((case,), Cores(None, None), Path(), said.append).run(SMALL)
    (window,) = measured.windows
    assert window.calls == 2
    assert window.cpu_share > 0
    assert window.said_share > 0.5
    assert window.heard_share > 0.5
    assert window.judged_share > 0.5
    assert window.sent > 50
    assert len(measured.climbs[case]) == 1
    assert len(said) == 2
