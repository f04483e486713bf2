"""The order of the CPU lane, exhaustively and without threads."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from engines.lane_order import AGING_S, LEISURE_S, LaneOrder, Ticket
from streaming.jobs import Priority


def ticket(priority: Priority, deadline: float, sequence: int, since: float = 0.0) -> Ticket:
    return Ticket(priority, deadline, sequence, since)


def test_every_permutation_leaves_in_class_deadline_submission_order() -> None:
    wanted = [
        ticket(Priority.FINAL, 1.0, 3),
        ticket(Priority.FINAL, 2.0, 1),
        ticket(Priority.FINAL, 2.0, 4),
        ticket(Priority.DECODE, 0.5, 2),
        ticket(Priority.PARTIAL, 0.1, 0),
        ticket(Priority.SPECULATIVE, 0.0, 5),
    ]
    for arrival in itertools.permutations(wanted):
        order = LaneOrder()
        for one in arrival:
            order.add(one)
        assert [order.pop(now=0.0) for _ in wanted] == wanted
        assert order.pop(now=0.0) is None


# Quarter seconds are exact in binary, so no rounding can make the two sides differ.
_quarters = st.integers(0, 60).map(lambda n: n / 4)
_tickets = st.lists(
    st.tuples(st.sampled_from(list(Priority)), st.one_of(_quarters, st.just(math.inf)), _quarters), max_size=30
)


@given(_tickets, _quarters)
def test_the_head_is_the_least_key_of_all(rows: list[tuple[Priority, float, float]], now: float) -> None:
    tickets = [ticket(priority, deadline, n, since) for n, (priority, deadline, since) in enumerate(rows)]
    order = LaneOrder()
    for one in tickets:
        order.add(one)
    while tickets:
        least = min(tickets, key=lambda one: one.urgency(now))
        assert order.peek(now) is least
        assert order.pop(now) is least
        tickets.remove(least)
    assert len(order) == 0


@given(_tickets, st.data())
def test_move_and_remove_keep_the_rest(rows: list[tuple[Priority, float, float]], data: st.DataObject) -> None:
    order = LaneOrder()
    tickets = [ticket(priority, deadline, n, since) for n, (priority, deadline, since) in enumerate(rows)]
    for one in tickets:
        order.add(one)
    for one in tickets:
        match data.draw(st.sampled_from(["keep", "move", "remove"])):
            case "move":
                order.move(one, data.draw(st.sampled_from(list(Priority))), data.draw(_quarters))
                assert one in order
            case "remove":
                assert order.remove(one)
                assert one not in order
                assert not order.remove(one)
            case _:
                pass
    left = [one for one in tickets if one in order]
    assert sorted(order.tickets(), key=id) == sorted(left, key=id)
    assert [order.pop(0.0) for _ in left] == sorted(left, key=lambda one: one.urgency(0.0))


def test_moving_a_ticket_that_does_not_wait_only_changes_it() -> None:
    order = LaneOrder()
    one = ticket(Priority.PARTIAL, 1.0, 0)
    order.move(one, Priority.FINAL, 2.0)
    assert (one.priority, one.deadline, len(order)) == (Priority.FINAL, 2.0, 0)


def test_waiting_past_the_deadline_raises_class_by_class_but_never_speculation() -> None:
    playout = ticket(Priority.PLAYOUT, 1.0, 0)
    speculative = ticket(Priority.SPECULATIVE, 1.0, 1)
    just_before = math.nextafter(1.0 + AGING_S, 0.0)
    assert playout.effective_class(just_before) == Priority.PLAYOUT
    assert playout.effective_class(1.0 + AGING_S) == Priority.DECODE
    assert playout.effective_class(1.0 + 2 * AGING_S) == Priority.FIRST_AUDIO
    assert playout.effective_class(1.0 + 9 * AGING_S) == Priority.FINAL
    assert speculative.effective_class(1.0 + 9 * AGING_S) == Priority.SPECULATIVE


def test_time_spent_running_does_not_age_a_job() -> None:
    paused = ticket(Priority.DECODE, 1.0, 0, since=100.0)
    assert paused.effective_class(101.0) == Priority.DECODE
    assert paused.effective_class(102.0) == Priority.FIRST_AUDIO


def test_only_what_is_neither_urgent_nor_due_can_wait() -> None:
    due, later = 10.0 + LEISURE_S / 2, 10.0 + 2 * LEISURE_S
    for priority in Priority:
        assert not ticket(priority, due, 0).can_wait(10.0)
        assert ticket(priority, later, 0).can_wait(10.0) is (priority > Priority.FIRST_AUDIO)


@given(_tickets, _quarters)
def test_an_impatient_head_is_the_least_of_those_that_cannot_wait(
    rows: list[tuple[Priority, float, float]], now: float
) -> None:
    order = LaneOrder()
    tickets = [ticket(priority, deadline, n, since) for n, (priority, deadline, since) in enumerate(rows)]
    for one in tickets:
        order.add(one)
    due = [one for one in tickets if not one.can_wait(now)]
    assert order.peek(now, patient=False) is min(due, key=lambda one: one.urgency(now), default=None)


def test_no_job_but_speculation_starves_under_endless_finals() -> None:
    order = LaneOrder()
    for n, priority in enumerate(Priority):
        order.add(ticket(priority, 1.0, n))
    served: set[Priority] = set()
    for n in range(100):
        now = n * 0.5
        order.add(ticket(Priority.FINAL, now + 0.3, 100 + n, since=now))
        first = order.pop(now)
        assert first is not None
        if first.sequence < 100:
            served.add(first.priority)
    assert served == set(Priority) - {Priority.SPECULATIVE}
