from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from engines.api import HEALTHY, EngineHealth, Overload
from gateway.records.call_record import CallRecord
from gateway.switchboard import (
    Admission,
    Busy,
    Draining,
    LiveCall,
    LocalPlaces,
    Overloaded,
    Places,
    Refused,
    Switchboard,
)
from tests.loop_turns import Others, others
from tests.virtual_time import virtual


class Ledger:
    """What the switchboard reported."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.counted: list[str] = []
        self.kept: list[str] = []
        self.places_given = 0
        self.measures: list[str] = []

    def admitted(self) -> None:
        self.places_given += 1

    def refused(self, reason: str) -> None:
        self.reasons.append(reason)

    def overloaded(self, measure: str) -> None:
        self.measures.append(measure)

    def ended(self, record: CallRecord) -> None:
        self.counted.append(record.id)

    def keep(self, record: CallRecord) -> None:
        self.kept.append(record.id)


class FakeCall:
    """Ends when told to, or after some time; may be deaf to either request."""

    def __init__(self, call_id: str, *, says_goodbye: bool = True, hangs_up: bool = True) -> None:
        self.record = CallRecord(id=call_id, transport="fake", agent=None, started_at=datetime.now(UTC))
        self.finished = asyncio.Event()
        self.told: list[str] = []
        self._says_goodbye = says_goodbye
        self._hangs_up = hangs_up

    @property
    def id(self) -> str:
        return self.record.id

    def drain(self) -> None:
        self.told.append("drain")
        if self._says_goodbye:
            asyncio.get_running_loop().call_later(3.0, self._end, "server_drain")

    def hang_up(self, cause: str) -> None:
        self.told.append(cause)
        if self._hangs_up:
            self._end(cause)

    def load_changed(self, overload: Overload) -> None:
        self.told.append(overload.name)

    def _end(self, cause: str) -> None:
        self.record.ended(cause, 0)
        self.finished.set()

    async def run(self, board: Switchboard, admission: Admission, *, for_s: float = 1e6) -> None:
        with admission:
            board.register(admission, self)
            try:
                async with asyncio.timeout(for_s):
                    await self.finished.wait()
            except TimeoutError:
                self._end("hung_up")


def board(
    limit: int = 2,
    *,
    ledger: Ledger | None = None,
    places: Places | None = None,
    health: Callable[[], EngineHealth] = lambda: HEALTHY,
    closed_by: Callable[[], str | None] = lambda: None,
) -> Switchboard:
    ledger = ledger or Ledger()
    numbers = itertools.count()
    random_id: Callable[[], str] = lambda: f"{next(numbers)}"  # noqa: E731
    return Switchboard(
        limit,
        observer=ledger,
        on_ended=ledger.keep,
        worker="7",
        places=places,
        random_id=random_id,
        health=health,
        closed_by=closed_by,
    )


async def test_the_surplus_is_refused_at_once_and_a_place_comes_back() -> None:
    ledger = Ledger()
    switchboard = board(2, ledger=ledger)
    first = await switchboard.admit()
    second = await switchboard.admit()
    assert (first.call_id, second.call_id) == ("call_7_0", "call_7_1")
    with pytest.raises(Busy) as caught:
        await switchboard.admit()
    assert caught.value.code == "busy"
    assert ledger.reasons == ["busy"]
    assert ledger.places_given == 2
    with first:
        pass
    assert switchboard.live == 1
    with await switchboard.admit():
        assert switchboard.live == 2


async def test_a_place_is_given_back_once_also_when_the_call_fails() -> None:
    switchboard = board(1)
    admission = await switchboard.admit()
    with pytest.raises(ZeroDivisionError), admission:
        raise ZeroDivisionError
    with admission:
        pass
    assert switchboard.live == 0
    with await switchboard.admit(), pytest.raises(Busy):
        await switchboard.admit()


async def test_calls_are_listed_while_they_live_and_kept_when_they_end() -> None:
    ledger = Ledger()
    switchboard = board(3, ledger=ledger)
    with await switchboard.admit() as first, await switchboard.admit() as second:
        for admission in (first, second):
            switchboard.register(admission, FakeCall(admission.call_id))
        assert [record.id for record in switchboard.calls()] == ["call_7_1", "call_7_0"]
        found = switchboard.find("call_7_0")
        assert found is not None
        assert found.id == "call_7_0"
        assert switchboard.find("call_7_9") is None
    assert list(switchboard.calls()) == []
    assert ledger.counted == ledger.kept == ["call_7_1", "call_7_0"]


@virtual
async def test_calls_that_come_at_once_are_set_up_one_after_another_with_a_turn_for_everybody_else_between() -> None:
    switchboard = board(12)
    all_in, over = asyncio.Event(), asyncio.Event()
    admitted_in: list[int] = []
    refused_in: list[int] = []

    async def come(counted: Others) -> None:
        try:
            with await switchboard.admit():
                admitted_in.append(counted.turns)
                if len(admitted_in) == 12:
                    all_in.set()
                await over.wait()
        except Busy:
            refused_in.append(counted.turns)

    async with others() as counted:
        coming = [asyncio.create_task(come(counted)) for _ in range(14)]
        await all_in.wait()
        over.set()
        await asyncio.gather(*coming)
    assert admitted_in == sorted(set(admitted_in))
    assert len(admitted_in) == 12
    assert len(refused_in) == 2
    assert max(refused_in) <= min(admitted_in), "who is refused waits for nobody"
    assert switchboard.live == 0


async def test_who_gives_up_before_its_turn_leaves_its_place() -> None:
    switchboard = board(3)
    coming = [asyncio.create_task(switchboard.admit()) for _ in range(3)]
    await asyncio.sleep(0)
    assert switchboard.live == 3
    coming[1].cancel()
    with await coming[0], await coming[2]:
        assert switchboard.live == 2
    assert switchboard.live == 0
    assert coming[1].cancelled()


async def test_a_call_that_was_never_registered_leaves_no_record() -> None:
    ledger = Ledger()
    with await board(ledger=ledger).admit():
        pass
    assert ledger.kept == ledger.counted == []


async def test_an_admission_is_good_for_one_call() -> None:
    switchboard = board()
    with await switchboard.admit() as admission:
        switchboard.register(admission, FakeCall(admission.call_id))
        with pytest.raises(ValueError, match="once"):
            switchboard.register(admission, FakeCall(admission.call_id))
    with pytest.raises(ValueError, match="once"):
        switchboard.register(admission, FakeCall(admission.call_id))


def test_ids_differ() -> None:
    ledger = Ledger()
    switchboard = Switchboard(1, observer=ledger, on_ended=ledger.keep)
    ids = {switchboard.new_call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(call_id.startswith("call_0_") for call_id in ids)


async def started(
    switchboard: Switchboard, *calls: tuple[dict[str, bool], float]
) -> list[tuple[FakeCall, asyncio.Task[None]]]:
    running = []
    for options, for_s in calls:
        admission = await switchboard.admit()
        call = FakeCall(admission.call_id, **options)
        running.append((call, asyncio.create_task(call.run(switchboard, admission, for_s=for_s))))
    await asyncio.sleep(0)
    return running


def now() -> float:
    return asyncio.get_running_loop().time()


@virtual
async def test_a_drain_of_nothing_is_over_at_once() -> None:
    switchboard = board()
    began = now()
    await switchboard.drain(30)
    assert now() == began
    assert switchboard.draining
    with pytest.raises(Draining):
        await switchboard.admit()


@virtual
async def test_calls_that_end_in_time_are_left_alone() -> None:
    switchboard = board()
    running = await started(switchboard, ({}, 5.0), ({}, 8.0))
    began = now()
    await switchboard.drain(30)
    assert now() - began == pytest.approx(8.0)
    assert [call.told for call, _ in running] == [[], []]
    await asyncio.gather(*(task for _, task in running))


@virtual
async def test_the_rest_is_told_goodbye_and_then_hung_up() -> None:
    ledger = Ledger()
    switchboard = board(3, ledger=ledger)
    running = await started(switchboard, ({}, 5.0), ({}, 1e5), ({"says_goodbye": False}, 1e5))
    began = now()
    await switchboard.drain(30)
    assert now() - began == pytest.approx(38.0)
    assert [call.told for call, _ in running] == [[], ["drain"], ["drain", "server_drain"]]
    assert [call.record.cause for call, _ in running] == ["hung_up", "server_drain", "server_drain"]
    assert len(ledger.kept) == 3
    await asyncio.gather(*(task for _, task in running))


@virtual
async def test_a_drain_is_bounded_whatever_calls_do() -> None:
    switchboard = board()
    running = await started(switchboard, ({"says_goodbye": False, "hangs_up": False}, 1e5))
    began = now()
    await switchboard.drain(30)
    assert now() - began == pytest.approx(40.0)
    running[0][1].cancel()
    await asyncio.gather(running[0][1], return_exceptions=True)
    assert switchboard.live == 0


@virtual
async def test_a_call_that_was_admitted_before_and_registers_during_a_drain_is_told_too() -> None:
    switchboard = board(2)
    late, later = await switchboard.admit(), await switchboard.admit()
    draining = asyncio.create_task(switchboard.drain(1))
    await asyncio.sleep(2)
    call = FakeCall(late.call_id, says_goodbye=False)
    with late, later:
        switchboard.register(late, call)
        assert call.told == ["drain"]
        await asyncio.sleep(8)
        assert call.told == ["drain", "server_drain"]
        last = FakeCall(later.call_id)
        switchboard.register(later, last)
        assert last.told == ["server_drain"]
    await draining


@virtual
async def test_a_second_signal_ends_what_a_first_one_drains() -> None:
    switchboard = board()
    running = await started(switchboard, ({}, 1e5))
    began = now()
    draining = asyncio.create_task(switchboard.drain(30))
    await asyncio.sleep(1)
    switchboard.hang_up_all("server_stop")
    await draining
    assert now() - began == pytest.approx(1.0)
    assert running[0][0].told == ["server_stop"]
    await running[0][1]


@virtual
async def test_places_asked_for_elsewhere_are_given_back_when_a_drain_begins_meanwhile() -> None:
    class SlowPlaces(LocalPlaces):
        given_back = 0

        async def take(self) -> bool:
            await asyncio.sleep(1)
            return await super().take()

        def give_back(self) -> None:
            self.given_back += 1

    places = SlowPlaces(1)
    switchboard = board(places=places)
    asking = asyncio.create_task(switchboard.admit())
    await asyncio.sleep(0.5)
    await switchboard.drain(0)
    with pytest.raises(Draining):
        await asking
    assert places.given_back == 1


@pytest.mark.parametrize(
    ("health", "code"),
    [
        (EngineHealth(healthy=False, reason="the mlx host is down", takes_calls=False), "engines_down"),
        (EngineHealth(healthy=True, overload=Overload.REFUSE_CALLS), "overloaded"),
    ],
)
async def test_engines_that_cannot_serve_another_call_get_none(health: EngineHealth, code: str) -> None:
    ledger = Ledger()
    now = HEALTHY
    switchboard = board(2, ledger=ledger, health=lambda: now)
    with await switchboard.admit() as up:
        now = health
        with pytest.raises(Refused) as caught:
            await switchboard.admit()
        assert (caught.value.code, ledger.reasons) == (code, [code])
        call = FakeCall(up.call_id)
        switchboard.register(up, call)
        assert call.told == []
        now = HEALTHY
        with await switchboard.admit():
            assert switchboard.live == 2


async def test_a_measure_over_its_limit_refuses_the_next_call_and_says_which_it_is() -> None:
    ledger = Ledger()
    measure: str | None = None
    switchboard = board(2, ledger=ledger, closed_by=lambda: measure)
    with await switchboard.admit() as up:
        call = FakeCall(up.call_id)
        switchboard.register(up, call)
        measure = "loop_lag"
        with pytest.raises(Overloaded) as caught:
            await switchboard.admit()
        assert (caught.value.code, caught.value.measure) == ("overloaded", "loop_lag")
        assert (ledger.reasons, ledger.measures) == (["overloaded"], ["loop_lag"])
        assert switchboard.overloaded_by(EngineHealth(True, overload=Overload.REFUSE_CALLS)) == "engines"
        assert call.told == []
        assert switchboard.live == 1
        measure = None
        with await switchboard.admit():
            assert switchboard.live == 2


async def test_a_host_that_something_stands_in_for_and_lesser_loads_are_no_reason_to_refuse() -> None:
    for health in (
        EngineHealth(healthy=False, reason="the mlx host is down"),
        EngineHealth(healthy=True, overload=Overload.SHORT_CLAUSES),
    ):
        with await board(health=lambda health=health: health).admit():  # type: ignore[misc]
            pass


async def test_calls_that_are_up_are_told_how_busy_the_engines_are() -> None:
    switchboard = board()
    with await switchboard.admit() as first, await switchboard.admit():
        call = FakeCall(first.call_id)
        switchboard.register(first, call)
        switchboard.load_changed(Overload.SHORT_CLAUSES)
        assert call.told == ["SHORT_CLAUSES"]


class FakePlaced(FakeCall):
    """A call that we place."""

    def __init__(self, call_id: str) -> None:
        super().__init__(call_id, says_goodbye=False)
        self.answered_by: LiveCall | None = None

    def rings(self) -> None:
        self.record.rings()

    def give_way_to(self, call: LiveCall) -> None:
        self.answered_by = call


async def test_who_answers_a_placed_call_takes_its_place_and_is_the_one_that_is_kept() -> None:
    ledger = Ledger()
    switchboard = board(ledger=ledger)
    with await switchboard.admit() as admission:
        placed, call = FakePlaced(admission.call_id), FakeCall(admission.call_id)
        switchboard.place(admission, placed)
        assert switchboard.find(admission.call_id) is placed
        placed.record.state = "dialling"
        admission.rings()
        assert [record.state for record in switchboard.calls()] == ["ringing"]
        switchboard.register(admission, call)
        assert placed.answered_by is call
        assert switchboard.find(admission.call_id) is call
        assert list(switchboard.calls()) == [call.record]
        with pytest.raises(ValueError, match="registered once"):
            switchboard.register(admission, FakeCall(admission.call_id))
        admission.rings()  # a late word changes nothing
        assert placed.told == call.told == []
    assert ledger.kept == [admission.call_id]


async def test_a_placed_call_that_nobody_answered_is_kept_as_well() -> None:
    ledger = Ledger()
    switchboard = board(ledger=ledger)
    with await switchboard.admit() as admission:
        switchboard.place(admission, FakePlaced(admission.call_id))
    assert ledger.kept == [admission.call_id]
    assert switchboard.live == 0


@virtual
async def test_a_drain_ends_at_once_what_is_not_answered() -> None:
    switchboard = board(2)
    with await switchboard.admit() as ringing, await switchboard.admit() as talking:
        placed, call = FakePlaced(ringing.call_id), FakeCall(talking.call_id)
        switchboard.place(ringing, placed)
        switchboard.register(talking, call)
        draining = asyncio.create_task(switchboard.drain(10))
        await asyncio.sleep(1)
        assert placed.told == ["drain"]
        assert call.told == []
    await draining


@virtual
async def test_a_call_that_is_placed_after_a_drain_began_does_not_ring_on() -> None:
    switchboard = board()
    with await switchboard.admit() as admission:
        draining = asyncio.create_task(switchboard.drain(10))
        await asyncio.sleep(1)
        placed = FakePlaced(admission.call_id)
        switchboard.place(admission, placed)
        assert placed.told == ["drain"]
    await draining
