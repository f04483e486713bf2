import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streaming.pacing import Pacer, Pcm16, PlayoutClock

RATE = 8_000
FRAME = 160


def tone(samples: int, level: int = 8_000) -> Pcm16:
    return (np.sin(np.arange(samples) / 3) * level).astype(np.int16)


def drain(pacer: Pacer, start: float, until: float, step: float = 0.001) -> list[tuple[float, int]]:
    """Takes every frame as soon as it may go; returns (time, samples)."""
    taken, now = [], start
    while now < until:
        due = pacer.next_at(now)
        if due is None or due > until:
            break
        now = max(now, due)
        frame = pacer.take(now)
        assert frame is not None
        taken.append((now, len(frame)))
    return taken


def test_nothing_was_heard_before_anything_was_sent() -> None:
    assert PlayoutClock(RATE).heard_samples(5.0) == 0


def test_what_is_heard_runs_with_time_and_never_past_what_was_sent() -> None:
    clock = PlayoutClock(RATE)
    clock.sent(RATE, 10.0)
    assert clock.heard_samples(10.5) == RATE // 2
    assert clock.heard_samples(12.0) == RATE
    assert clock.dry_at(10.5) == 11.0


def test_after_running_dry_the_far_end_plays_on_when_audio_comes() -> None:
    clock = PlayoutClock(RATE)
    clock.sent(800, 10.0)
    clock.sent(1_600, 20.0)
    assert clock.heard_samples(20.05) == 1_200


def test_what_follows_another_reply_is_heard_after_it() -> None:
    clock = PlayoutClock(RATE, free_at=10.3)
    clock.sent(RATE, 10.0)
    assert clock.heard_samples(10.2) == 0
    assert clock.heard_samples(10.8) == RATE // 2
    assert clock.dry_at(10.0) == 11.3


def test_a_cleared_buffer_ends_where_it_was_heard() -> None:
    clock = PlayoutClock(RATE)
    clock.sent(RATE, 10.0)
    clock.stop(clock.heard_samples(10.25))
    assert clock.sent_samples == clock.heard_samples(99.0) == RATE // 4


def test_the_lead_goes_at_once_and_the_rest_in_real_time() -> None:
    pacer = Pacer(RATE, lead_ms=200)
    pacer.append(tone(RATE), last=True)
    taken = drain(pacer, 1.0, 9.0)
    assert sum(samples for _, samples in taken) == RATE
    at_once = [samples for at, samples in taken if at == 1.0]
    assert sum(at_once) == RATE // 5
    assert abs(taken[-1][0] - 1.8) < 0.001


def test_a_stall_is_followed_by_no_more_than_the_lead() -> None:
    pacer = Pacer(RATE, lead_ms=40)
    pacer.append(tone(4 * RATE), last=True)
    drain(pacer, 1.0, 2.0)
    burst = [at for at, _ in drain(pacer, 3.0, 3.0005)]
    assert len(burst) <= 2


def test_a_short_last_frame_goes_when_its_segment_is_whole() -> None:
    pacer = Pacer(RATE)
    pacer.append(tone(FRAME + 10), last=False)
    first = pacer.take(1.0)
    assert first is not None
    assert len(first) == FRAME
    assert pacer.next_at(1.0) is None
    assert pacer.take(1.0) is None
    pacer.append(tone(0), last=True)
    rest = pacer.take(1.0)
    assert rest is not None
    assert len(rest) == 10


def test_held_audio_waits_and_goes_on_from_a_dip_shortly_before() -> None:
    pacer = Pacer(RATE, lead_ms=300)
    quiet_at = RATE - 1_600
    audio = tone(2 * RATE)
    audio[quiet_at : quiet_at + 200] = 0
    pacer.append(audio, last=True)
    drain(pacer, 1.0, 2.0)
    pacer.hold(RATE)
    assert pacer.next_at(5.0) is None
    position = pacer.release()
    assert quiet_at <= position <= quiet_at + 200
    assert pacer.position_samples == position
    frame = pacer.take(5.0)
    assert frame is not None
    assert np.array_equal(frame, audio[position : position + FRAME])


def test_a_hold_at_what_was_forgotten_goes_on_at_the_oldest_that_is_kept() -> None:
    pacer = Pacer(RATE, lead_ms=40)
    for index in range(60):
        pacer.append(tone(800), last=index == 59)
    drain(pacer, 0.0, 5.0)
    pacer.hold(100)
    position = pacer.release()
    assert position > 100
    frame = pacer.take(9.0)
    assert frame is not None
    assert len(frame) == FRAME


def test_held_before_its_first_sound_it_begins_at_the_beginning() -> None:
    pacer = Pacer(RATE)
    pacer.hold(0)
    assert pacer.release() == 0


