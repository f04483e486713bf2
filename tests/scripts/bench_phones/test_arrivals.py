from __future__ import annotations

from scripts.bench_phones.arrivals import Playout


def of(playout: Playout, *at_ms: float) -> tuple[int, int, float]:
    for at in at_ms:
        playout.came(at)
    found = playout.read()
    return found.frames, found.late, found.worst_ms


def test_frames_in_time_are_not_late() -> None:
    assert of(Playout(lead=False), 0, 20, 40, 60) == (4, 0, 0)
    assert of(Playout(lead=False), 0, 40, 60) == (3, 0, 20)


def test_the_earliest_frame_sets_the_schedule() -> None:
    assert of(Playout(lead=False), 15, 20, 61) == (3, 1, 21)


def test_a_late_frame_begins_the_schedule_anew() -> None:
    assert of(Playout(lead=False), 0, 20, 80, 100, 120) == (5, 1, 40)


def test_what_was_sent_ahead_hides_what_comes_later() -> None:
    playout = Playout(lead=True)
    playout.came(0, frames=15)
    assert of(playout, 300, 330, 360) == (18, 0, 20)
    assert of(playout, 385) == (1, 1, 25)


def test_reading_begins_a_new_window_but_no_new_schedule() -> None:
    playout = Playout(lead=False)
    assert of(playout, 0, 20) == (2, 0, 0)
    assert of(playout, 70) == (1, 1, 30)
    assert of(playout) == (0, 0, 0)
