"""The watch for stalls, on a clock of its own."""

from __future__ import annotations

import sys
import threading

from engines.bench.stalls import STALL_S, Stalls, in_words


class Thread:
    """One that was last heard of at ``beat``."""

    def __init__(self) -> None:
        self.now = 100.0
        self.beat = 100.0
        self.stalls = Stalls(lambda: self.beat, lambda: self.now, most=3)

    def pass_s(self, seconds: float, *, heard: bool = False) -> None:
        """Time passes; it is looked at, here, then."""
        self.now += seconds
        self.beat = self.now if heard else self.beat
        self.stalls.look(sys._getframe())


def test_a_thread_heard_of_often_does_not_stall() -> None:
    thread = Thread()
    for _ in range(10):
        thread.pass_s(STALL_S * 0.9, heard=True)
    assert thread.stalls.seen == []
    assert "no stall" in in_words(thread.stalls.longest(5))


def test_a_stall_is_told_with_its_length_and_where_it_was() -> None:
    thread = Thread()
    thread.pass_s(1.0, heard=True)
    for _ in range(8):
        thread.pass_s(0.25)
    thread.pass_s(0.0, heard=True)
    [stall] = thread.stalls.seen
    assert (stall.at_s, stall.seconds) == (1.0, 2.0)
    assert stall.frames[0].startswith("pass_s (test_stalls.py:")
    assert stall.frames[1].startswith("test_a_stall_is_told")
    assert "2000 ms" in in_words(thread.stalls.longest(5))


def test_a_thread_that_waits_for_work_does_not_stall() -> None:
    thread = Thread()
    asleep, wake = threading.Event(), threading.Event()

    def sleep() -> None:
        asleep.set()
        wake.wait(20)

    waiting = threading.Thread(target=sleep)
    waiting.start()
    asleep.wait(20)
    while True:
        frame = sys._current_frames()[waiting.ident or 0]
        if frame.f_code.co_filename.endswith("threading.py"):
            break
    thread.now += 10.0
    thread.stalls.look(frame)
    wake.set()
    waiting.join()
    thread.stalls.look(None)
    assert thread.stalls.seen == []


def test_the_longest_are_first_and_the_list_is_bounded() -> None:
    thread = Thread()
    for seconds in (0.5, 2.0, 1.0, 3.0):
        thread.pass_s(seconds)
        thread.pass_s(0.0, heard=True)
    assert [round(stall.seconds, 3) for stall in thread.stalls.longest(2)] == [2.0, 1.0]
    assert len(thread.stalls.seen) == 3
