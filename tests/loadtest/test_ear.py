"""What every ear counts of the agent's sound, in virtual time."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.ear import HeardMedia, Pcm16, Recording, power_of
from loadtest.line_noise import power_at
from loadtest.playout import Playout
from loadtest.rtp_playout import RtpPlayout
from loadtest.stream_playout import StreamPlayout


def tone(ms: int, rate_hz: int = 24_000) -> Pcm16:
    return np.full(ms * rate_hz // 1000, 1_000, dtype=np.int16)


class Loud:
    """A decoder of payloads that say nothing but that they are there."""

    def decode(self, payload: bytes) -> Pcm16:
        return tone(20, 8_000)

    def recover(self, samples: int, following: bytes | None) -> Pcm16:
        return tone(20, 8_000)


def test_steady_frames_leave_nothing_to_count_but_themselves() -> None:
    ear = Playout(0.0)
    for frame in range(50):
        ear.push("a", tone(20), frame * 0.02)
    ear.finish("a", 1.0)
    ear.advance(2.0)
    assert ear.heard_media() == HeardMedia(frames_due=50)


def test_jitter_below_20_ms_is_no_wait_and_above_it_is() -> None:
    ear = Playout(0.0)
    for at_ms in (0, 38, 40, 60, 105, 110, 120):
        ear.push("a", tone(20), at_ms / 1000)
    ear.finish("a", 0.2)
    ear.advance(1.0)
    media = ear.heard_media()
    # what came at 38 ms ran out at 58, so the next two had run out at 98
    assert (media.slow, media.gaps) == (0, 0)
    ear = Playout(0.0)
    for at_ms in (0, 45, 65, 85):
        ear.push("a", tone(20), at_ms / 1000)
    assert ear.heard_media().slow == 1
    assert ear.heard_media().longest_gap_ms == pytest.approx(25)


def test_a_hole_is_an_underrun_of_several_late_frames_and_a_gap() -> None:
    ear = Playout(0.0)
    ear.push("a", tone(100), 0.0)
    ear.push("a", tone(100), 0.3)
    ear.finish("a", 0.3)
    ear.advance(1.0)
    media = ear.heard_media()
    assert (media.underruns, media.gaps, media.slow) == (1, 1, 1)
    assert media.longest_gap_ms == pytest.approx(200)
    assert media.frames_late == len(ear.late_slots) == 10
    assert media.frames_due == 5 + 5 + 10


def test_a_reply_sent_at_once_has_no_gap_before_the_next() -> None:
    ear = Playout(0.0)
    for item, at_s in (("a", 0.0), ("b", 3.0)):
        ear.push(item, tone(500), at_s)
        ear.push(item, tone(500), at_s + 0.01)
        ear.finish(item, at_s + 0.01)
    ear.advance(6.0)
    assert ear.heard_media() == HeardMedia(frames_due=100)


def test_what_a_cut_took_away_hides_no_gap_in_the_next_reply() -> None:
    ear, phone = Playout(0.0), StreamPlayout(0.0)
    ear.push("a", tone(9_000), 0.0)
    ear.flush(1.0)
    for at_s in (2.0, 2.12):
        ear.push("b", tone(20), at_s)
    phone.push(tone(9_000, 8_000), 0.0)
    phone.clear(1.0)
    for at_s in (2.0, 2.12):
        phone.push(tone(20, 8_000), at_s)
    for media in (ear.heard_media(), phone.heard_media()):
        assert media.gaps == 1
        assert media.longest_gap_ms == pytest.approx(100)


def test_a_stream_has_gaps_inside_a_voice_and_none_between_two_sentences() -> None:
    ear = StreamPlayout(0.0)
    for at_ms in (0, 20, 140, 160, 3_000):
        ear.push(tone(20, 8_000), at_ms / 1000)
    ear.advance(4.0)
    media = ear.heard_media()
    assert (media.gaps, media.underruns) == (1, 1)
    assert media.longest_gap_ms == pytest.approx(100)
    assert media.frames_due == 5 + media.frames_late


def test_lost_packets_are_lost_and_not_waited_for() -> None:
    ear = RtpPlayout(0.0, Loud(), rate_hz=8_000, clock_hz=8_000)
    for number in (0, 1, 2, 4, 5, 6, 7, 8):
        ear.push(number, number * 160, b"x", number * 0.02)
    ear.advance(1.0)
    media = ear.heard_media()
    assert (media.frames_lost, media.slow, media.frames_late, media.frames_due) == (1, 0, 0, 9)


def test_packets_that_come_late_are_waited_for() -> None:
    ear = RtpPlayout(0.0, Loud(), rate_hz=8_000, clock_hz=8_000)
    for number in range(10):
        ear.push(number, number * 160, b"x", number * 0.02 + (0.1 if number > 5 else 0))
    ear.advance(1.0)
    media = ear.heard_media()
    assert (media.slow, media.gaps, media.underruns, media.frames_lost) == (1, 1, 1, 0)
    assert media.longest_gap_ms == pytest.approx(100)


def test_an_agent_on_hold_is_not_late() -> None:
    ear = RtpPlayout(0.0, Loud(), rate_hz=8_000, clock_hz=8_000)
    for number in range(5):
        ear.push(number, number * 160, b"x", number * 0.02)
    ear.advance(0.2)
    ear.pause()
    ear.advance(2.0)
    ear.pause()
    for number in range(5, 10):
        ear.push(number, number * 160, b"x", 2 + number * 0.02)
    ear.advance(3.0)
    assert ear.heard_media() == HeardMedia(frames_due=10)


def test_what_comes_before_the_first_slot_waits_for_it() -> None:
    ear = Playout()
    ear.push("a", tone(40), 5.0)
    ear.advance(5.2)
    assert ear.slots_played == 0
    ear.start(5.21)
    ear.advance(5.3)
    assert [bool(ear.slot(index).any()) for index in range(5)] == [True, True, False, False, False]


def test_a_recording_is_its_slots_and_silence_is_left_out() -> None:
    recording = Recording(4)
    assert len(recording.whole()) == 0
    for number in range(1_234):
        recording.add(None if number % 3 else np.full(4 if number % 2 else 2, number, dtype=np.int16))
    whole = recording.whole().reshape(-1, 4)
    assert len(whole) == recording.slots == 1_234
    assert whole[999].tolist() == [999] * 4
    assert whole[1_002].tolist() == [1_002, 1_002, 0, 0]
    assert not whole[1_000].any()
    assert recording.slot(-1).tolist() == whole[-1].tolist()
    assert len(recording.whole(10)) == 40
    with pytest.raises(IndexError):
        recording.slot(1_234)


def test_a_recording_is_copied_across_its_blocks() -> None:
    recording = Recording(2)
    said = [np.array([slot, -slot], np.int16) if slot % 700 > 90 else None for slot in range(1, 1_300)]
    for pcm in said:
        recording.add(pcm)
    expected = np.concatenate([np.zeros(2, np.int16) if pcm is None else pcm for pcm in said])
    assert np.array_equal(recording.whole(), expected)
    for slots in (0, 1, 499, 500, 501, 1_000, 5_000):
        assert np.array_equal(recording.whole(slots), expected[: 2 * slots])


def test_a_voice_is_what_a_phone_line_lets_be_heard() -> None:
    assert power_of(np.full(160, 104, dtype=np.int16)) == 104.0**2
    assert power_of(np.full(480, -32_768, dtype=np.int16)) == pytest.approx(power_at(0.0))
