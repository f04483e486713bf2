"""REFER in a call that is up: a transfer that is taken, refused, or of which no more is heard."""

from __future__ import annotations

import pytest

from gateway.transports.sip.asking import Outcome
from gateway.transports.sip.message import Request, parse
from tests.gateway.transports.sip.sip_rig import (
    Phone,
    only_response,
    reply,
    request,
    up,
)

LONG_S = 200.0


@pytest.fixture
def phone() -> Phone:
    return Phone.make()


def refer(phone: Phone) -> tuple[str, list[Outcome], Request]:
    tag = up(phone)
    outcomes: list[Outcome] = []
    before = len(phone.agent.net.log)
    phone.agent.calls[0].refer("sip:sales@192.0.2.9", outcomes.append)
    sent = parse(phone.agent.net.log[before][2])
    assert isinstance(sent, Request)
    return tag, outcomes, sent


def notify(phone: Phone, tag: str, seq: int, frag: str, state: str = "active", event: str = "refer") -> int:
    asked = request(
        "NOTIFY",
        f"Event: {event}",
        f"Subscription-State: {state}",
        "Content-Type: message/sipfrag;version=2.0",
        tag=tag,
        seq=seq,
        branch=f"z9hG4bKn{seq}",
    )
    return only_response(phone.say(*asked, body=frag)).status


def test_a_transfer_that_is_taken(phone: Phone) -> None:
    tag, outcomes, sent = refer(phone)
    assert sent.method == "REFER"
    assert sent.headers.get("refer-to") == "<sip:sales@192.0.2.9>"
    assert sent.headers.get("referred-by") == "<sip:desk@192.0.2.1>"
    reply(phone, sent, "202 Accepted")
    assert notify(phone, tag, 2, "SIP/2.0 100 Trying\r\n") == 200
    assert outcomes == []
    assert notify(phone, tag, 3, "SIP/2.0 200 OK\r\n", "terminated;reason=noresource") == 200
    assert outcomes == [Outcome(200, "OK")]
    assert notify(phone, tag, 4, "SIP/2.0 200 OK\r\n", "terminated") == 200
    assert len(outcomes) == 1


def test_the_notify_may_be_first(phone: Phone) -> None:
    tag, outcomes, _ = refer(phone)
    notify(phone, tag, 2, "SIP/2.0 486 Busy Here", "terminated")
    assert outcomes == [Outcome(486, "Busy Here")]


def test_a_transfer_that_is_refused(phone: Phone) -> None:
    _, outcomes, sent = refer(phone)
    reply(phone, sent, "603 Decline")
    assert outcomes == [Outcome(603, "Decline")]
    assert not phone.agent.calls[0].over


@pytest.mark.parametrize("accepted", [True, False])
def test_the_peer_hangs_up_during_a_transfer(phone: Phone, accepted: bool) -> None:
    tag, outcomes, sent = refer(phone)
    if accepted:
        reply(phone, sent, "202 Accepted")
    phone.say(*request("BYE", tag=tag, seq=2, branch="z9hG4bKc"))
    assert [outcome.status for outcome in outcomes] == [200 if accepted else 487]


def test_a_transfer_of_which_no_more_is_heard(phone: Phone) -> None:
    tag, outcomes, sent = refer(phone)
    reply(phone, sent, "202 Accepted")
    notify(phone, tag, 2, "nonsense", "terminated")
    assert [outcome.status for outcome in outcomes] == [500]
    assert notify(phone, tag, 3, "SIP/2.0 200 OK", event="message-summary") == 489


def test_a_transfer_takes_so_long_at_most_and_there_is_one_at_a_time(phone: Phone) -> None:
    _, outcomes, sent = refer(phone)
    phone.agent.calls[0].refer("sip:other@192.0.2.9", outcomes.append)
    assert [outcome.status for outcome in outcomes] == [491]
    reply(phone, sent, "202 Accepted")
    phone.after(46)
    assert [outcome.status for outcome in outcomes] == [491, 408]


def test_a_transfer_that_nobody_answers(phone: Phone) -> None:
    _, outcomes, _ = refer(phone)
    phone.after(33)
    assert [outcome.status for outcome in outcomes] == [408]
