"""What a hostile peer may try at a user agent: to take what others need, to find out that it is there, to confuse."""

from __future__ import annotations

import pytest

from gateway.transports.sip.address import BadSyntax, parse_uri
from gateway.transports.sip.message import Request
from gateway.transports.sip.outgoing import MAX_OTHERS
from gateway.transports.sip.transaction import MAX_PER_CALL, Peer, TransactionsFull
from tests.gateway.transports.sip.sip_rig import SDP, Phone, answers, only_response, request, statuses
from tests.gateway.transports.sip.test_outgoing import Placed


@pytest.fixture
def phone() -> Phone:
    return Phone.make()


@pytest.mark.parametrize(
    "lines",
    [
        request("BYE", tag="guess"),
        request("INVITE", tag="guess"),
        request("OPTIONS", tag="guess"),
        request("CANCEL"),
        request("OPTIONS", "Max-Forwards: 1"),
        [line.replace("SIP/2.0", "SIP/7.0", 1) if at == 0 else line for at, line in enumerate(request("OPTIONS"))],
    ],
)
def test_to_who_may_ask_for_nothing_nobody_is_here(phone: Phone, lines: list[str]) -> None:
    assert phone.say(*lines)
    phone.agent.verdict = "drop"
    assert not phone.say(*lines)
    assert phone.agent.counted[-1] in {"sip_dropped", "sip_malformed"}


def test_new_calls_leave_room_for_the_ends_of_others() -> None:
    phone = Phone.make()
    phone.agent.on_invite = answers
    phone.agent.ua.transactions._limit = 40
    tag = phone.say(*request("INVITE", SDP), body="offer 1")[-1].to.tag
    phone.say(*request("ACK", tag=tag, branch="z9hG4bKb"))
    phone.agent.on_invite = None
    seen = [
        statuses(phone.say(*request("INVITE", SDP, branch=f"z9hG4bKx{number}", call_id=f"x{number}"), body="offer 1"))
        for number in range(60)
    ]
    assert seen[0] == [100]
    assert seen[-1] == [503]
    assert len(phone.agent.ua.transactions) <= 30
    assert statuses(phone.say(*request("BYE", tag=tag, seq=2, branch="z9hG4bKc"))) == [200]


def test_one_call_does_not_take_the_room_of_the_others_and_may_still_end(phone: Phone) -> None:
    phone.agent.on_invite = answers
    tag = phone.say(*request("INVITE", SDP), body="offer 1")[-1].to.tag
    phone.say(*request("ACK", tag=tag, branch="z9hG4bKb"))
    for number in range(2, MAX_PER_CALL + 50):
        phone.say(*request("INFO", tag=tag, seq=number, branch=f"z9hG4bKi{number}"))
    assert len(phone.agent.ua.transactions) == MAX_PER_CALL
    assert phone.agent.counted[-1] == "sip_transactions_full"
    end = phone.say(*request("BYE", tag=tag, seq=1_000, branch="z9hG4bKc"))
    assert statuses(end) == [200]
    phone.after(40)
    assert phone.agent.is_clean
    assert not phone.agent.ua.transactions._by_call


def test_a_cookie_with_nothing_behind_it_is_no_name_of_a_transaction(phone: Phone) -> None:
    """RFC 4475, 3.2.1: two requests of such a peer are two."""
    phone.agent.on_invite = answers
    for number in (1, 2):
        said = phone.say(*request("INVITE", SDP, branch="z9hG4bK", call_id=f"call-{number}"), body="offer 1")
        assert statuses(said) == [100, 180, 200]
    assert len(phone.agent.ua.sessions) == 2


def test_a_via_keeps_the_parameters_that_only_look_like_ours(phone: Phone) -> None:
    via = "Via: SIP/2.0/UDP 192.0.2.77;rportal=1;receivedby=2;rport;branch=z9hG4bKa"
    lines = [via if line.startswith("Via") else line for line in request("OPTIONS")]
    said = only_response(phone.say(*lines, source=Peer("udp", "192.0.2.9", 5099)))
    assert said.via.parameters == {
        "rportal": "1",
        "receivedby": "2",
        "rport": "5099",
        "branch": "z9hG4bKa",
        "received": "192.0.2.9",
    }


def test_who_answers_one_call_again_and_again_is_hung_up_a_few_times() -> None:
    placed = Placed()
    placed.reply("200 OK", body="answer 1")
    for number in range(3 * MAX_OTHERS):
        placed.reply("200 OK", tag=f"other-{number}", body="answer 2", of=0)
    assert placed.methods().count("BYE") == MAX_OTHERS
    assert placed.phone.agent.counted.count("sip_answers_dropped") == 2 * MAX_OTHERS


def test_an_answer_of_somebody_else_that_comes_again_is_hung_up_once() -> None:
    placed = Placed()
    placed.reply("200 OK", body="answer 1")
    for _ in range(5):
        placed.reply("200 OK", tag="other", body="answer 2", contact="<sip:c@192.0.2.10>", of=0)
    assert placed.methods() == ["INVITE", "ACK", *["ACK", "BYE"], *["ACK"] * 4]


@pytest.mark.parametrize("odd", ["\x00", "\x0b", "\x1f", "\x7f", "\n", "\r"])
def test_what_would_stand_in_our_own_requests_has_no_control_characters(phone: Phone, odd: str) -> None:
    with pytest.raises(BadSyntax):
        parse_uri(f"tel:+1555{odd}")
    contact = f"<sip:c@192.0.2.9;x=1{odd}2>"
    assert statuses(phone.say(*request("INVITE", SDP, contact=contact), body="offer 1"))[-1] == 400
    assert not phone.agent.ua.sessions


def test_a_layer_that_is_full_says_so(phone: Phone) -> None:
    layer = phone.agent.ua.transactions
    layer._limit = 1
    asked = Request(method="BYE")
    for line in request("BYE", branch="z9hG4bKq")[1:]:
        name, _, value = line.partition(": ")
        asked.headers.add(name.lower(), value)
    layer.begin_server(asked, phone.source)
    with pytest.raises(TransactionsFull):
        layer.begin_server(asked, phone.source)
