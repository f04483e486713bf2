"""Whole calls between two user agents, with every kind of network between them."""

from __future__ import annotations

import random
from functools import partial

import pytest

from gateway.transports.sip.asking import Outcome
from gateway.transports.sip.incoming import IncomingSession
from tests.gateway.transports.sip.sip_rig import Agent, Ear, FakeMedia, Net, answers, short

LONG_S = 200.0
"""After this every timer of a call that is over has run."""


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.fixture
def alice(net: Net) -> Agent:
    return Agent(net, "192.0.2.1")


@pytest.fixture
def bob(net: Net) -> Agent:
    return Agent(net, "192.0.2.2", on_invite=answers)


def test_a_call_is_answered_and_hung_up_by_its_caller(net: Net, alice: Agent, bob: Agent) -> None:
    session, ear, media = alice.call(bob)
    net.run(1)
    assert ear.told == ["rings", "established"]
    assert bob.ears[0].told == ["established"]
    assert bob.media[0].heard == ["offer 1"]
    assert media.heard == ["answer to offer 1"]
    session.hang_up("done")
    net.run(1)
    assert ear.told[-1] == "closed"
    assert bob.ears[0].told == ["established", "hung up: caller_hung_up", "closed"]
    assert net.messages(alice.host) == ["INVITE", "ACK", "BYE"]
    assert net.messages(bob.host) == ["100 INVITE", "180 INVITE", "200 INVITE", "200 BYE"]
    net.run(LONG_S)
    assert alice.is_clean
    assert bob.is_clean


def test_a_call_is_hung_up_by_who_was_called(net: Net, alice: Agent, bob: Agent) -> None:
    _, ear, _ = alice.call(bob)
    net.run(1)
    bob.calls[0].hang_up("agent_hung_up")
    bob.calls[0].hang_up("again")
    net.run(LONG_S)
    assert ear.told == ["rings", "established", "hung up: caller_hung_up", "closed"]
    assert bob.ears[0].told == ["established", "closed"]
    assert net.messages(bob.host)[-1] == "BYE"
    assert alice.is_clean
    assert bob.is_clean


def test_both_hang_up_at_once(net: Net, alice: Agent, bob: Agent) -> None:
    session, ear, _ = alice.call(bob)
    net.run(1)
    session.hang_up()
    bob.calls[0].hang_up()
    net.run(LONG_S)
    assert ear.told[2:] == ["closed"]
    assert bob.ears[0].told[1:] == ["closed"]
    assert alice.is_clean
    assert bob.is_clean


@pytest.mark.parametrize("seed", range(40))
def test_a_call_survives_a_third_of_all_datagrams_lost_late_and_in_disorder(seed: int) -> None:
    net, rng = Net(), random.Random(seed)
    net.loses = lambda data, number: rng.random() < 0.3
    net.delay_s = lambda: rng.uniform(0.001, 0.4)
    alice, bob = Agent(net, "192.0.2.1"), Agent(net, "192.0.2.2", on_invite=answers)
    session, ear, _ = alice.call(bob)
    net.run(40)
    assert "established" in ear.told
    assert bob.ears[0].told == ["established"]
    outcomes: list[Outcome] = []
    session.reoffer(outcomes.append)
    net.run(40)
    assert outcomes == [Outcome(200)]
    (session if seed % 2 else bob.calls[0]).hang_up()
    net.run(LONG_S)
    assert len(bob.calls) == 1, "a repeated INVITE made a second call"
    assert ear.told.count("closed") == 1
    assert bob.ears[0].told.count("closed") == 1
    assert alice.is_clean
    assert bob.is_clean


def test_over_a_connection_nothing_is_repeated_but_the_answer_that_waits_for_its_ack(net: Net) -> None:
    alice = Agent(net, "192.0.2.1", transport="tcp")
    bob = Agent(net, "192.0.2.2", transport="tcp", on_invite=answers)
    net.loses = lambda data, number: short(data) == "ACK" and number < 6
    session, ear, _ = alice.call(bob)
    net.run(3)
    assert net.messages(alice.host).count("INVITE") == 1
    assert net.messages(bob.host).count("200 INVITE") == 2
    assert bob.ears[0].told == ["established"]
    session.hang_up()
    net.run(LONG_S)
    assert ear.told == ["rings", "established", "closed"]
    assert net.messages(alice.host).count("BYE") == 1
    assert alice.is_clean
    assert bob.is_clean


def test_nobody_there(net: Net, alice: Agent) -> None:
    nobody = Agent(Net(), "192.0.2.3")
    _, ear, _ = alice.call(nobody)
    net.run(31.9)
    assert ear.told == []
    net.run(0.2)
    assert ear.told == ["failed: 408", "closed"]
    assert [round(at_s - 1_000, 1) for at_s, *_ in net.log] == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5]
    assert alice.is_clean


def test_cancelled_while_it_rings(net: Net, alice: Agent, bob: Agent) -> None:
    bob.on_invite = lambda session, media: session.ring(for_long=True)
    session, ear, _ = alice.call(bob)
    net.run(5)
    assert ear.told == ["rings"]
    session.hang_up()
    net.run(1)
    assert ear.told == ["rings", "closed"]
    assert bob.ears[0].told == ["hung up: caller_hung_up", "closed"]
    assert net.messages(bob.host)[-2:] == ["200 CANCEL", "487 INVITE"]
    net.run(LONG_S)
    assert alice.is_clean
    assert bob.is_clean


def test_cancelled_before_the_first_answer_waits_for_it(net: Net, alice: Agent, bob: Agent) -> None:
    bob.on_invite = None
    session, ear, _ = alice.call(bob)
    session.hang_up()
    assert net.messages(alice.host) == ["INVITE"]
    net.run(1)
    assert net.messages(alice.host) == ["INVITE", "CANCEL", "ACK"]
    assert ear.told == ["closed"]
    net.run(LONG_S)
    assert alice.is_clean
    assert bob.is_clean


