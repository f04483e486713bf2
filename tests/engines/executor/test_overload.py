"""The overload ladder: rises with standing lateness, not with a spike, and comes down later than it went up."""

from __future__ import annotations

from engines.api import Overload
from engines.executor.overload import Ladder
from engines.executor.policy import Agenda, Key, Kind
from streaming.jobs import Priority


def test_it_climbs_with_standing_lateness_and_comes_down_with_hysteresis() -> None:
    ladder = Ladder()
    assert ladder.level(0.0) is Overload.NONE
    ladder.note(0.6, 0.0)
    assert ladder.level(0.1) is Overload.NONE
    assert ladder.level(2.0) is Overload.NO_SPECULATION
    assert ladder.level(8.0) is Overload.SHORT_CLAUSES
    ladder.note(0.3, 8.0)
    assert ladder.level(9.0) is Overload.SHORT_CLAUSES  # under 0.5, but over half of it
    ladder.note(2.0, 9.0)
    assert ladder.level(20.0) is Overload.REFUSE_CALLS
    ladder.note(0.0, 20.0)
    assert [ladder.level(20.0 + s) for s in (0.5, 2.0, 3.5, 6.0)] == [
        Overload.REFUSE_CALLS,
        Overload.REFUSE_CALLS,
        Overload.SHORT_CLAUSES,
        Overload.NONE,
    ]


def test_one_long_quantum_is_no_overload() -> None:
    ladder = Ladder()
    ladder.note(0.0, 0.0)
    ladder.note(10.0, 5.0)
    ladder.note(0.0, 5.02)
    assert ladder.level(5.02) is Overload.NONE


def test_time_that_stands_still_changes_nothing() -> None:
    ladder = Ladder()
    ladder.note(9.0, 1.0)
    assert ladder.level(1.0) is Overload.NONE
    assert ladder.level(0.5) is Overload.NONE


def test_the_agenda_notes_the_latest_job() -> None:
    kind = Kind("stt", "encode")
    agenda = Agenda()
    agenda.costs.seed(kind, 1, 1, 0.5)
    for epoch in range(10):
        agenda.add(Key("stt", "c", epoch), kind, Priority.FINAL, 0.1, 0.0)
    agenda.choose(0.0)
    assert agenda.overload(10.0) is Overload.REFUSE_CALLS
    for epoch in range(10):
        agenda.drop(Key("stt", "c", epoch))
    agenda.choose(10.0)
    assert agenda.overload(60.0) is Overload.NONE
