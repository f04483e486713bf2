"""The end of a voice that was cut off."""

from __future__ import annotations

import numpy as np
import pytest

from streaming.audio.fade import FADE_MS, falling_silent


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 48_000])
@pytest.mark.parametrize("last", [-32_768, -8_000, 64, 32_767])
def test_it_goes_on_where_the_voice_was_and_falls_without_a_step(last: int, rate_hz: int) -> None:
    frame = falling_silent(last, rate_hz // 50, rate_hz)
    fade = rate_hz * FADE_MS // 1000
    assert frame.dtype == np.int16
    assert len(frame) == rate_hz // 50
    assert frame[0] == last
    assert np.abs(np.diff(frame.astype(int))).max() <= abs(last) * 2 / fade + 1
    assert not frame[fade:].any()


def test_a_quiet_end_is_left_and_a_short_frame_is_not_overrun() -> None:
    assert not falling_silent(63, 160, 8_000).any()
    assert len(falling_silent(8_000, 10, 8_000)) == 10
