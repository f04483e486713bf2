from __future__ import annotations

import numpy as np

from loadtest.stream_playout import StreamPlayout

SLOT = 160


class Buffer:
    """A playout whose grid begins at 0 s; times in ms, audio in slots of one loud value."""

    def __init__(self, room_ms: int = 10_000) -> None:
        self.playout = StreamPlayout(0.0, room_ms=room_ms)

    def push(self, at_ms: float, *values: int) -> None:
        self.playout.push(np.repeat(np.array(values, dtype=np.int16), SLOT), at_ms / 1000)

    def heard(self, until_ms: float) -> list[int]:
        self.playout.advance(until_ms / 1000)
        return [int(slot[0]) for slot in self.playout.heard().reshape(-1, SLOT)]

    def marks(self, at_ms: float) -> list[str]:
        self.playout.advance(at_ms / 1000)
        return self.playout.take_reached()


def test_audio_plays_in_order_from_the_first_slot_40_ms_after_it_came() -> None:
    buffer = Buffer()
    buffer.push(5, 1000, 2000)
    buffer.push(30, 3000)
    assert buffer.heard(140) == [0, 0, 0, 1000, 2000, 3000, 0]
    assert buffer.playout.report().received_ms == 60


def test_a_mark_is_reached_when_all_before_it_was_heard_and_not_sooner() -> None:
    buffer = Buffer()
    buffer.push(0, 1000, 2000)
    buffer.playout.mark("a", 0.0)
    buffer.push(0, 3000)
    buffer.playout.mark("b", 0.0)
    # played in the slots at 40, 60 and 80 ms: "a" is heard at 80 ms, "b" at 100 ms
    assert [buffer.marks(at) for at in (79, 81, 99, 101, 120)] == [[], ["a"], [], ["b"], []]
    assert buffer.playout.report().marks_returned == 2


def test_a_mark_without_audio_before_it_is_reached_at_once() -> None:
    buffer = Buffer()
    buffer.playout.mark("now", 0.01)
    assert buffer.marks(10) == ["now"]
    buffer.push(20, 1000)
    buffer.playout.clear(0.03)
    buffer.playout.mark("again", 0.03)
    assert buffer.marks(30) == ["again"]


def test_a_mark_inside_a_slot_waits_for_the_slots_end() -> None:
    buffer = Buffer()
    buffer.playout.push(np.full(SLOT // 2, 1000, dtype=np.int16), 0.0)
    buffer.playout.mark("half", 0.0)
    buffer.playout.push(np.full(SLOT, 2000, dtype=np.int16), 0.0)
    assert [buffer.marks(59), buffer.marks(61)] == [[], ["half"]]
    assert buffer.heard(90)[2:] == [1000, 2000, 0]


def test_a_mark_that_comes_while_the_last_slot_sounds_waits_for_its_end() -> None:
    buffer = Buffer()
    buffer.push(0, 1000)
    buffer.playout.mark("last", 0.045)
    assert [buffer.marks(59), buffer.marks(61)] == [[], ["last"]]


def test_clear_drops_what_is_queued_and_returns_every_mark() -> None:
    buffer = Buffer()
    buffer.push(0, *[1000] * 10)
    buffer.playout.mark("a", 0.0)
    buffer.push(0, *[1000] * 10)
    buffer.playout.mark("b", 0.0)
    buffer.playout.clear(0.101)
    assert buffer.marks(101) == ["a", "b"]
    assert buffer.heard(200) == [0, 0, 1000, 1000, 1000, 1000, 0, 0, 0, 0]
    report = buffer.playout.report()
    assert (report.clears, report.cleared_ms, report.most_queued_ms) == (1, 320, 400)
    assert not buffer.playout.busy
    assert buffer.playout.late_slots == []


def test_a_voice_that_breaks_off_and_comes_back_was_late() -> None:
    buffer = Buffer()
    buffer.push(0, 1000, 1000)
    buffer.push(150, 1000)
    assert buffer.heard(260) == [0, 0, 1000, 1000, 0, 0, 0, 0, 0, 0, 1000, 0, 0]
    assert buffer.playout.late_slots == [4, 5, 6, 7, 8, 9]


def test_speech_that_ends_in_silence_or_stays_away_is_over() -> None:
    ended, left = Buffer(), Buffer()
    ended.push(0, 1000, 0)
    ended.push(150, 1000)
    left.push(0, 1000, 1000)
    left.push(1_500, 1000)
    assert ended.heard(300)[10] == 1000
    assert left.heard(1_700)[77] == 1000
    assert ended.playout.late_slots == left.playout.late_slots == []


def test_queued_speech_keeps_it_busy_and_queued_silence_does_not() -> None:
    buffer = Buffer()
    busy = []
    buffer.push(0, 0, 0, 0, 0)
    busy.append(buffer.playout.busy)
    buffer.push(10, 1000, 1000)
    busy.append(buffer.playout.busy)
    buffer.push(20, 0, 0)
    buffer.heard(139)
    busy.append(buffer.playout.busy)
    buffer.heard(141)
    busy.append(buffer.playout.busy)
    buffer.push(165, 1000)
    buffer.playout.clear(0.17)
    busy.append(buffer.playout.busy)
    assert busy == [False, True, True, False, False]


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    buffer = Buffer(room_ms=100)
    buffer.push(0, *[1000] * 8)
    buffer.push(0, 1000)
    assert buffer.playout.report().dropped_ms == 80
    assert sum(value > 0 for value in buffer.heard(400)) == 5


def test_silence_before_anything_came() -> None:
    assert len(StreamPlayout(0.0).heard()) == 0
    assert Buffer().heard(40) == [0, 0]
