from __future__ import annotations

from gateway.transports.sip.timers import NamedTimers, Timers


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_in_their_order_once_and_not_if_cancelled() -> None:
    clock = Clock()
    ran: list[str] = []
    sooner: list[float] = []
    timers = Timers(clock, sooner.append)
    timers.after(2, lambda: ran.append("two"))
    timers.after(1, lambda: ran.append("one"))
    timers.after(1, lambda: ran.append("one more"))
    timers.after(1.5, lambda: ran.append("never")).cancel()
    assert sooner == [2, 1]
    assert len(timers) == 3
    clock.now_s = 1.9
    timers.run()
    timers.run()
    assert ran == ["one", "one more"]
    assert timers.next_at() == 2
    clock.now_s = 9
    timers.run()
    assert ran == ["one", "one more", "two"]
    assert timers.next_at() is None


def test_what_was_cancelled_does_not_pile_up() -> None:
    timers = Timers(Clock())
    kept = timers.after(1_000, lambda: None)
    for _ in range(10_000):
        timers.after(32, lambda: None).cancel()
    assert len(timers._heap) <= 200
    assert len(timers) == 1
    kept.cancel()


def test_a_timer_may_start_its_own_name_again() -> None:
    clock = Clock()
    ran: list[float] = []
    timers = Timers(clock)
    named = NamedTimers(timers)

    def again() -> None:
        ran.append(clock.now_s)
        if len(ran) < 3:
            named.start("a", 1, again)

    named.start("a", 1, again)
    named.start("a", 2, again)
    for now_s in range(6):
        clock.now_s = now_s
        timers.run()
    assert ran == [2, 3, 4]
    assert not named.runs("a", "b")
    named.start("b", 1, again)
    assert named.runs("a", "b")
    named.stop()
    named.stop("b")
    assert timers.next_at() is None
