"""Silence of the wire, on a clock of its own."""

from __future__ import annotations

from gateway.transports.rtp.watchdog import Watchdog


def test_silence_is_suspect_and_then_the_end() -> None:
    told: list[bool] = []
    dog = Watchdog(3.0, 10.0, 100.0, told.append)
    assert not dog.is_lost(102.9)
    assert told == []
    assert [dog.is_lost(now_s) for now_s in (103.0, 109.9, 110.0)] == [False, False, True]
    assert told == [True]


def test_what_is_heard_begins_the_wait_again() -> None:
    told: list[bool] = []
    dog = Watchdog(3.0, 10.0, 100.0, told.append)
    assert not dog.is_lost(104.0)
    dog.heard(108.0)
    dog.heard(107.0)
    assert not dog.suspicious
    assert not dog.is_lost(110.9)
    assert dog.is_lost(118.0)
    assert told == [True, False]


def test_it_says_when_to_look_again() -> None:
    dog = Watchdog(3.0, 10.0, 100.0, lambda on: None)
    assert [dog.next_s(now_s) for now_s in (100.0, 103.0, 111.0)] == [103.0, 110.0, 111.0]
