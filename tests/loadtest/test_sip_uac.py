"""The caller's signalling without sockets or time."""

from __future__ import annotations

import itertools

import pytest

from loadtest.call import EndCause
from loadtest.sip.digest import Credentials
from loadtest.sip.message import BadMessage, SipMessage, SipUri, parse_message, serialise
from loadtest.sip.sdp import NoMedia
from loadtest.sip.uac import ANSWER_S, RING_S, SipCaller, State


class FakePhone:
    def __init__(self) -> None:
        self.heard: list[str] = []
        self.refuses = False

    def answered(self, sdp: str) -> None:
        self.heard.append(sdp)
        if self.refuses:
            raise NoMedia("no")

    def describe(self, offer: str | None) -> str:
        if offer == "bad":
            raise NoMedia("no")
        return "our offer" if offer is None else f"answer to {offer}"

    def updated(self, sdp: str) -> None:
        self.heard.append(f"updated {sdp}")

    def referred(self, target: str) -> None:
        self.heard.append(f"refer {target}")


class Rig:
    """A caller whose clock is moved by hand."""

    def __init__(self, transport: str = "UDP", credentials: Credentials | None = None) -> None:
        self.phone = FakePhone()
        names = (f"t{number}" for number in itertools.count())
        target = SipUri("desk", "pbx.example", 5070)
        self.caller = SipCaller(
            target,
            ("10.0.0.1", 6000),
            self.phone,
            transport=transport,
            token=lambda: next(names),
            caller="me",
            credentials=credentials,
        )
        self.now_s = 0.0
        self.caller.invite(0.0)
        self.invite = self.sent()[0]

    def sent(self) -> list[SipMessage]:
        out = [parse_message(data) for data in self.caller.outbox]
        self.caller.outbox.clear()
        return out

    def until(self, at_s: float) -> list[tuple[float, SipMessage]]:
        """What is sent by timers up to a moment."""
        out = []
        while self.caller.next_s is not None and self.caller.next_s <= at_s:
            self.now_s = self.caller.next_s
            self.caller.tick(self.now_s)
            out += [(self.now_s, message) for message in self.sent()]
        self.now_s = at_s
        return out

    def respond(self, to: SipMessage, status: str, *extra: tuple[str, str], body: str = "") -> list[SipMessage]:
        headers = [("Via", via) for via in to.all("via")]
        headers += [("From", to.first("from")), ("To", to.first("to") + ";tag=them")]
        headers += [("Call-ID", to.first("call-id")), ("CSeq", to.first("cseq"))]
        headers += [("Contact", "<sip:desk@10.0.0.2:5080>"), ("Record-Route", "<sip:p1;lr>, <sip:p2;lr>"), *extra]
        self.caller.receive(serialise(f"SIP/2.0 {status}", headers, body), self.now_s)
        return self.sent()

    def ask(
        self, method: str, number: int, body: str = "", branch: str = "z9hG4bKx", tag: str = "t1"
    ) -> list[SipMessage]:
        headers = [("Via", f"SIP/2.0/UDP h;branch={branch}{number}"), ("From", "<sip:desk@h>;tag=them")]
        headers += [("To", f"<sip:me@h>;tag={tag}"), ("Call-ID", "t0"), ("CSeq", f"{number} {method}")]
        self.caller.receive(serialise(f"{method} sip:me@h SIP/2.0", headers, body), self.now_s)
        return self.sent()


def test_an_invite_is_sent_again_at_doubling_intervals_and_given_up() -> None:
    rig = Rig()
    sent = rig.until(60)
    assert [at for at, _ in sent] == [0.5, 1.5, 3.5, 7.5]
    assert {message.branch for _, message in sent} == {rig.invite.branch}
    assert rig.caller.over is not None
    assert (rig.caller.over.cause, rig.now_s) == (EndCause.REFUSED, 60)
    assert rig.caller.state is State.OVER


def test_over_tcp_nothing_is_sent_again() -> None:
    rig = Rig("TCP")
    assert rig.until(ANSWER_S - 1) == []
    assert rig.invite.first("via").startswith("SIP/2.0/TCP 10.0.0.1:6000;")
    assert rig.invite.first("contact") == "<sip:me@10.0.0.1:6000;transport=tcp>"


def test_what_rings_too_long_is_cancelled() -> None:
    rig = Rig()
    rig.respond(rig.invite, "180 Ringing")
    assert rig.until(RING_S - 1) == []
    ((_, cancel),) = rig.until(RING_S)
    assert (cancel.method, cancel.branch, cancel.cseq) == ("CANCEL", rig.invite.branch, (1, "CANCEL"))
    assert cancel.first("to") == rig.invite.first("to")
    rig.respond(cancel, "200 OK")
    (ack,) = rig.respond(rig.invite, "487 Request Terminated")
    assert (ack.method, ack.branch) == ("ACK", rig.invite.branch)
    assert rig.caller.over is not None
    assert "rang for" in (rig.caller.over.problem or "")


