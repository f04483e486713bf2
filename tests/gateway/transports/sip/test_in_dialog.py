"""What happens in a call that is up: hold, late offers, session timers, keys."""

from __future__ import annotations

import pytest

from gateway.transports.sip.asking import Outcome
from gateway.transports.sip.incoming import IncomingSession
from gateway.transports.sip.message import Request, parse
from gateway.transports.sip.outgoing import OutgoingSession
from tests.gateway.transports.sip.sip_rig import (
    SDP,
    Agent,
    Ear,
    FakeMedia,
    Net,
    Phone,
    answers,
    only_response,
    reply,
    request,
    statuses,
    up,
)

LONG_S = 200.0


class Call:
    """Alice called Bob."""

    def __init__(self, session_expires_s: int = 0) -> None:
        self.net = Net()
        self.alice = Agent(self.net, "192.0.2.1", session_expires_s=session_expires_s)
        self.bob = Agent(self.net, "192.0.2.2", on_invite=answers, session_expires_s=session_expires_s)
        self.session: OutgoingSession
        self.session, self.ear, self.media = self.alice.call(self.bob)
        self.net.run(1)
        self.theirs: IncomingSession = self.bob.calls[0]
        self.their_ear: Ear = self.bob.ears[0]
        self.their_media: FakeMedia = self.bob.media[0]
        self.outcomes: list[Outcome] = []

    def sent_by_alice(self) -> list[str]:
        return self.net.messages(self.alice.host)

    def last(self, host: str, method: str) -> Request:
        found = [parse(data) for _, source, data in self.net.log if source == host]
        return next(one for one in reversed(found) if isinstance(one, Request) and one.method == method)

    def ends_clean(self) -> None:
        self.session.hang_up()
        self.net.run(LONG_S)
        assert self.alice.is_clean
        assert self.bob.is_clean


def test_hold_and_back() -> None:
    call = Call()
    call.media.words = " hold"
    call.session.reoffer(call.outcomes.append)
    call.net.run(1)
    assert call.their_ear.told[-1] == "held"
    call.media.words = ""
    call.session.reoffer(call.outcomes.append)
    call.net.run(1)
    assert call.their_ear.told[-1] == "taken back"
    assert call.outcomes == [Outcome(200), Outcome(200)]
    call.ends_clean()


def test_who_was_called_holds_too() -> None:
    call = Call()
    call.their_media.words = " hold"
    call.theirs.reoffer(call.outcomes.append)
    call.net.run(1)
    assert call.ear.told[-1] == "held"
    assert call.outcomes == [Outcome(200)]
    call.ends_clean()


def test_an_offer_that_will_not_do_changes_nothing() -> None:
    call = Call()
    call.media.words = " bad"
    call.session.reoffer(call.outcomes.append)
    call.net.run(1)
    assert call.outcomes == [Outcome(488, "Not Acceptable Here")]
    assert not call.session.over
    assert call.their_media.heard == ["offer 1"]
    call.ends_clean()


def test_offers_that_cross_are_made_again_one_after_the_other() -> None:
    call = Call()
    call.session.reoffer(call.outcomes.append)
    call.theirs.reoffer(call.outcomes.append)
    call.net.run(0.5)
    assert call.net.messages(call.bob.host).count("491 INVITE") == 1
    assert call.net.messages(call.alice.host).count("491 INVITE") == 1
    call.net.run(10)
    assert call.outcomes == [Outcome(200), Outcome(200)]
    call.ends_clean()


def test_a_second_offer_waits_for_nothing_but_is_refused_here() -> None:
    call = Call()
    call.session.reoffer(call.outcomes.append)
    call.session.reoffer(call.outcomes.append)
    assert call.outcomes == [Outcome(491, "another offer is open")]
    call.ends_clean()


