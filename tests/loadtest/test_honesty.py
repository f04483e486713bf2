"""The instrument is honest: servers that are late, mix calls up, lose sound or talk on are caught by a whole run.

Real sockets, the gateway with scripted engines behind a proxy that spoils one thing, and ``offhook loadtest`` in
processes of its own. Beside each such run goes one through a proxy that spoils nothing, with the same seed: that one
has to be good, and the two are compared turn by turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from statistics import median

import pytest

from gateway.settings import Settings
from loadtest.outcome import TurnOutcome
from tests.e2e.ports import free_port
from tests.loadtest.dishonest_gateway import ComesBack, GoesOn, Hiccups, Late, Lossy, Swapped, Trick, dishonest
from tests.loadtest.honesty_rig import DIALECTS, INTERRUPT, SETTINGS, TALK, Judged, address, judge, shown_by
from tests.serving import served

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(120)]


async def runs(folder: Path, dialect: str, scenario: str, *tricks: Trick) -> list[Judged]:
    """At an honest proxy, which comes first, and at one with each trick; all at the same time."""
    async with served(settings=SETTINGS) as here, contextlib.AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(dishonest(address(here, dialect), t)) for t in (Trick(), *tricks)]
        judged = await asyncio.gather(*(judge(folder / str(n), scenario, url) for n, url in enumerate(urls)))
    with shown_by(*judged):
        assert judged[0].is_good, judged[0].said
    return judged


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_server_that_is_late_loses_sound_or_mixes_calls_up_is_caught(dialect: str, tmp_path: Path) -> None:
    hiccups, lossy = Hiccups(every=25, for_s=0.6), Lossy(0.01, seed=3)
    honest, late, halting, torn, swapped = await runs(tmp_path, dialect, TALK, Late(0.03), hiccups, lossy, Swapped())
    with shown_by(honest, late, halting, torn, swapped):
        assert honest.report.cross_talk.turns_checked >= 8
        check_30_ms_later(honest, late)
        check_hiccups(honest, halting, hiccups)
        check_loss(torn, lossy)
        check_swap(swapped)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_agent_that_talks_on_for_400_ms_after_a_barge_in_is_caught(dialect: str, tmp_path: Path) -> None:
    on, again = GoesOn(0.4), ComesBack(after_s=0.3, for_s=0.4)
    honest, goes_on, comes_back = await runs(tmp_path, dialect, INTERRUPT, on, again)
    with shown_by(honest, goes_on, comes_back):
        assert on.times >= 3
        assert goes_on.is_not_good
        assert "slow_stop" in goes_on.faults
        before, after = honest.report.latency_ms.stop, goes_on.report.latency_ms.stop
        for rank in ("p50", "p90", "p95"):
            assert 300 < getattr(after, rank) - getattr(before, rank) < 500, rank
        assert again.times >= 3
        assert comes_back.is_not_good
        assert "talked_on" in comes_back.faults
        assert "slow_stop" not in comes_back.faults
        assert honest.report.latency_ms.talked_on.max == 0
        assert comes_back.report.latency_ms.talked_on.p50 == pytest.approx(400, abs=60)


def pairs(honest: Judged, spoilt: Judged) -> list[tuple[TurnOutcome, TurnOutcome]]:
    """The same turns of the same callers."""
    before = {call.number: call.turns for call in honest.outcomes}
    return [pair for call in spoilt.outcomes for pair in zip(before[call.number], call.turns, strict=False)]


def check_30_ms_later(honest: Judged, late: Judged) -> None:
    """A caller hears on a grid of 20 ms: 30 ms are one slot or two."""
    shifts = [
        after.voice_to_voice_ms - before.voice_to_voice_ms
        for before, after in pairs(honest, late)
        if before.voice_to_voice_ms is not None and after.voice_to_voice_ms is not None
    ]
    assert len(shifts) >= 8
    assert 10 < median(shifts) < 50
    assert late.report.media.late == 0, "what is late by the same always is no hole in speech"


def check_hiccups(honest: Judged, halting: Judged, trick: Hiccups) -> None:
    assert halting.is_not_good
    assert "late_frames" in halting.faults
    assert any("of frames were late" in reason for reason in halting.report.reasons)
    media = halting.report.media
    assert 0 < media.underruns <= trick.times
    assert media.late > 5 * media.underruns, "a hiccup is longer than what callers have ahead"
    assert media.gaps > 0
    assert media.longest_gap_ms > max(100, honest.report.media.longest_gap_ms)
    assert halting.report.mos.min is not None
    assert honest.report.mos.min is not None
    assert halting.report.mos.min < honest.report.mos.min


def check_loss(torn: Judged, trick: Lossy) -> None:
    """By words that are not whole: a stream has no numbers that would tell. What is missing is missing in the sum."""
    assert torn.is_not_good
    assert "damaged" in torn.faults
    assert not {"foreign_code", "no_answer", "dropped"} & torn.faults
    assert 0 < torn.report.cross_talk.damaged <= trick.dropped
    heard = torn.report.media.due - torn.report.media.late
    assert 0.002 < 1 - heard / trick.seen < 0.03


def check_swap(swapped: Judged) -> None:
    assert swapped.is_not_good
    assert swapped.report.faults["foreign_code"] == swapped.report.calls.offered == 4
    assert swapped.report.cross_talk.calls == (0, 1, 2, 3)
    assert any("code words of other callers" in reason for reason in swapped.report.reasons)
    own = {call.turns[0].code: call for call in swapped.outcomes}
    for word, call in own.items():
        (foreign,) = call.foreign_codes
        assert own[foreign].foreign_codes == (word,), "each heard the one that heard it"


async def test_packets_that_are_lost_on_the_way_are_counted(tmp_path: Path) -> None:
    """RTP has numbers: what does not come is known to the frame."""
    sip = {"enabled": True, "port": free_port()}
    settings = Settings.model_validate({**SETTINGS.model_dump(), "sip": sip})
    network = "network: {down: {loss: 0.01}}\n"
    async with served(settings=settings):
        url = f"sip:127.0.0.1:{sip['port']}"
        honest, lossy = await asyncio.gather(
            judge(tmp_path / "honest", TALK, url),
            judge(tmp_path / "lossy", TALK.replace("max_late_share: 0.02", "max_late_share: 0.001") + network, url),
        )
    with shown_by(honest, lossy):
        assert honest.is_good, honest.said
        assert honest.report.media.lost < lossy.report.media.lost
        assert lossy.is_not_good
        assert "lost_frames" in lossy.faults
        assert 0.002 < lossy.report.media.lost / lossy.report.media.due < 0.03
