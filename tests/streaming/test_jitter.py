"""Any order, loss, duplication and wraparound: every frame exactly once, in order, or concealed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import example, given
from hypothesis import strategies as st

from streaming.jitter import (
    FILL_S,
    MAX_DROPOUT,
    MAX_HELD,
    MAX_MISORDER,
    OPUS_CLOCK_HZ,
    WINDOW_S,
    Audio,
    JitterBuffer,
    Lost,
    Packet,
    Piece,
    Silence,
)

FRAME = 960
FILL_TICKS = int(FILL_S * OPUS_CLOCK_HZ)
FRAME_S = 0.02


def packet(number: int, *, at: int | None = None, first: int = 0, base: int = 0, ticks: int = FRAME) -> Packet:
    """The ``number``-th of a stream; its payload is its number. ``at`` is where it begins, in frames."""
    begins = number if at is None else at
    return Packet((first + number) & 0xFFFF, (base + begins * FRAME) & 0xFFFFFFFF, ticks, str(number).encode())


def push_all(buffer: JitterBuffer, packets: list[Packet], start_s: float = 100.0) -> list[Piece]:
    """Each 20 ms after the one before."""
    return [piece for n, item in enumerate(packets) for piece in buffer.push(item, start_s + n * FRAME_S)]


def played(pieces: list[Piece]) -> list[int]:
    return [int(piece.payload) for piece in pieces if isinstance(piece, Audio)]


@dataclass(frozen=True)
class Fate:
    lost: bool
    delay_ms: int
    copies: int
    pause: int
    """Frames of silence that the sender leaves out before it."""


fates = st.builds(
    Fate,
    lost=st.booleans() | st.just(False),
    delay_ms=st.integers(0, 59) | st.just(0),
    copies=st.sampled_from((1, 1, 1, 2)),
    pause=st.sampled_from((0, 0, 0, 0, 5, 40)),
)


@given(st.lists(fates, min_size=1, max_size=50), st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF))
@example([Fate(False, 0, 1, 0)] * 40, 0xFFF0, 0xFFFFF000)
@example([Fate(False, 0, 1, 0), Fate(True, 0, 1, 5), Fate(False, 41, 1, 40), Fate(False, 0, 1, 5)], 0, 0)
def test_every_frame_comes_once_and_in_order_or_is_concealed(plan: list[Fate], first: int, base: int) -> None:
    arrivals, begins, at = [], {}, 0
    for number, fate in enumerate(plan):
        at += fate.pause if number else 0
        begins[number] = at
        sent = packet(number, at=at, first=first, base=base)
        if not number or not fate.lost:
            delay_s = fate.delay_ms / 1000 if number else 0.0
            arrivals += [(at * FRAME_S + delay_s + copy * 0.005, number, sent) for copy in range(fate.copies)]
        at += 1
    buffer, pieces = JitterBuffer(), list[Piece]()
    for now_s, _, item in sorted(arrivals, key=lambda arrival: arrival[:2]):
        due_s = buffer.due_s()
        if due_s is not None and due_s < now_s:
            pieces += buffer.expire(due_s)
        pieces += buffer.push(item, now_s)
    pieces += buffer.restart(1e6)

    came = {number for number, fate in enumerate(plan) if not number or not fate.lost}
    assert played(pieces) == sorted(came), "each in order, once, for none came later than the window"
    places = [begins[number] for number in sorted(came)]
    holes = [after - before - 1 for before, after in itertools.pairwise(places)]
    whole = buffer.counts.resyncs == 0
    assert whole or sum(holes) > FILL_TICKS // FRAME, "one fill's worth of holes is filled, however close they are"
    assert not whole or max(holes, default=0) <= FILL_TICKS // FRAME
    position = 0
    for piece in pieces if whole else []:
        if isinstance(piece, Audio):
            assert position == begins[int(piece.payload)] * FRAME, "positions follow RTP time"
        position += piece.ticks
    assert buffer.counts.lost == max(came) + 1 - len(came)
    assert buffer.counts.expected == max(came) + 1
    assert buffer.counts.late == buffer.counts.strays == 0
    assert buffer.counts.duplicates == sum(plan[number].copies - 1 for number in came)


junk = st.tuples(
    st.integers(0, 0xFFFF) | st.integers(0, 40),
    st.integers(0, 0xFFFFFFFF) | st.integers(0, 40 * FRAME),
    st.sampled_from((0, 120, 960, 5760)),
    st.sampled_from((0.0, 0.001, 0.02, 5.0)),
)


@given(st.lists(junk, max_size=80))
def test_what_no_sender_would_send_stays_within_bounds(stream: list[tuple[int, int, int, float]]) -> None:
    buffer, pieces, now_s = JitterBuffer(), list[Piece](), 50.0
    for number, (sequence, timestamp, ticks, pause_s) in enumerate(stream):
        now_s += pause_s
        pieces += buffer.push(Packet(sequence, timestamp, ticks, str(number).encode()), now_s)
        assert len(buffer._held) < MAX_HELD
        due_s = buffer.due_s()
        assert due_s is None or now_s < due_s <= now_s + WINDOW_S
    pieces += buffer.restart(now_s)
    numbers = played(pieces)
    assert len(set(numbers)) == len(numbers), "nothing is heard twice"
    assert all(piece.ticks > 0 for piece in pieces)
    filled = sum(piece.ticks for piece in pieces if not isinstance(piece, Audio))
    assert filled <= FILL_TICKS + (now_s - 50.0) * 48_000 + len(stream), "no faster than the clock"
    counts = buffer.counts
    out_of_place = counts.late + counts.duplicates + counts.strays
    undecodable = sum(1 for item in stream if item[2] == 0)
    assert len(numbers) <= len(stream) - out_of_place <= len(numbers) + undecodable


def test_what_is_in_order_is_not_held_back() -> None:
    buffer = JitterBuffer()
    for number in range(5):
        assert played(buffer.push(packet(number), 0.02 * number)) == [number]
        assert buffer.due_s() is None


def test_a_packet_that_comes_late_but_in_time_takes_its_place() -> None:
    buffer = JitterBuffer()
    assert played(push_all(buffer, [packet(n) for n in (0, 2, 3, 1, 4)])) == [0, 1, 2, 3, 4]
    assert buffer.counts.reordered == 1
    assert buffer.counts.lost == 0


def test_three_packets_behind_a_gap_end_the_wait() -> None:
    buffer = JitterBuffer()
    pieces = push_all(buffer, [packet(n) for n in (0, 2, 3)])
    assert played(pieces) == [0]
    pieces = buffer.push(packet(4), 100.06)
    assert pieces[0] == Lost(FRAME, following=b"2")
    assert played(pieces) == [2, 3, 4]
    assert buffer.counts.lost == 1


def test_the_clock_ends_the_wait_where_no_more_packets_come() -> None:
    buffer = JitterBuffer()
    push_all(buffer, [packet(0), packet(2)])
    assert buffer.due_s() == 100.02 + WINDOW_S
    assert buffer.expire(100.05) == []
    assert buffer.expire(100.02 + WINDOW_S) == [Lost(FRAME, b"2"), Audio(b"2", FRAME)]


def test_what_comes_after_it_was_given_up_is_late_and_a_second_copy_a_duplicate() -> None:
    buffer = JitterBuffer()
    push_all(buffer, [packet(n) for n in (0, 2, 3, 4, 1, 4, 6, 6)])
    assert (buffer.counts.late, buffer.counts.duplicates, buffer.counts.lost) == (1, 2, 1)
    assert buffer.counts.received == 8


def test_what_was_told_as_silence_and_comes_after_all_is_an_overlap() -> None:
    buffer = JitterBuffer()
    push_all(buffer, [packet(0)])
    assert buffer.fill(5 * FRAME, 100.2) == [Silence(5 * FRAME)]
    assert played(buffer.push(packet(1), 100.3)) == [1]
    assert played(buffer.push(packet(2), 100.3)) == [2]
    assert buffer.counts.overlap_ticks == 5 * FRAME
    buffer.push(Packet(3, (-FILL_TICKS * 2) & 0xFFFFFFFF, FRAME, b"3"), 100.4)
    assert buffer.counts.overlap_ticks == 5 * FRAME, "a stream that begins anew is none"


def test_packets_before_the_first_are_late() -> None:
    buffer = JitterBuffer()
    assert played(push_all(buffer, [packet(5), packet(4), packet(6)])) == [5, 6]
    assert buffer.counts.late == 1


def test_a_pause_of_the_sender_is_silence() -> None:
    pieces = push_all(JitterBuffer(), [packet(0), packet(1, at=21)])
    assert pieces[1:] == [Silence(20 * FRAME), Audio(b"1", FRAME)]


def test_what_cannot_be_decoded_is_concealed() -> None:
    pieces = push_all(JitterBuffer(), [packet(0), packet(1, ticks=0), packet(2)])
    assert pieces[1:] == [Lost(FRAME, b"2"), Audio(b"2", FRAME)]


def test_a_jump_of_the_timestamps_resyncs() -> None:
    buffer = JitterBuffer()
    pieces = push_all(buffer, [packet(0), packet(1, at=1_000_000), packet(2, at=1_000_001), packet(3, at=7)])
    assert pieces[1] == Silence(FILL_TICKS), "an hour is not filled, and yet the break is told"
    assert played(pieces) == [0, 1, 2, 3]
    assert [piece for piece in pieces[3:] if not isinstance(piece, Audio)] == []
    assert buffer.counts.resyncs == 2


def test_one_stray_does_not_move_a_stream_and_two_in_a_row_begin_another() -> None:
    buffer = JitterBuffer()
    far = MAX_DROPOUT + 10
    assert played(push_all(buffer, [packet(0), packet(far), packet(1)])) == [0, 1]
    assert buffer.counts.strays == 1
    pieces = push_all(buffer, [packet(far), packet(far + 1), packet(far + 2)])
    assert played(pieces) == [far + 1, far + 2]
    assert buffer.counts.lost == 0


def test_a_stream_that_begins_again_far_behind_is_followed_and_what_waited_comes_first() -> None:
    buffer = JitterBuffer()
    pieces = push_all(buffer, [packet(n) for n in (500, 502)])
    back = 500 - MAX_MISORDER - 50
    pieces += push_all(buffer, [packet(back), packet(back + 1)])
    assert played(pieces) == [500, 502, back + 1]


def test_reports_count_wraparounds() -> None:
    buffer = JitterBuffer()
    push_all(buffer, [packet(n, first=0xFFFE) for n in range(4)])
    assert buffer.highest_sequence == 0x10001
    assert buffer.counts.expected == 4


def test_silence_that_is_known_is_told_at_once_and_not_again() -> None:
    buffer = JitterBuffer()
    assert buffer.fill(FRAME, 99.0) == [], "before the first packet there is nothing to go on from"
    push_all(buffer, [packet(0)])
    assert buffer.fill(10 * FRAME, 100.2) == [Silence(10 * FRAME)]
    assert buffer.push(packet(1, at=21), 100.42) == [Silence(10 * FRAME), Audio(b"1", FRAME)]
    push_all(buffer, [packet(3, at=23)])
    assert buffer.fill(FRAME, 100.5) == [], "what waits comes first"


def test_silence_is_not_told_faster_than_the_clock() -> None:
    buffer = JitterBuffer()
    push_all(buffer, [packet(0)])
    told = sum(piece.ticks for _ in range(10) for piece in buffer.fill(FILL_TICKS, 101.0))
    assert told == FILL_TICKS
    assert buffer.fill(FILL_TICKS, 101.0) == []