def test_offers_that_cross_for_ever_are_given_up() -> None:
    call = Call()
    call.theirs._offering = True  # and never done
    call.session.reoffer(call.outcomes.append)
    call.net.run(60)
    assert call.outcomes == [Outcome(491, "Request Pending")]
    call.theirs._offering = False
    call.ends_clean()


def test_hung_up_while_an_offer_is_open() -> None:
    call = Call()
    call.session.reoffer(call.outcomes.append)
    call.session.hang_up()
    call.net.run(LONG_S)
    assert call.outcomes == [Outcome(487)]
    assert call.alice.is_clean
    assert call.bob.is_clean


def test_an_offer_that_nobody_answers_ends_the_call() -> None:
    call = Call()
    call.net.loses = lambda data, number: True
    call.session.reoffer(call.outcomes.append)
    call.net.run(LONG_S)
    assert call.outcomes == [Outcome(408)]
    assert call.ear.told[-2:] == ["hung up: connection_lost", "closed"]
    assert call.alice.is_clean


def test_a_dialog_that_the_other_side_lost_is_ended() -> None:
    call = Call()
    call.theirs.close()
    call.session.reoffer(call.outcomes.append)
    call.net.run(1)
    assert call.outcomes == [Outcome(481, "Call/Transaction Does Not Exist")]
    assert call.ear.told[-2:] == ["hung up: connection_lost", "closed"]


def test_an_answer_that_will_not_do_ends_the_call() -> None:
    call = Call()
    call.their_media.answer = lambda offer_sdp: "bad"  # type: ignore[method-assign]
    call.session.reoffer(call.outcomes.append)
    call.net.run(1)
    assert [outcome.status for outcome in call.outcomes] == [488]
    assert call.ear.told[-2:] == ["hung up: bad_media", "closed"]


def test_a_key_by_info_is_told_and_answered() -> None:
    call = Call()
    call.session.inform("#", call.outcomes.append)
    call.net.run(1)
    assert call.their_ear.told[-1] == "key #"
    assert call.outcomes == [Outcome(200, "OK")]
    call.net.loses = lambda data, number: True
    call.session.inform("1", call.outcomes.append)
    call.net.run(33)
    assert call.outcomes[-1] == Outcome(408)


def test_a_reinvite_on_the_way_while_we_hang_up_is_of_no_call() -> None:
    call = Call()
    call.theirs.hang_up()
    call.session.reoffer(call.outcomes.append)
    call.net.run(1)
    assert call.outcomes == [Outcome(481, "Call/Transaction Does Not Exist")] or call.outcomes[0].status == 487


def test_provisional_answers_to_an_offer_or_a_refresh_are_waited_through() -> None:
    phone = Phone.make(session_expires_s=1_800)
    tag = up(phone, "Supported: timer", "Session-Expires: 600;refresher=uas", "Allow: INVITE, UPDATE")
    (update,) = phone.after(300.2)
    assert isinstance(update, Request)
    assert update.method == "UPDATE"
    reply(phone, update, "100 Trying")
    reply(phone, update, "200 OK")
    outcomes: list[Outcome] = []
    before = len(phone.agent.net.log)
    phone.agent.calls[0].reoffer(outcomes.append)
    invite = parse(phone.agent.net.log[before][2])
    assert isinstance(invite, Request)
    reply(phone, invite, "180 Ringing")
    assert outcomes == []
    (again,) = [
        message for message in phone.after(300.2) if isinstance(message, Request) and message.method == "UPDATE"
    ]
    assert again.cseq[0] > update.cseq[0], "without Session-Expires in the answer it is refreshed all the same"
    phone.say(*request("BYE", tag=tag, seq=2, branch="z9hG4bKz"))
    phone.after(LONG_S)
    assert phone.agent.is_clean


def ringing_offer(phone: Phone) -> tuple[str, list[Outcome], Request]:
    """An offer of ours that got a 180, and no more."""
    tag = up(phone)
    outcomes: list[Outcome] = []
    before = len(phone.agent.net.log)
    phone.agent.calls[0].reoffer(outcomes.append)
    invite = parse(phone.agent.net.log[before][2])
    assert isinstance(invite, Request)
    reply(phone, invite, "180 Ringing")
    return tag, outcomes, invite