def test_an_answer_that_names_no_media_means_those_of_the_183_before_it() -> None:
    rig = Rig()
    assert rig.respond(rig.invite, "183 Session Progress", body="early sdp") == []
    rig.respond(rig.invite, "180 Ringing")
    assert rig.phone.heard == []
    (ack,) = rig.respond(rig.invite, "200 OK")
    assert (ack.method, rig.phone.heard) == ("ACK", ["early sdp"])


def test_an_acknowledgement_takes_the_route_and_is_repeated_with_the_answer() -> None:
    rig = Rig()
    (ack,) = rig.respond(rig.invite, "200 OK", body="their sdp")
    assert ack.start == "ACK sip:desk@10.0.0.2:5080 SIP/2.0"
    assert ack.all("route") == ["<sip:p2;lr>", "<sip:p1;lr>"]
    assert ack.branch != rig.invite.branch
    assert rig.phone.heard == ["their sdp"]
    assert rig.respond(rig.invite, "200 OK", body="their sdp") == [ack]
    assert rig.phone.heard == ["their sdp"]
    assert rig.until(100) == []


def test_a_hang_up_is_sent_again_until_it_is_confirmed_or_nobody_does() -> None:
    rig, deaf = Rig(), Rig()
    for each in (rig, deaf):
        each.respond(each.invite, "200 OK")
        each.caller.hang_up(0.0)
    (bye,) = rig.sent()
    assert (bye.method, bye.cseq, bye.all("route")) == ("BYE", (2, "BYE"), ["<sip:p2;lr>", "<sip:p1;lr>"])
    assert [at for at, _ in rig.until(2)] == [0.5, 1.5]
    rig.respond(bye, "200 OK")
    assert (rig.caller.state, rig.caller.failure, rig.caller.next_s) == (State.OVER, None, None)
    deaf.until(60)
    assert (deaf.caller.state, deaf.caller.failure) == (State.OVER, "the server did not confirm the hang-up")


def test_who_hangs_up_before_any_response_cancels_once_there_is_one() -> None:
    rig = Rig()
    rig.caller.hang_up(0.0)
    assert rig.sent() == []
    (cancel,) = rig.respond(rig.invite, "100 Trying")
    assert cancel.method == "CANCEL"
    assert rig.respond(rig.invite, "180 Ringing") == []


def test_who_hangs_up_while_it_is_answered_says_bye() -> None:
    rig = Rig()
    rig.respond(rig.invite, "180 Ringing")
    rig.caller.hang_up(0.0)
    rig.sent()
    ack, bye = rig.respond(rig.invite, "200 OK", body="their sdp")
    assert (ack.method, bye.method) == ("ACK", "BYE")
    assert rig.phone.heard == []


def test_an_answer_without_usable_media_is_hung_up() -> None:
    rig = Rig()
    rig.phone.refuses = True
    ack, bye = rig.respond(rig.invite, "200 OK")
    rig.respond(bye, "200 OK")
    assert ack.method == "ACK"
    assert rig.caller.over is not None
    assert rig.caller.over.cause is EndCause.NO_MEDIA


def test_a_reliable_response_is_acknowledged_once() -> None:
    rig = Rig()
    extra = (("Require", "100rel"), ("RSeq", "5"))
    (prack,) = rig.respond(rig.invite, "183 Session Progress", *extra, body="early sdp")
    assert (prack.method, prack.first("rack"), prack.cseq) == ("PRACK", "5 1 INVITE", (2, "PRACK"))
    assert rig.respond(rig.invite, "183 Session Progress", *extra, body="early sdp") == []
    rig.respond(prack, "200 OK")
    (ack,) = rig.respond(rig.invite, "200 OK")
    assert ack.cseq == (1, "ACK")
    assert rig.phone.heard == ["early sdp"]


def up() -> Rig:
    rig = Rig()
    rig.respond(rig.invite, "200 OK", body="their sdp")
    return rig


def test_the_answer_to_a_new_offer_is_repeated_until_it_is_acknowledged() -> None:
    rig = up()
    (ok,) = rig.ask("INVITE", 7, "new")
    assert (ok.status, ok.body) == (200, "answer to new")
    assert [message for _, message in rig.until(1)] == [ok]
    rig.ask("ACK", 7, branch="z9hG4bKother")
    assert rig.until(100) == []


def test_requests_that_come_twice_late_or_for_nobody() -> None:
    rig = up()
    first = rig.ask("INFO", 7)
    assert rig.ask("INFO", 7) == first
    assert [message.status for message in first] == [200]
    assert rig.ask("INFO", 6, branch="z9hG4bKlate")[0].status == 500
    assert rig.ask("INFO", 8, tag="other")[0].status == 481
    assert rig.ask("INVITE", 9, "bad")[0].status == 488
    assert rig.ask("PUBLISH", 10)[0].status == 405
    assert rig.ask("BYE", 11)[0].status == 200
    assert rig.caller.over is not None
    assert rig.caller.over.cause is EndCause.AGENT_HANGUP
    assert rig.ask("BYE", 11)[0].status == 200


