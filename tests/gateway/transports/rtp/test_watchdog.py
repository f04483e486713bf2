"""Silence of the wire, on a clock of its own."""

from __future__ import annotations

from gateway.transports.rtp.watchdog import Verdict, Watchdog


def test_silence_is_suspect_and_then_the_end() -> None:
    dog = Watchdog(3.0, 10.0, now_s=100.0)
    assert [dog.verdict(now_s) for now_s in (100.0, 102.9, 103.0, 109.9, 110.0)] == [
        Verdict.WELL,
        Verdict.WELL,
        Verdict.SUSPECT,
        Verdict.SUSPECT,
        Verdict.LOST,
    ]


def test_what_is_heard_begins_the_wait_again() -> None:
    dog = Watchdog(3.0, 10.0, now_s=100.0)
    dog.heard(108.0)
    dog.heard(107.0)
    assert dog.verdict(110.9) is Verdict.WELL
    assert dog.verdict(118.0) is Verdict.LOST


def test_it_says_when_to_look_again() -> None:
    dog = Watchdog(3.0, 10.0, now_s=100.0)
    assert [dog.next_s(now_s) for now_s in (100.0, 103.0, 111.0)] == [103.0, 110.0, 111.0]