def test_an_offer_that_rings_for_ever_is_taken_back_and_the_next_may_be_made(phone: Phone) -> None:
    _, outcomes, invite = ringing_offer(phone)
    assert phone.after(31.9) == []
    reply(phone, invite, "180 Ringing")
    (cancel,) = phone.after(0.2)
    assert isinstance(cancel, Request)
    assert (cancel.method, cancel.cseq, cancel.via.branch) == ("CANCEL", (invite.cseq[0], "CANCEL"), invite.via.branch)
    reply(phone, cancel, "200 OK")
    reply(phone, invite, "487 Request Terminated")
    assert outcomes == [Outcome(487, "Request Terminated")]
    phone.agent.calls[0].reoffer(outcomes.append)
    assert phone.agent.net.messages("192.0.2.1")[-2:] == ["ACK", "INVITE"]
    assert not phone.agent.calls[0].over


def test_an_offer_of_which_no_more_is_heard_is_given_up_and_the_call_goes_on(phone: Phone) -> None:
    _, outcomes, _ = ringing_offer(phone)
    phone.after(70)
    assert outcomes == [Outcome(408)]
    assert phone.agent.ears[0].told == ["established"]
    phone.agent.calls[0].reoffer(outcomes.append)
    assert phone.agent.net.messages("192.0.2.1")[-1] == "INVITE"


@pytest.mark.parametrize("theirs", [True, False])
def test_a_call_that_ends_while_an_offer_of_ours_rings_leaves_nothing(phone: Phone, theirs: bool) -> None:
    tag, outcomes, _ = ringing_offer(phone)
    if theirs:
        phone.say(*request("BYE", tag=tag, seq=2, branch="z9hG4bKz"))
    else:
        phone.agent.calls[0].hang_up()
    phone.after(LONG_S)
    assert outcomes == [Outcome(408)]
    assert phone.agent.is_clean
    assert "CANCEL" not in phone.agent.net.messages("192.0.2.1")


@pytest.mark.parametrize("update", [True, False])
def test_the_caller_refreshes_at_half_of_the_interval(update: bool) -> None:
    call = Call(session_expires_s=1_800)
    if not update:
        call.session.peer_allows = frozenset({"invite"})
    call.net.run(890)
    assert call.sent_by_alice() == ["INVITE", "ACK"]
    call.net.run(20)
    assert call.sent_by_alice()[2:] == (["UPDATE"] if update else ["INVITE", "ACK"])
    call.net.run(900)
    assert call.sent_by_alice().count("UPDATE" if update else "INVITE") == (2 if update else 3)
    assert not call.session.over
    assert not call.theirs.over
    call.ends_clean()


def test_a_peer_that_does_not_refresh_is_gone() -> None:
    call = Call(session_expires_s=1_800)
    call.session.timed.stop("refresh")
    call.net.run(1_766)
    assert not call.theirs.over
    call.net.run(3)
    assert call.their_ear.told[-2:] == ["hung up: connection_lost", "closed"]
    assert call.ear.told[-2:] == ["hung up: caller_hung_up", "closed"]


@pytest.mark.parametrize("update", [True, False])
def test_a_refresh_that_nobody_answers_ends_the_call(update: bool) -> None:
    call = Call(session_expires_s=1_800)
    if not update:
        call.session.peer_allows = frozenset({"invite"})
    call.net.loses = lambda data, number: True
    call.net.run(2_000)
    assert call.ear.told[-2:] == ["hung up: connection_lost", "closed"]
    assert call.their_ear.told[-2:] == ["hung up: connection_lost", "closed"]
    assert call.alice.is_clean
    assert call.bob.is_clean


