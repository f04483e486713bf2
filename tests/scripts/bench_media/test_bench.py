"""The bench itself, with one call and short windows: real processes, real calls, no judgement of the figures."""

import sys

import pytest

from scripts.bench_media.machine import Cores
from scripts.bench_media.measure import Bench, Plan


@pytest.mark.slow
@pytest.mark.e2e
async def test_a_call_to_each_of_our_servers_is_measured() -> None:
    said: list[str] = []
    bench = Bench({"stock": sys.executable, "ours": sys.executable}, Cores(None, None), said.append)
    plan = Plan(calls=(1,), rounds=1, tries=1, window_s=1.0, warm_up_s=0.5, talk_s=0.5, climb=(1,))
    measured = await bench.run(plan)
    assert [(w.server, w.load) for w in measured.windows] == [
        ("stock", "full"),
        ("stock", "half"),
        ("ours", "full"),
        ("ours", "half"),
    ]
    assert all(window.share_per_call > 0 and window.frames.frames > 0 for window in measured.windows)
    assert {server: len(climb) for server, climb in measured.climbs.items()} == {"stock": 1, "ours": 1}
    assert len(said) == 6
