from __future__ import annotations

import json
from pathlib import Path

from scripts.bench_phones.__main__ import verdicts
from scripts.call_cost.bench import Climbed, Measured
from tests.scripts.call_cost.rig import window


def climbed(asked: str, held: int, *levels: tuple[int, int]) -> Climbed:
    """``levels``: calls, and late frames of some thousand."""
    windows = tuple(window("sip", asked, calls, late=late) for calls, late in levels)
    return Climbed("sip", asked, held, "why", windows)


def test_a_climb_says_what_the_first_level_was_like_that_was_not_held() -> None:
    line = climbed("echo, VAD on", 60, (60, 0), (120, 100), (90, 10)).line()
    assert line == "sip echo, VAD on: 60 calls held (why: 0.99% of the frames late, 100.0% good calls, 25% of the core)"
    assert climbed("echo, VAD on", 60, (60, 0)).line() == "sip echo, VAD on: 60 calls held (why)"


def test_an_aim_that_the_callers_could_not_reach_is_not_missed() -> None:
    climbs = (
        climbed("echo, VAD on", 120, (120, 0), (130, 9)),
        climbed("echo, VAD on", 60, (60, 0), (120, 9)),
        climbed("echo, VAD off", 120, (120, 0)),
        climbed("call, VAD on", 60, (60, 0)),
    )
    assert verdicts(Measured((), climbs)).splitlines() == [
        "- sip echo, VAD on: aim 120: met",
        "- sip echo, VAD on: aim 120: MISSED",
        "- sip echo, VAD off: aim 250: not shown",
    ]


def test_everything_that_was_read_is_saved(tmp_path: Path) -> None:
    Measured((window(calls=7),), (climbed("call", 60, (60, 0)),)).save(tmp_path / "all.json")
    saved = json.loads((tmp_path / "all.json").read_bytes())
    assert saved["windows"][0]["calls"] == 7
    assert saved["windows"][0]["report"]["media"]["due"] == 1_000
    assert (saved["climbs"][0]["held"], saved["climbs"][0]["windows"][0]["calls"]) == (60, 60)