def test_responses_of_other_calls_are_nothing_to_us() -> None:
    rig = Rig()
    headers = [("Via", f"SIP/2.0/UDP h;branch={rig.invite.branch}"), ("Call-ID", "other"), ("CSeq", "1 INVITE")]
    rig.caller.receive(serialise("SIP/2.0 486 Busy Here", headers), 0.0)
    assert rig.sent() == []
    assert rig.caller.state is State.CALLING
    rig.caller.receive(b"\r\n\r\n", 0.0)
    with pytest.raises(BadMessage):
        rig.caller.receive(b"what", 0.0)


def test_refusals_that_say_when_to_come_again() -> None:
    rig = Rig()
    rig.respond(rig.invite, "503 Service Unavailable", ("Retry-After", "30"))
    assert rig.caller.over is not None
    assert rig.caller.over.cause is EndCause.BUSY
    assert "(again in 30 s)" in (rig.caller.over.problem or "")


def test_hold_is_an_invite_in_the_call_and_its_answer_is_acknowledged() -> None:
    rig = up()
    rig.caller.offer(5.0)
    (offer,) = rig.sent()
    assert (offer.start, offer.cseq, offer.body) == (
        "INVITE sip:desk@10.0.0.2:5080 SIP/2.0",
        (2, "INVITE"),
        "our offer",
    )
    assert offer.all("route") == ["<sip:p2;lr>", "<sip:p1;lr>"]
    assert rig.respond(offer, "100 Trying") == []
    (ack,) = rig.respond(offer, "200 OK", body="held")
    assert (ack.method, ack.cseq[0], ack.branch == offer.branch) == ("ACK", 2, False)
    assert rig.phone.heard[-1] == "updated held"
    assert rig.respond(offer, "200 OK", body="held") == [ack]
    assert rig.until(100) == []
    assert rig.caller.state is State.UP


def test_a_second_change_waits_for_the_first_and_only_the_last_is_told() -> None:
    rig = up()
    rig.caller.offer(0.0)
    (first,) = rig.sent()
    rig.caller.offer(0.1)
    rig.caller.offer(0.2)
    assert rig.sent() == []
    ack, second = rig.respond(first, "200 OK", body="held")
    assert (ack.method, second.method, second.cseq[0]) == ("ACK", "INVITE", 3)
    assert [message.method for message in rig.respond(second, "200 OK")] == ["ACK"]


def test_offers_that_cross_are_refused_and_made_again_after_a_while() -> None:
    rig = up()
    rig.caller.offer(0.0)
    (offer,) = rig.sent()
    assert [message.status for message in rig.ask("INVITE", 7, "theirs")] == [491]
    (ack,) = rig.respond(offer, "491 Request Pending")
    assert (ack.method, ack.branch) == ("ACK", offer.branch)
    rig.ask("ACK", 7)
    (ok,) = rig.ask("INVITE", 8, "theirs", branch="z9hG4bKnext")
    assert (ok.status, ok.body) == (200, "answer to theirs")
    rig.ask("ACK", 8, branch="z9hG4bKthird")
    ((at_s, again),) = rig.until(4.0)[:1]
    assert (again.method, again.body) == ("INVITE", "our offer")
    assert 2.1 <= at_s <= 4.0
    rig.respond(again, "200 OK")


def test_a_hold_that_is_refused_leaves_the_call_as_it_was() -> None:
    rig = up()
    rig.caller.offer(0.0)
    (offer,) = rig.sent()
    (ack,) = rig.respond(offer, "488 Not Acceptable Here")
    assert (ack.method, ack.branch) == ("ACK", offer.branch)
    assert rig.caller.state is State.UP
    assert rig.until(100) == []


@pytest.mark.parametrize("answer", ["481 Call/Transaction Does Not Exist", None])
def test_a_hold_that_the_other_end_knows_nothing_of_ends_the_call(answer: str | None) -> None:
    rig = up()
    rig.caller.offer(0.0)
    (offer,) = rig.sent()
    last = rig.respond(offer, answer) if answer else [message for _, message in rig.until(40)]
    assert "BYE" in [message.method for message in last]


def test_no_hold_before_the_call_is_up() -> None:
    rig = Rig()
    rig.caller.offer(0.0)
    assert rig.sent() == []


def test_a_challenge_of_the_goodbye_is_answered_once() -> None:
    rig = Rig(credentials=Credentials("me", "sesame"))
    rig.respond(rig.invite, "200 OK", body="their sdp")
    rig.caller.hang_up(0.0)
    (bye,) = rig.sent()
    challenge = ("Proxy-Authenticate", 'Digest realm="p", nonce="n"')
    (again,) = rig.respond(bye, "407 Proxy Authentication Required", challenge)
    assert (again.method, again.cseq[0], again.branch == bye.branch) == ("BYE", bye.cseq[0] + 1, False)
    assert 'uri="sip:desk@10.0.0.2:5080"' in again.first("proxy-authorization")
    assert rig.caller.state is State.ENDING
    assert rig.respond(again, "407 Proxy Authentication Required", challenge) == []
    assert (rig.caller.state, rig.caller.failure) == (
        State.OVER,
        "BYE was answered with 407 Proxy Authentication Required",
    )