def test_audio_long_heard_is_forgotten() -> None:
    pacer = Pacer(RATE, lead_ms=40)
    for index in range(100):
        pacer.append(tone(1_600), last=index == 99)
    drain(pacer, 0.0, 100.0)
    assert pacer.pending_samples == 0
    assert sum(len(block) for _, block in pacer._blocks) <= 2 * RATE


def test_an_hour_with_stalls_neither_drifts_nor_bursts() -> None:
    """CASES.md: a one-hour paced run, its loop blocked now and then for less than the lead."""
    hour_s, frame_s, lead_s = 3_600, 0.1, 0.3
    pacer = Pacer(RATE, frame_ms=100, lead_ms=300)
    now, sent, stalls = 1_000.0, 0, 0
    second = tone(RATE)
    for _ in range(2):
        pacer.append(second, last=False)
    while sent < hour_s * RATE:
        if pacer.pending_samples < RATE:
            pacer.append(second, last=False)
        due = pacer.next_at(now)
        assert due is not None
        now = max(now, due)
        stalls += 1
        if stalls % 500 == 0:
            now += 0.06 if stalls % 1_000 else 0.15
        frame = pacer.take(now)
        assert frame is not None
        sent += len(frame)
        ahead_s = sent / RATE - (now - 1_000.0)
        assert ahead_s <= lead_s + 1e-6
    assert abs(now - 1_000.0 - hour_s) <= lead_s + frame_s


@given(
    st.lists(st.integers(0, 2_000), min_size=1, max_size=20),
    st.sampled_from([20, 40, 200, 320]),
    st.lists(st.floats(0, 0.5), max_size=10),
)
def test_every_sample_goes_once_in_order_and_never_early(blocks: list[int], lead_ms: int, stalls: list[float]) -> None:
    pacer = Pacer(RATE, lead_ms=lead_ms)
    whole = np.arange(sum(blocks), dtype=np.int16)
    position = 0
    for index, size in enumerate(blocks):
        pacer.append(whole[position : position + size], last=index == len(blocks) - 1)
        position += size
    now, got, pauses = 50.0, [], iter(stalls)
    while (due := pacer.next_at(now)) is not None:
        now = max(now, due) + next(pauses, 0.0)
        frame = pacer.take(now)
        assert frame is not None
        got.append(frame)
        elapsed = (now - 50.0) * RATE
        assert pacer.position_samples <= elapsed + lead_ms * RATE / 1000 + 1
    assert np.array_equal(np.concatenate([*got, np.empty(0, np.int16)]), whole)


# --- whole frames -----------------------------------------------------------------------------------------------


def test_a_short_last_frame_is_filled_up_at_the_last_moment_and_takes_the_time_it_takes() -> None:
    pacer = Pacer(RATE, lead_ms=300, whole_frames=True)
    pacer.append(tone(8 * FRAME + 10), last=True)
    taken = drain(pacer, 1.0, 2.0)
    assert [samples for _, samples in taken] == [FRAME] * 9
    assert [at for at, _ in taken[:-1]] == [1.0] * 8
    assert round(taken[-1][0] - 1.0, 6) == 0.12
    assert pacer.position_samples == 8 * FRAME + 10
    ends = [pacer.at_segment_end]
    pacer.append(tone(15 * FRAME), last=True)
    assert [*ends, pacer.at_segment_end] == [True, False]
    more = drain(pacer, taken[-1][0], 9.0)
    sent = len(taken) + len(more)
    assert max(count * 0.02 - (at - 1.0) for count, (at, _) in enumerate(taken + more, 1)) <= 0.3 + 1e-9
    assert sent == 9 + 15


def test_what_comes_in_time_fills_the_last_frame() -> None:
    pacer = Pacer(RATE, lead_ms=300, whole_frames=True)
    audio = tone(6 * FRAME)
    pacer.append(audio[: 3 * FRAME + 50], last=True)
    taken = [pacer.take(1.0) for _ in range(3)]
    assert pacer.take(1.0) is None
    pacer.append(audio[3 * FRAME + 50 :], last=True)
    taken += [pacer.take(1.0) for _ in range(3)]
    assert np.array_equal(np.concatenate([frame for frame in taken if frame is not None]), audio)


def test_with_two_frames_ahead_a_short_one_goes_no_later_than_a_whole_one() -> None:
    pacer = Pacer(RATE, lead_ms=40, whole_frames=True)
    pacer.append(tone(3 * FRAME + 1), last=True)
    assert [round(at, 6) for at, _ in drain(pacer, 1.0, 2.0)] == [1.0, 1.0, 1.02, 1.04]


# --- marks ------------------------------------------------------------------------------------------------------

MARK = RATE // 5
"""200 ms."""


def marked_clock(*marks: int, at: float = 10.0, sent: int = RATE) -> PlayoutClock:
    clock = PlayoutClock(RATE)
    for number, position in enumerate(marks, 1):
        clock.mark(number, position)
    clock.sent(sent, at)
    return clock


