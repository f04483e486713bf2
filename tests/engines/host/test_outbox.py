from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.host.outbox import Outbox


def test_what_finds_no_room_is_not_taken_and_the_last_word_always_is() -> None:
    outbox = Outbox(10)
    assert outbox.add(b"12345678", 1)
    assert not outbox.add(b"123", 2)
    assert outbox.add(b"123", 2, must=True)
    assert (len(outbox), outbox.waiting_bytes) == (2, 11)
    assert outbox.take(100) == [b"12345678", b"123"]
    assert outbox.waiting_bytes == 0
    assert outbox.take(100) == []


def test_what_waits_of_a_dead_job_is_dropped_and_makes_room() -> None:
    outbox = Outbox(6)
    for job in (1, 2, 1):
        assert outbox.add(b"ab", job)
    outbox.drop(lambda owner: owner == 3)
    assert len(outbox) == 3
    outbox.drop(lambda owner: owner == 1)
    Outbox(1).drop(lambda owner: True)
    assert outbox.add(b"cd", None)
    assert outbox.take(100) == [b"ab", b"cd"]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.binary(min_size=1, max_size=9))), st.integers(1, 20))
def test_it_gives_all_in_order_and_never_more_than_asked(entries: list[tuple[int, bytes]], most: int) -> None:
    outbox = Outbox(10_000)
    for job, message in entries:
        outbox.add(message, job)
    given_: list[bytes] = []
    while taken := outbox.take(most):
        assert len(taken) == 1 or sum(map(len, taken)) <= most
        given_ += taken
        assert outbox.waiting_bytes == sum(len(message) for _, message in entries[len(given_) :])
    assert given_ == [message for _, message in entries]
