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


def test_a_shape_that_compiled_when_it_first_ran_does_not_have_calls_refused_for_ever() -> None:
    """Waves of twelve clips every two seconds, in virtual time: a quantum takes 12 ms, but the first of twelve 5 s."""
    kind = Kind("stt", "transcribe", max_batch=64)
    agenda = Agenda()
    for batch in (1, 2, 4, 8):
        agenda.costs.seed(kind, batch, 1, 0.012)
    now, widest, compiled = 0.0, 0, False
    left: dict[Key, int] = {}
    for wave in range(8):
        now, widest = max(now, 2.0 * wave), 0
        for clip in range(12):
            key = Key("stt", f"call {wave}", clip)
            left[key] = 20
            agenda.add(key, kind, Priority.FINAL, now + 0.5, now, remaining=20)
        while (choice := agenda.choose(now)) is not None:
            widest = max(widest, len(choice.keys))
            seconds = 5.0 if len(choice.keys) > 8 and not compiled else 0.012
            compiled = compiled or seconds == 5.0
            now += seconds
            agenda.observe(choice, seconds)
            for key in choice.keys:
                left[key] -= 1
                if not left[key]:
                    agenda.drop(key)
    assert compiled
    assert widest == 12
    assert agenda.overload(now) is Overload.NONE