def test_a_refused_refresh_is_tried_again_and_an_unknown_call_is_over() -> None:
    call = Call(session_expires_s=1_800)
    call.theirs._offering = True
    call.net.run(910)
    assert call.net.messages(call.bob.host)[-1] == "491 UPDATE"
    call.theirs._offering = False
    call.net.run(230)
    assert call.net.messages(call.bob.host)[-1] == "200 UPDATE"
    call.theirs.close()
    call.net.run(901)
    assert call.ear.told[-2:] == ["hung up: connection_lost", "closed"]


# --- a peer that writes by hand -------------------------------------------------------------------------------------


@pytest.fixture
def phone() -> Phone:
    return Phone.make()


def test_late_offer(phone: Phone) -> None:
    phone.agent.on_invite = answers
    said = phone.say(*request("INVITE"))
    assert said[-1].body == b"offer 1"
    tag = said[-1].to.tag
    assert phone.agent.ears[0].told == []
    phone.say(*request("ACK", SDP, tag=tag, branch="z9hG4bKb"), body="answer 1")
    assert phone.agent.ears[0].told == ["established"]
    assert phone.agent.media[0].heard == ["answer 1"]


@pytest.mark.parametrize("body", ["", "bad"])
def test_a_late_offer_without_a_good_answer_ends_the_call(phone: Phone, body: str) -> None:
    phone.agent.on_invite = answers
    tag = phone.say(*request("INVITE"))[-1].to.tag
    said = phone.say(*request("ACK", *([SDP] if body else []), tag=tag, branch="z9hG4bKb"), body=body)
    assert statuses(said) == ["BYE"]
    assert phone.agent.ears[0].told == ["hung up: bad_media"]


def test_a_reinvite_without_an_offer_gets_ours(phone: Phone) -> None:
    tag = up(phone)
    said = phone.say(*request("INVITE", tag=tag, seq=2, branch="z9hG4bKc"))
    assert said[-1].body == b"offer 1"
    phone.say(*request("ACK", SDP, tag=tag, seq=2, branch="z9hG4bKd"), body="answer hold")
    assert phone.agent.ears[0].told == ["established", "held"]


def test_update_offers_and_refreshes(phone: Phone) -> None:
    tag = up(phone)
    said = phone.say(*request("UPDATE", SDP, tag=tag, seq=2, branch="z9hG4bKc"), body="offer hold")
    assert only_response(said).body == b"answer to offer hold"
    said = phone.say(*request("UPDATE", tag=tag, seq=3, branch="z9hG4bKd"))
    assert only_response(said).body == b""
    assert phone.agent.ears[0].told == ["established", "held"]


@pytest.mark.parametrize(
    ("extra", "body", "status"),
    [
        ((SDP,), "bad", 488),
        (("Content-Type: text/plain",), "x", 415),
        (("Session-Expires: 30", "Supported: timer"), "", 422),
        (("Content-Type: application/sdp", "Content-Encoding: gzip"), "x", 415),
    ],
)
def test_a_bad_update_leaves_the_call_as_it_was(phone: Phone, extra: tuple[str, ...], body: str, status: int) -> None:
    tag = up(phone)
    response = only_response(phone.say(*request("UPDATE", *extra, tag=tag, seq=2, branch="z9hG4bKc"), body=body))
    assert response.status == status
    assert phone.agent.ears[0].told == ["established"]


def test_a_bad_contact_is_refused_and_the_old_one_kept(phone: Phone) -> None:
    tag = up(phone)
    asked = request("UPDATE", tag=tag, seq=2, branch="z9hG4bKc", contact="<tel:+15551234>")
    assert only_response(phone.say(*asked)).status == 400
    assert phone.agent.calls[0].dialog.target == "sip:caller@192.0.2.9"


def test_a_second_offer_while_one_waits_for_its_ack(phone: Phone) -> None:
    tag = up(phone)
    phone.say(*request("INVITE", SDP, tag=tag, seq=2, branch="z9hG4bKc"), body="offer 2")
    response = only_response(phone.say(*request("UPDATE", SDP, tag=tag, seq=3, branch="z9hG4bKd"), body="offer 3"))
    assert response.status == 500
    assert 0 <= int(response.headers.get("retry-after")) < 10


