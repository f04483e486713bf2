"""Which frames count as late."""

from scripts.bench_media.lateness import NOTHING, Arrival, Lateness, lateness
from scripts.bench_media.talk import RTP_FRAME


def spurt(
    delays_ms: list[float], *, sequence: int = 100, timestamp: int = 0, start_ms: float = 0.0, size: int = 80
) -> list[Arrival]:
    return [
        Arrival(
            sequence=(sequence + n) % 2**16,
            timestamp=(timestamp + n * RTP_FRAME) % 2**32,
            at_s=(start_ms + 20 * n + delay_ms) / 1000,
            payload_bytes=size,
        )
        for n, delay_ms in enumerate(delays_ms)
    ]


def test_frames_within_20_ms_of_their_place_are_not_late() -> None:
    found = lateness(spurt([0, 3, 19, 0, 7]))
    assert (found.frames, found.late, found.lost) == (5, 0, 0)
    assert round(found.worst_ms) == 19


def test_a_stall_makes_every_frame_late_until_the_server_has_caught_up() -> None:
    assert lateness(spurt([0, 0, 60, 40, 21, 0])).late == 3


def test_the_first_frame_may_be_the_late_one() -> None:
    found = lateness(spurt([30, 0, 0]))
    assert (found.late, round(found.worst_ms)) == (1, 30)


def test_a_frame_stamped_when_it_was_sent_is_late_all_the_same() -> None:
    arrivals = spurt([0, 0, 50, 50])
    stamped = [Arrival(a.sequence, round(a.at_s * 48_000), a.at_s, 80) for a in arrivals]
    assert lateness(stamped).late == 2


def test_the_silence_between_two_spurts_is_not_lateness() -> None:
    first = spurt([0] * 4)
    second = spurt([0] * 4, sequence=104, timestamp=4 * RTP_FRAME + 3 * 48_000, start_ms=3_090)
    assert lateness(first + second) == Lateness(8, 0, 0, 0.0)


def test_silence_is_not_judged() -> None:
    said = spurt([0, 0, 0])
    tail = spurt([40, 20, 0], sequence=103, timestamp=3 * RTP_FRAME, start_ms=60, size=20)
    keep_alive = spurt([0], sequence=106, timestamp=24_000, start_ms=500, size=1)
    again = spurt([0, 0], sequence=107, timestamp=48_000, start_ms=1000)
    assert lateness(said + tail + keep_alive + again) == Lateness(4, 0, 0, 0.0)


def test_the_frame_before_silence_may_be_silence() -> None:
    said = spurt([0, 0, 60])
    silent = spurt([0], sequence=103, timestamp=3 * RTP_FRAME, start_ms=60, size=3)
    assert lateness(said + silent) == Lateness(2, 0, 0, 0.0)


def test_sequence_numbers_and_timestamps_wrap() -> None:
    found = lateness(spurt([0] * 6, sequence=2**16 - 3, timestamp=2**32 - 2 * RTP_FRAME))
    assert (found.frames, found.late, found.lost) == (6, 0, 0)


def test_what_never_came_is_lost_and_not_late() -> None:
    arrivals = spurt([0] * 6)
    del arrivals[2:4]
    found = lateness(arrivals)
    assert (found.frames, found.late, found.lost) == (4, 0, 2)


def test_nothing_came() -> None:
    assert lateness([]) == NOTHING