def test_a_cancel_that_crosses_the_answer_ends_the_call_all_the_same(net: Net, alice: Agent, bob: Agent) -> None:
    bob.on_invite = None
    session, ear, _ = alice.call(bob)
    net.run(1)
    answers(bob.calls[0], bob.media[0])
    session.hang_up()
    net.run(LONG_S)
    assert ear.told == ["closed"]
    assert net.messages(alice.host) == ["INVITE", "CANCEL", "ACK", "BYE"]
    assert bob.ears[0].told == ["established", "hung up: caller_hung_up", "closed"]
    assert alice.is_clean
    assert bob.is_clean


def test_cancelled_and_never_answered_at_all(net: Net, alice: Agent, bob: Agent) -> None:
    bob.on_invite = None
    session, ear, _ = alice.call(bob)
    net.run(1)
    net.loses = lambda data, number: True
    session.hang_up()
    net.run(LONG_S)
    assert ear.told == ["closed"]
    assert alice.is_clean


@pytest.mark.parametrize("status", [404, 486, 503, 603])
def test_refused(net: Net, alice: Agent, bob: Agent, status: int) -> None:
    bob.on_invite = lambda session, media: session.reject(status)
    net.loses = lambda data, number: short(data) == "ACK" and number < 8
    _, ear, _ = alice.call(bob)
    net.run(LONG_S)
    assert ear.told == [f"failed: {status}", "closed"]
    assert net.messages(bob.host).count(f"{status} INVITE") >= 2, "not repeated until its ACK came"
    assert alice.is_clean
    assert bob.is_clean


def test_no_ack_ends_the_call(net: Net, alice: Agent, bob: Agent) -> None:
    net.loses = lambda data, number: short(data) == "ACK"
    _, ear, _ = alice.call(bob)
    net.run(31)
    assert bob.ears[0].told == []
    net.run(LONG_S)
    assert bob.ears[0].told == ["hung up: no_ack", "closed"]
    assert ear.told == ["rings", "established", "hung up: caller_hung_up", "closed"]
    assert alice.is_clean
    assert bob.is_clean


def test_hung_up_before_the_ack_waits_for_it(net: Net, alice: Agent, bob: Agent) -> None:
    net.loses = lambda data, number: short(data) == "ACK" and net.now_s < 1_003
    alice.call(bob)
    net.run(1)
    bob.calls[0].hang_up("agent_hung_up")
    net.run(1)
    assert "BYE" not in net.messages(bob.host)
    net.run(LONG_S)
    assert net.messages(bob.host)[-1] == "BYE"
    assert bob.ears[0].told == ["closed"]
    assert alice.is_clean
    assert bob.is_clean


def test_hung_up_and_the_ack_never_comes(net: Net, alice: Agent, bob: Agent) -> None:
    net.loses = lambda data, number: short(data) == "ACK"
    alice.call(bob)
    net.run(1)
    bob.calls[0].hang_up("agent_hung_up")
    net.run(LONG_S)
    assert net.messages(bob.host)[-1] == "BYE"
    assert bob.is_clean


def test_a_bye_that_is_not_answered_is_given_up(net: Net, alice: Agent, bob: Agent) -> None:
    session, ear, _ = alice.call(bob)
    net.run(1)
    net.loses = lambda data, number: True
    session.hang_up()
    net.run(33)
    assert ear.told[-1] == "closed"
    assert net.messages(alice.host).count("BYE") == 11
    net.run(LONG_S)
    assert alice.is_clean


def test_an_answer_that_the_caller_cannot_take_ends_the_call(net: Net, alice: Agent, bob: Agent) -> None:
    bob.on_invite = lambda session, media: answers(session, BadAnswer())
    _, ear, _ = alice.call(bob)
    net.run(LONG_S)
    assert ear.told == ["rings", "failed: 488", "closed"]
    assert net.messages(alice.host) == ["INVITE", "ACK", "BYE"]
    assert alice.is_clean
    assert bob.is_clean


class BadAnswer(FakeMedia):
    def answer(self, offer_sdp: str) -> str:
        return "bad"


@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_two_hundred_calls_hung_up_at_any_moment_by_either_side_leave_nothing(loss: float) -> None:
    net, rng = Net(), random.Random(7)
    net.loses = lambda data, number: rng.random() < loss
    net.delay_s = lambda: rng.uniform(0.001, 0.2)
    alice, bob = Agent(net, "192.0.2.1"), Agent(net, "192.0.2.2")

    def answers_sometime(session: IncomingSession, media: FakeMedia) -> None:
        session.negotiate(media)
        session.ring(for_long=True)
        bob.ua.timers.after(rng.uniform(0, 1), session.accept)
        if rng.random() < 0.5:
            bob.ua.timers.after(rng.uniform(0, 2), session.hang_up)
        if rng.random() < 0.2:
            bob.ua.timers.after(rng.uniform(0, 1), lambda: session.reject(486))

    bob.on_invite = answers_sometime
    ears: list[Ear] = []
    for _ in range(200):
        session, ear, _ = alice.call(bob)
        ears.append(ear)
        alice.ua.timers.after(rng.uniform(0, 2), session.hang_up)
        if rng.random() < 0.3:
            alice.ua.timers.after(rng.uniform(0, 2), partial(session.reoffer, lambda outcome: None))
        net.run(0.02)
    net.run(2 * LONG_S)
    assert all(ear.told.count("closed") == 1 for ear in [*ears, *bob.ears])
    assert alice.is_clean
    assert bob.is_clean
