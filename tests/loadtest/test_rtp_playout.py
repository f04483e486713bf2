from __future__ import annotations

import numpy as np
import pytest

from loadtest import rtp_playout
from loadtest.ear import Pcm16
from loadtest.rtp_playout import RtpPlayout

SLOT = 480


class Numbers:
    """A decoder whose audio says which packet it was: loud for all but the payload ``.``."""

    def decode(self, payload: bytes) -> Pcm16:
        if payload == b"bad":
            raise ValueError("no Opus")
        value = 0 if payload == b"." else 1_000 + int(payload)
        return np.full(SLOT, value, dtype=np.int16)

    def recover(self, samples: int, following: bytes | None) -> Pcm16:
        return np.full(samples, 500 if following is None else 700, dtype=np.int16)


class Ear:
    """A playout whose grid begins at 0 s; packets are numbered, their times in ms."""

    def __init__(self) -> None:
        self.playout = RtpPlayout(0.0, Numbers())

    def push(self, number: int, at_ms: float, payload: bytes | None = None, timestamp: int | None = None) -> None:
        ticks = number * 960 if timestamp is None else timestamp
        text = str(number).encode() if payload is None else payload
        self.playout.push(number % 65536, ticks % (1 << 32), text, at_ms / 1000)

    def heard(self, until_ms: float) -> list[int]:
        """Of every slot: the packet's number, 0 for silence, -1 for concealment, -2 for recovery from the next."""
        self.playout.advance(until_ms / 1000)
        firsts = [int(slot[0]) for slot in self.playout.heard().reshape(-1, SLOT)]
        return [{0: 0, 500: -1, 700: -2}.get(value, value - 1_000) for value in firsts]


def test_packets_play_in_order_40_ms_after_the_first() -> None:
    ear = Ear()
    for number in range(1, 5):
        ear.push(number, 5 + number * 20)
    assert ear.heard(160) == [0, 0, 0, 0, 1, 2, 3, 4]
    assert ear.playout.late_slots == []


def test_order_is_restored_and_duplicates_are_dropped() -> None:
    ear = Ear()
    for number, at_ms in ((1, 5), (3, 25), (3, 26), (2, 45), (4, 65)):
        ear.push(number, at_ms)
    assert ear.heard(140) == [0, 0, 0, 1, 2, 3, 4]
    assert (ear.playout.counts.reordered, ear.playout.counts.duplicate, ear.playout.counts.lost) == (1, 1, 0)


def test_a_lost_packet_is_recovered_from_the_next_and_two_are_concealed() -> None:
    ear = Ear()
    for number in (1, 3, 4, 7, 8):
        ear.push(number, number * 20 - 15)
    assert ear.heard(220) == [0, 0, 0, 1, -2, 3, 4, -1, -2, 7, 8]
    assert (ear.playout.counts.lost, ear.playout.counts.concealed_ms) == (3, 60)


def test_what_comes_after_its_turn_is_late() -> None:
    ear = Ear()
    for number in (1, 3, 4):
        ear.push(number, number * 20 - 15)
    assert ear.heard(120)[3:] == [1, -2, 3]
    ear.push(2, 121)
    assert ear.playout.counts.late == 1
    assert ear.heard(140)[3:] == [1, -2, 3, 4]


def test_a_hole_in_speech_is_late_slots_and_nothing_is_skipped() -> None:
    ear = Ear()
    ear.push(1, 5)
    ear.push(2, 25)
    ear.push(3, 165)
    assert ear.heard(240) == [0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 3]
    assert ear.playout.late_slots == [5, 6, 7, 8, 9, 10]


def test_silence_stands_for_a_burst_that_was_lost_and_delay_does_not_grow() -> None:
    ear = Ear()
    for number in (1, 6, 7):
        ear.push(number, number * 20 - 15)
    assert ear.heard(200) == [0, 0, 0, 1, 0, 0, 0, 0, 6, 7]
    assert (ear.playout.counts.lost, ear.playout.counts.concealed_ms) == (4, 0)
    assert ear.playout.late_slots == [4, 5, 6, 7]


def test_a_pause_of_the_sender_is_no_hole() -> None:
    ear = Ear()
    ear.push(1, 5)
    ear.push(2, 165, timestamp=9 * 960)
    assert ear.heard(240)[3:] == [1, 0, 0, 0, 0, 0, 0, 0, 2]
    assert ear.playout.late_slots == []


def test_a_pause_that_the_network_swallowed_is_played() -> None:
    ear = Ear()
    ear.push(1, 5)
    ear.push(2, 6, timestamp=4 * 960)  # three packets' time later, said at once
    assert ear.heard(140)[3:] == [1, 0, 0, 2]


def test_delay_shrinks_in_silence_alone() -> None:
    ear = Ear()
    for number in range(1, 13):
        ear.push(number, 5, b"." if number % 2 else None)
    heard = ear.heard(400)
    assert [number for number in heard if number] == [2, 4, 6, 8, 10, 12]
    assert ear.playout.counts.skipped_silent == 2
    assert not ear.playout.busy


def test_numbers_and_times_wrap_around() -> None:
    ear = Ear()
    for place, number in enumerate((65_534, 65_535, 65_536, 65_538)):
        at = number - 65_534
        ear.push(number, at * 20 + 5, str(place + 1).encode(), timestamp=(1 << 32) - 960 + at * 960)
    assert ear.heard(160)[3:] == [1, 2, 3, -2, 4]
    assert (ear.playout.counts.lost, ear.playout.counts.late, ear.playout.counts.reordered) == (1, 0, 0)
    assert ear.playout.late_slots == []


def test_a_sender_that_starts_over_is_heard() -> None:
    ear = Ear()
    ear.push(5_000, 5)
    ear.heard(100)
    ear.push(10, 105)
    assert ear.heard(200)[-2:] == [10, 0]


def test_a_long_gap_is_not_concealed_through() -> None:
    ear = Ear()
    ear.push(1, 5)
    ear.push(400, 25, timestamp=2 * 960)
    assert ear.heard(100)[3:] == [1, 400]
    assert ear.playout.counts.lost == 398


def test_what_is_no_opus_is_silence() -> None:
    ear = Ear()
    ear.push(1, 5)
    ear.push(2, 25, b"bad")
    ear.push(3, 45)
    assert ear.heard(120)[3:] == [1, 0, 3]
    assert ear.playout.counts.malformed == 1


def test_the_buffer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtp_playout, "MAX_PACKETS", 3)
    ear = Ear()
    for number in range(1, 6):
        ear.push(number, 5)
    assert ear.playout.counts.dropped == 2
