"""Which frames count as late."""

from scripts.bench_media.lateness import NOTHING, Arrival, Lateness, lateness
from scripts.bench_media.talk import RTP_FRAME


def spurt(delays_ms: list[float], *, sequence: int = 100, timestamp: int = 0, start_ms: float = 0.0) -> list[Arrival]:
    return [
        Arrival((sequence + n) % 2**16, (timestamp + n * RTP_FRAME) % 2**32, (start_ms + 20 * n + delay_ms) / 1000)
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
    stamped = [Arrival(a.sequence, round(a.at_s * 48_000), a.at_s) for a in arrivals]
    assert lateness(stamped).late == 2


def test_the_silence_between_two_spurts_is_not_lateness() -> None:
    first = spurt([0] * 4)
    second = spurt([0] * 4, sequence=104, timestamp=4 * RTP_FRAME + 3 * 48_000, start_ms=3_090)
    assert lateness(first + second) == Lateness(8, 0, 0, 0.0)


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