def test_requests_out_of_order(phone: Phone) -> None:
    tag = up(phone)
    phone.say(*request("OPTIONS", tag=tag, seq=5, branch="z9hG4bKc"))
    assert only_response(phone.say(*request("INFO", tag=tag, seq=5, branch="z9hG4bKd"))).status == 500
    assert only_response(phone.say(*request("BYE", tag=tag, seq=4, branch="z9hG4bKe"))).status == 500
    assert only_response(phone.say(*request("BYE", tag=tag, seq=6, branch="z9hG4bKf"))).status == 200


@pytest.mark.parametrize(
    ("kind", "body", "told"),
    [
        ("application/dtmf-relay", "Signal=5\r\nDuration=160\r\n", ["key 5"]),
        ("application/dtmf-relay", "Signal= #\r\nDuration= 160", ["key #"]),
        ("application/dtmf-relay", "Duration=90\r\nsignal=11", ["key #"]),
        ("Application/DTMF-Relay;charset=utf-8", "Signal=10", ["key *"]),
        ("application/dtmf", "7", ["key 7"]),
        ("application/dtmf", " a \r\n", ["key A"]),
    ],
)
def test_keys_by_info(phone: Phone, kind: str, body: str, told: list[str]) -> None:
    tag = up(phone)
    asked = request("INFO", f"Content-Type: {kind}", tag=tag, seq=2, branch="z9hG4bKc")
    assert only_response(phone.say(*asked, body=body)).status == 200
    assert only_response(phone.say(*asked, body=body)).status == 200
    assert phone.agent.ears[0].told == ["established", *told], "a repeated INFO is one key"


@pytest.mark.parametrize(
    ("extra", "body", "status"),
    [
        (("Content-Type: application/dtmf-relay",), "Signal=55", 400),
        (("Content-Type: application/dtmf-relay",), "", 200),
        (("Content-Type: application/dtmf",), "\xff", 400),
        (("Content-Type: application/media_control+xml",), "<x/>", 415),
        (("Info-Package: g.example",), "", 469),
    ],
)
def test_info_that_is_no_key(phone: Phone, extra: tuple[str, ...], body: str, status: int) -> None:
    tag = up(phone)
    assert only_response(phone.say(*request("INFO", *extra, tag=tag, seq=2, branch="z9hG4bKc"), body=body)).status == (
        status
    )
    assert phone.agent.ears[0].told == ["established"]


def test_what_is_not_done_in_a_call(phone: Phone) -> None:
    tag = up(phone)
    refer = only_response(phone.say(*request("REFER", "Refer-To: <sip:x@y>", tag=tag, seq=2, branch="z9hG4bKc")))
    assert refer.status == 405
    assert "REFER" not in refer.headers.get("allow")
    assert only_response(
        phone.say(*request("PRACK", "RAck: 1 1 INVITE", tag=tag, seq=3, branch="z9hG4bKd"))
    ).status == (481)
    assert only_response(phone.say(*request("OPTIONS", tag=tag, seq=4, branch="z9hG4bKe"))).status == 200
    required = request("INFO", "Require: precondition, timer", tag=tag, seq=5, branch="z9hG4bKf")
    refused = only_response(phone.say(*required))
    assert refused.status == 420
    assert refused.headers.get("unsupported") == "precondition"


def test_a_dialog_is_known_by_both_tags(phone: Phone) -> None:
    tag = up(phone)
    for other in ({"tag": "no"}, {"tag": tag, "from_tag": "no"}, {"tag": tag, "call_id": "no"}):
        asked = request("BYE", seq=2, branch="z9hG4bKc", **other)
        assert only_response(phone.say(*asked)).status == 481
    assert phone.agent.ears[0].told == ["established"]
