"""The playout model in virtual time. Slots of 20 ms at 1 kHz, so 20 samples a slot."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from loadtest.playout import MAX_QUEUED_S, Cut, Playout

Pcm16 = npt.NDArray[np.int16]
RATE_HZ = 1_000


def tone(ms: int, level: int = 1_000) -> Pcm16:
    return np.full(ms, level, dtype=np.int16)


def playout() -> Playout:
    return Playout(10.0, rate_hz=RATE_HZ)


def voiced_slots(subject: Playout) -> list[int]:
    return [index for index in range(subject.slots_played) if subject.slot(index).any()]


def test_first_audio_waits_for_the_prebuffer() -> None:
    subject = playout()
    subject.push("a", tone(100), 10.1)
    subject.finish("a", 10.1)
    subject.advance(11.0)
    assert voiced_slots(subject) == [8, 9, 10, 11, 12]  # 10.1 s is slot 5; 60 ms later is slot 8
    assert subject.late_slots == []


def test_audio_is_never_heard_in_a_slot_that_began_before_it_came() -> None:
    subject = playout()
    subject.push("a", tone(20), 10.101)
    subject.advance(11.0)
    assert voiced_slots(subject) == [9]


def test_steady_frames_play_without_a_late_slot_and_all_of_it() -> None:
    subject = playout()
    for frame in range(50):
        subject.push("a", tone(20, frame + 1), 10.0 + frame * 0.02)
    subject.finish("a", 11.0)
    subject.advance(12.0)
    assert subject.late_slots == []
    assert [int(subject.slot(index)[0]) for index in range(3, 53)] == list(range(1, 51))


def test_a_hole_counts_every_slot_until_sound_is_back() -> None:
    subject = playout()
    subject.push("a", tone(40), 10.0)  # heard in slots 3 and 4
    subject.push("a", tone(40), 10.2)  # slot 10, heard from slot 13 on
    subject.finish("a", 10.2)
    subject.advance(11.0)
    assert voiced_slots(subject) == [3, 4, 13, 14]
    assert subject.late_slots == list(range(5, 13))


def test_running_dry_at_the_end_is_not_late_even_if_the_end_is_told_late() -> None:
    subject = playout()
    subject.push("a", tone(40), 10.0)
    subject.finish("a", 10.5)
    subject.push("b", tone(40), 10.6)
    subject.advance(11.0)
    assert subject.late_slots == []


def test_silence_between_two_items_is_not_late_without_a_told_end() -> None:
    subject = playout()
    subject.push("a", tone(40), 10.0)
    subject.push("b", tone(40), 10.5)
    subject.finish("b", 10.5)
    subject.advance(11.0)
    assert subject.late_slots == []


def test_a_short_last_frame_is_padded_and_not_late() -> None:
    subject = playout()
    subject.push("a", tone(30), 10.0)
    subject.finish("a", 10.0)
    subject.advance(11.0)
    assert int(np.count_nonzero(subject.heard())) == 30
    assert subject.late_slots == []


def test_flush_silences_from_the_next_slot_and_says_what_was_heard() -> None:
    subject = playout()
    subject.push("a", tone(1_000), 10.0)
    cuts = subject.flush(10.15)  # slots 3 to 7 were heard
    subject.advance(11.0)
    assert cuts == (Cut("a", 100),)
    assert voiced_slots(subject) == [3, 4, 5, 6, 7]
    assert not subject.busy
    assert subject.late_slots == []


def test_flush_names_queued_items_and_an_open_one_and_no_others() -> None:
    subject = playout()
    subject.push("whole", tone(20), 10.0)
    subject.finish("whole", 10.0)
    subject.push("half", tone(40), 10.5)
    subject.finish("half", 10.5)
    subject.push("unheard", tone(40), 10.5)
    assert subject.flush(10.58) == (Cut("half", 20), Cut("unheard", 0))
    subject.push("open", tone(20), 11.0)
    assert subject.flush(11.5) == (Cut("open", 20),)
    assert subject.flush(12.0) == ()


def test_audio_after_a_flush_is_buffered_anew() -> None:
    subject = playout()
    subject.push("a", tone(1_000), 10.0)
    subject.flush(10.1)
    subject.push("b", tone(20), 10.2)
    subject.advance(11.0)
    assert voiced_slots(subject) == [3, 4, 13]


def test_the_queue_is_bounded_and_what_is_dropped_is_counted() -> None:
    subject = playout()
    subject.push("a", np.ones(MAX_QUEUED_S * RATE_HZ, dtype=np.int16), 10.0)
    subject.push("a", tone(7), 10.0)
    assert subject.dropped_samples == 7


def test_finish_of_another_item_changes_nothing() -> None:
    subject = playout()
    subject.push("a", tone(20), 10.0)
    subject.finish("b", 10.1)
    subject.push("a", tone(20), 10.2)
    assert subject.late_slots == [4, 5, 6, 7, 8, 9]


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 90), st.booleans()), max_size=30))
def test_everything_pushed_is_heard_once_in_order_or_cut(steps: list[tuple[int, int, bool]]) -> None:
    subject = playout()
    now_s, pushed = 10.0, 0
    for level, (wait_ms, length_ms, flush) in enumerate(steps, start=1):
        now_s += wait_ms / 1000
        if flush:
            subject.flush(now_s)
        pushed += length_ms
        subject.push(f"item{level}", tone(length_ms, level), now_s)
    subject.advance(now_s + 10.0)
    heard = subject.heard()
    sound = heard[heard != 0]
    assert np.all(np.diff(sound) >= 0)
    assert len(sound) <= pushed
    if not any(flush for _, _, flush in steps):
        assert len(sound) == pushed
    assert sorted(set(subject.late_slots)) == subject.late_slots
