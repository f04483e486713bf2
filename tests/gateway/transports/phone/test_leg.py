"""What the leg makes of the ends of replies."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from gateway.transports.phone.leg import PhoneLeg
from gateway.transports.phone.line import PlayoutOwner
from tests.gateway.transports.phone.fake_line import FakeLine
from tests.virtual_time import virtual

LOUD = np.full(160, 8_000, np.int16)


def leg_on(line: FakeLine) -> PhoneLeg:
    return PhoneLeg(line, control=lambda effect: None, notified=lambda notice: None)


@pytest.mark.parametrize("owner", list(PlayoutOwner))
@virtual
async def test_what_is_cut_off_fades_out_where_it_is_ours_and_what_goes_on_fades_in(owner: PlayoutOwner) -> None:
    line = FakeLine(owner)
    leg = leg_on(line)
    leg.play("r", "i", LOUD)
    leg.clear()
    leg.clear()
    leg.play("r", "i", LOUD)
    leg.play("r", "i", LOUD)
    frames = [pcm for _, pcm in line.sent]
    assert len(frames) == (4 if owner is PlayoutOwner.OURS else 3)
    together = np.concatenate(frames[-3:] if owner is PlayoutOwner.OURS else frames[-2:]).astype(int)
    assert np.abs(np.diff(together)).max() <= 201
    assert (LOUD == 8_000).all(), "the engine's audio is not ours to change"
    assert np.array_equal(frames[-1], LOUD)
    if owner is PlayoutOwner.OURS:
        assert frames[1][0] == 8_000
        assert not frames[1][40:].any()
    await asyncio.sleep(0.1)


@virtual
async def test_nothing_fades_out_of_silence_or_on_a_line_that_takes_nothing() -> None:
    line = FakeLine(PlayoutOwner.OURS)
    leg = leg_on(line)
    leg.clear()
    leg.play("r", "i", np.zeros(160, np.int16))
    leg.clear()
    leg.play("r", "i", LOUD)
    leg.held = True
    leg.clear()
    assert len(line.sent) == 2
    await asyncio.sleep(0.1)