def test_nothing_beyond_the_oldest_mark_under_way_was_heard() -> None:
    clock = marked_clock(MARK, 2 * MARK)
    assert clock.heard_samples(10.1) == MARK // 2
    assert clock.heard_samples(10.9) == MARK
    assert clock.mark_played(1, 10.9)
    assert clock.heard_samples(10.9) == MARK
    assert clock.heard_samples(11.0) == MARK + RATE // 10
    assert clock.heard_samples(11.9) == 2 * MARK


def test_a_mark_answers_for_those_before_it_and_each_comes_back_once() -> None:
    clock = marked_clock(MARK, 2 * MARK, 3 * MARK)
    assert clock.mark_played(2, 10.5)
    assert clock.heard_samples(10.5) == 2 * MARK
    assert not clock.mark_played(1, 10.6)
    assert not clock.mark_played(2, 10.6)
    assert not clock.mark_played(99, 10.6)
    assert clock.mark_played(3, 10.7)


def test_it_is_dry_for_certain_when_the_last_mark_is_back_or_given_up() -> None:
    clock = marked_clock(MARK, RATE)
    assert clock.dry_at(10.0) == 13.0
    assert clock.expected_dry_at(10.0) == 11.0
    assert clock.mark_played(1, 10.7)
    assert clock.dry_at(10.7) == 10.7 + 0.8 + 2.0
    assert clock.mark_played(2, 11.6)
    assert clock.dry_at(11.6) == 11.6
    assert clock.give_up(1e9) == 0


def test_overdue_marks_are_given_up_and_the_clock_is_believed() -> None:
    clock = marked_clock(MARK, RATE)
    assert clock.give_up(12.1) == 0
    assert clock.heard_samples(12.1) == MARK
    assert clock.heard_samples(12.2) == RATE
    assert clock.give_up(12.25) == 1
    assert clock.give_up(12.99) == 0
    assert clock.give_up(13.0) == 1
    assert clock.dry_at(14.0) == 14.0
    assert not clock.mark_played(1, 14.0)


def test_no_more_marks_are_waited_for_than_a_reply_may_have() -> None:
    clock = PlayoutClock(RATE)
    assert sum(clock.mark(number, number) for number in range(70)) == 6
    assert not clock.mark_played(5, 1.0)
    assert clock.mark_played(6, 1.0)


def test_before_its_audio_has_left_a_mark_is_not_overdue_and_silence_is_nothing() -> None:
    clock = PlayoutClock(RATE)
    clock.silence(FRAME)
    clock.mark(1, FRAME)
    assert clock.give_up(1e9) == 0
    assert clock.heard_samples(1e9) == 0
    clock.sent(FRAME, 10.0)
    assert clock.give_up(12.01) == 0
    assert clock.give_up(12.02) == 1


def test_marks_that_a_clear_returns_say_nothing_of_what_was_heard() -> None:
    clock = marked_clock(MARK, 2 * MARK)
    clock.stop(MARK // 2)
    assert clock.mark_cleared(1)
    assert not clock.mark_cleared(1)
    assert clock.heard_samples(20.0) == MARK // 2
    assert clock.dry_at(20.0) == 20.0


def test_a_mark_that_was_on_its_way_when_the_far_end_was_cleared_is_a_fact() -> None:
    clock = marked_clock(MARK, 2 * MARK, 3 * MARK)
    clock.stop(MARK)
    assert clock.mark_played(2, 10.5)
    assert clock.heard_samples(10.5) == clock.sent_samples == 2 * MARK
    assert clock.mark_played(1, 10.6)
    assert clock.heard_samples(10.6) == 2 * MARK
    clock.sent(5 * MARK, 11.0)
    assert not clock.mark_played(3, 11.1), "of the audio that is played again it says nothing"


def test_a_mark_that_the_far_end_dropped_by_itself_is_waited_for_no_more() -> None:
    clock = marked_clock(MARK, 2 * MARK)
    assert clock.mark_cleared(1)
    assert clock.heard_samples(11.0) == 2 * MARK


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), max_size=40))
def test_what_was_heard_never_goes_back_nor_beyond_a_mark(steps: list[tuple[int, int]]) -> None:
    clock, now, sent, number, heard = PlayoutClock(RATE), 100.0, 0, 0, 0
    under_way: dict[int, int] = {}
    for what, size in steps:
        now += size / 1000
        clock.give_up(now)
        if what < 2:
            sent += FRAME * (1 + size % 5)
            if what:
                number += 1
                under_way[number] = sent
                clock.mark(number, sent)
            clock.sent(sent, now)
        elif under_way:
            mark = min(under_way)
            position = under_way.pop(mark)
            if clock.mark_played(mark, now):
                assert clock.heard_samples(now) >= position
        was, heard = heard, clock.heard_samples(now)
        assert was <= heard <= sent
        assert clock.dry_at(now) >= now
        assert clock.heard_samples(clock.dry_at(now)) == sent
