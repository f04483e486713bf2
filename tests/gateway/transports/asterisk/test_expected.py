"""Which calls are expected, and where callers go on to: by a clock that the test moves."""

from __future__ import annotations

import uuid

import pytest

from gateway.transports.asterisk import expected as module
from gateway.transports.asterisk.expected import ExpectedCalls, NextSteps, NotExpected, TooManyAnnounced
from gateway.transports.phone.line import Incoming

ID = uuid.UUID("40325ec2-5efd-4bd3-805f-53576e581d13")
CALL = Incoming("audiosocket", agent="sales", dialled="+1555", caller="+1666", wire_id=str(ID))


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def taken(expected: ExpectedCalls, call: uuid.UUID) -> str:
    with pytest.raises(NotExpected) as refused:
        expected.take(call)
    return refused.value.code


def test_an_announced_call_comes_once() -> None:
    expected = ExpectedCalls(Clock())
    expected.announce(ID, CALL)
    assert expected.take(ID) == CALL
    assert taken(expected, ID) == "call_replayed"
    with pytest.raises(NotExpected, match="expected"):
        expected.announce(ID, CALL)


def test_an_announcement_lasts_30_s() -> None:
    clock = Clock()
    expected = ExpectedCalls(clock)
    expected.announce(ID, CALL)
    clock.now += 30.0
    assert taken(expected, ID) == "call_expired"
    assert taken(expected, ID) == "call_replayed"


def test_a_stranger_is_let_in_only_where_anyone_is() -> None:
    assert taken(ExpectedCalls(Clock()), ID) == "call_unknown"
    assert ExpectedCalls(Clock(), anyone=True).take(ID) == Incoming("audiosocket", wire_id=str(ID))


def test_an_agents_own_uuid_opens_any_number_of_calls_and_cannot_be_announced() -> None:
    expected = ExpectedCalls(Clock(), agents={ID: "sales"})
    for _ in range(2):
        assert expected.take(ID) == Incoming("audiosocket", agent="sales", wire_id=str(ID))
    with pytest.raises(NotExpected):
        expected.announce(ID, CALL)


def test_announcements_are_bounded_and_old_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 2)
    clock = Clock()
    expected = ExpectedCalls(clock)
    expected.announce(uuid.UUID(int=1), CALL)
    expected.announce(uuid.UUID(int=2), CALL)
    with pytest.raises(TooManyAnnounced):
        expected.announce(uuid.UUID(int=3), CALL)
    clock.now += 60.0
    expected.announce(uuid.UUID(int=3), CALL)
    assert taken(expected, uuid.UUID(int=1)) == "call_unknown"


def test_calls_that_came_make_room_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 2)
    expected = ExpectedCalls(Clock())
    for number in range(10):
        expected.announce(uuid.UUID(int=number), CALL)
        expected.take(uuid.UUID(int=number))
    assert taken(expected, uuid.UUID(int=9)) == "call_replayed"
    assert taken(expected, uuid.UUID(int=0)) == "call_unknown"


def test_a_target_is_told_once_and_for_a_minute() -> None:
    clock = Clock()
    steps = NextSteps(clock)
    steps.hand_over("a", "+1")
    steps.hand_over("b", "+2")
    assert steps.take("a") == "+1"
    assert steps.take("a") == ""
    clock.now += 60.0
    assert steps.take("b") == ""


def test_targets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 2)
    steps = NextSteps(Clock())
    for name in "abc":
        steps.hand_over(name, name)
    assert [steps.take(name) for name in "abc"] == ["", "b", "c"]
