from __future__ import annotations

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.outbound_address import Destination, parse_destination
from gateway.outbound_policy import DAY_S, HOUR_S, MIN_CALL_S, NotAllowed, OutboundPolicy, Ticket
from gateway.outbound_settings import OutboundSettings

EVERYWHERE = ("+1", "+44", "+49", "pbx")


class Clock:
    def __init__(self, now_s: float = 1_000_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def to(text: str) -> Destination:
    return parse_destination(text, trunk="trunk")


def policy(clock: Clock | None = None, allow: tuple[str, ...] = EVERYWHERE, **settings: object) -> OutboundPolicy:
    return OutboundPolicy(
        OutboundSettings.model_validate({"enabled": True, "allow": allow, **settings}), clock or Clock()
    )


def refused(what: OutboundPolicy, text: str) -> NotAllowed:
    with pytest.raises(NotAllowed) as caught:
        what.take(to(text))
    return caught.value


@pytest.mark.parametrize(
    ("allow", "deny", "text", "code"),
    [
        (("+1",), (), "+442079460000", "destination_not_allowed"),
        (("pbx",), (), "+442079460000", "destination_not_allowed"),
        (("pbx",), (), "sip:a@other", "destination_not_allowed"),
        (("+1",), (), "sip:+15551234567@pbx", "destination_not_allowed"),
        (("pbx",), (), "sip:+15551234567@pbx", "destination_not_allowed"),
        (("+1", "pbx"), ("+1555",), "+15551234567", "destination_denied"),
        (("+1555123", "pbx"), ("+1",), "+15551234567", "destination_denied"),
        (("+1", "pbx"), ("pbx",), "sip:a@pbx", "destination_denied"),
        (("0.0.0.0/0",), ("10.0.0.0/8",), "sip:a@10.0.0.1", "destination_denied"),
        (("::/0", "0.0.0.0/0"), ("10.0.0.0/8",), "sip:a@[::ffff:10.0.0.1]", "destination_denied"),
        (("+1",), (), "+19005551234", "premium_rate"),
        (("+1",), (), "+18765551234", "premium_rate"),
        (("+4", "+44"), (), "+449012345678", "premium_rate"),
        (("pbx",), (), "sip:911@pbx", "emergency_number"),
        (("pbx",), (), "sip:%39%31%31@pbx", "emergency_number"),
        (("pbx",), (), "sip:9-1-1@pbx", "emergency_number"),
        (("pbx",), (), "sip:*911#@pbx", "emergency_number"),
        (("pbx",), (), "sip:9911@pbx", "emergency_number"),
        (("pbx",), (), "sip:9-911@pbx", "emergency_number"),
        (("pbx",), (), "sip:0,112@pbx", "emergency_number"),
        (("pbx",), (), "sip:*67911@pbx", "emergency_number"),
        (("pbx",), (), "sip:*67*911@pbx", "emergency_number"),
        (("pbx",), (), "sip:%2A%36%37000@pbx", "emergency_number"),
    ],
)
def test_what_may_not_be_dialled(allow: tuple[str, ...], deny: tuple[str, ...], text: str, code: str) -> None:
    error = refused(policy(allow=allow, deny=deny), text)
    assert (error.code, error.retry_after_s) == (code, None)


@pytest.mark.parametrize(
    ("allow", "text"),
    [
        (("+1",), "+15551234567"),
        (("+1876",), "+18765551234"),
        (("+1", "+18765"), "+18765551234"),
        (("pbx", "+1"), "sip:+15551234567@pbx"),
        (("pbx",), "sip:100@pbx"),
        (("pbx",), "sip:9110@pbx"),
        (("pbx",), "sip:9000@pbx"),
        (("pbx",), "sip:*97@pbx"),
    ],
)
def test_what_may(allow: tuple[str, ...], text: str) -> None:
    assert policy(allow=allow).take(to(text)).limit_s == 600


def test_so_many_at_once() -> None:
    book = policy(max_calls=2)
    first = book.take(to("sip:a@pbx"))
    book.take(to("sip:b@pbx"))
    error = refused(book, "sip:c@pbx")
    assert (error.code, error.retry_after_s) == ("outbound_busy", 5)
    first.end(1)
    first.end(1)
    book.take(to("sip:c@pbx"))


def test_never_two_to_one_destination_at_once_and_so_many_an_hour() -> None:
    clock = Clock()
    book = policy(clock, calls_per_destination=2, max_calls=9)
    first = book.take(to("+15551234567"))
    assert refused(book, "sip:+1-555-1234567@pbx").code == "destination_busy"
    first.end(0)
    clock.now_s += 600
    book.take(to("+15551234567")).end(0)
    clock.now_s += 60
    error = refused(book, "+15551234567")
    assert (error.code, error.retry_after_s) == ("destination_limit", HOUR_S - 660)
    clock.now_s += HOUR_S - 660
    book.take(to("+15551234567")).end(0)
    assert refused(book, "+15551234567").code == "destination_limit"


def test_so_many_an_hour() -> None:
    clock = Clock()
    book = policy(clock, calls_per_hour=2)
    book.take(to("sip:a@pbx")).end(0)
    clock.now_s += 10
    book.take(to("sip:b@pbx")).end(0)
    error = refused(book, "sip:c@pbx")
    assert (error.code, error.retry_after_s) == ("hour_limit", HOUR_S - 10)
    clock.now_s += HOUR_S - 10
    book.take(to("sip:c@pbx"))


def test_an_hour_and_a_day_are_whole_and_the_wait_is_rounded_up() -> None:
    clock = Clock(59.5)
    book = policy(clock, calls_per_hour=1, minutes_per_day=2)
    book.take(to("sip:a@pbx")).end(90)
    clock.now_s += HOUR_S - 0.3
    error = refused(book, "sip:b@pbx")
    assert (error.code, error.retry_after_s) == ("hour_limit", 1)
    clock.now_s += 0.3
    assert refused(book, "sip:b@pbx").code == "day_limit"
    clock.now_s += DAY_S - HOUR_S - 0.1
    error = refused(book, "sip:b@pbx")
    assert (error.code, error.retry_after_s) == ("day_limit", 1)
    clock.now_s += 1
    book.take(to("sip:b@pbx"))


def test_the_minutes_of_a_day_are_held_by_calls_that_are_up_and_free_again_where_they_were_not_used() -> None:
    clock = Clock()
    book = policy(clock, minutes_per_day=15, max_calls=9)
    first, second = book.take(to("sip:a@pbx")), book.take(to("sip:b@pbx"))
    assert (first.limit_s, second.limit_s) == (600, 300)
    error = refused(book, "sip:c@pbx")
    assert (error.code, error.retry_after_s) == ("day_limit", 5)
    first.end(30)
    assert book.left_s == 570
    second.end(300)
    assert book.left_s == 570
    clock.now_s += 1
    book.take(to("sip:d@pbx")).end(570 - MIN_CALL_S + 1)
    error = refused(book, "sip:e@pbx")
    assert error.code == "day_limit"
    assert error.retry_after_s is not None
    assert DAY_S <= error.retry_after_s <= DAY_S + 60
    clock.now_s += error.retry_after_s
    assert book.left_s == 900


def test_what_was_not_placed_counts_for_nothing() -> None:
    book = policy(calls_per_hour=1, calls_per_destination=1)
    ticket = book.take(to("sip:a@pbx"))
    ticket.give_back()
    ticket.give_back()
    ticket.end(99)
    assert book.left_s == 3_600
    book.take(to("sip:a@pbx"))


class Abuse(RuleBasedStateMachine):
    """Whoever has the key does what they like: what is bounded stays so, counted by an observer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.book = policy(
            self.clock, max_calls=2, calls_per_hour=6, calls_per_destination=3, minutes_per_day=20, minutes_per_call=8
        )
        self.live: list[tuple[Ticket, float]] = []
        self.begun: list[tuple[float, str]] = []
        self.talks: list[tuple[float, float]] = []

    @rule(who=st.sampled_from("abcd"))
    def dial(self, who: str) -> None:
        before = self.book.left_s
        ticket: Ticket | None = None
        wait_s: float | None = None
        try:
            ticket = self.book.take(to(f"sip:{who}@pbx"))
        except NotAllowed as error:
            wait_s = error.retry_after_s
        if ticket is None:
            assert wait_s is not None
            assert wait_s >= 1
            assert self.book.left_s == before
            return
        assert MIN_CALL_S <= ticket.limit_s <= 480
        self.live.append((ticket, self.clock.now_s))
        self.begun.append((self.clock.now_s, ticket.key))

    @precondition(lambda self: self.live)
    @rule(share=st.floats(0, 1), which=st.integers(0, 9))
    def hang_up(self, share: float, which: int) -> None:
        ticket, begun = self.live.pop(which % len(self.live))
        talked = min(share * ticket.limit_s, self.clock.now_s - begun)
        ticket.end(talked)
        self.talks.append((self.clock.now_s, talked))

    @rule(seconds=st.one_of(st.floats(0, 600), st.floats(0, 2 * HOUR_S), st.floats(0, DAY_S)))
    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @invariant()
    def bounds_hold(self) -> None:
        now = self.clock.now_s
        recent = [key for at, key in self.begun if at > now - HOUR_S]
        assert len(self.live) <= 2
        assert len({ticket.key for ticket, _ in self.live}) == len(self.live)
        assert len(recent) <= 6
        assert all(recent.count(key) <= 3 for key in set(recent))
        talked = sum(seconds for at, seconds in self.talks if at > now - DAY_S)
        assert talked + sum(ticket.limit_s for ticket, _ in self.live) <= 20 * 60 + 1e-6

    @invariant()
    def what_is_kept_is_bounded(self) -> None:
        assert self.book.left_s <= 20 * 60
        assert len(self.book._begun) <= 6
        assert len(self.book._talked) <= DAY_S / 60 + 2


TestAbuse = Abuse.TestCase
TestAbuse.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
