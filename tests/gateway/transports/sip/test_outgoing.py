"""Calls that we place, to a peer that answers by hand: challenges, forks, early media, answers that will not do."""

from __future__ import annotations

import pytest

from gateway.transports.sip.digest import Credentials
from gateway.transports.sip.message import Request, parse
from gateway.transports.sip.outgoing import OutgoingSession, begin_outgoing
from gateway.transports.sip.transaction import Peer
from tests.gateway.transports.sip.sip_rig import SDP, Ear, FakeMedia, Phone, statuses


class Placed:
    def __init__(self, credentials: Credentials | None = None, session_expires_s: int = 0) -> None:
        self.phone = Phone.make(session_expires_s=session_expires_s)
        self.ear, self.media = Ear(), FakeMedia()
        self.session: OutgoingSession = begin_outgoing(
            self.phone.agent.ua,
            "sip:bob@192.0.2.9",
            Peer("udp", "192.0.2.9", 5060),
            self.ear,
            from_uri="sip:us@192.0.2.1",
            credentials=credentials,
        )
        self.session.invite(self.media)

    def sent(self) -> list[Request]:
        found = (parse(data) for _, _, data in self.phone.agent.net.log)
        return [message for message in found if isinstance(message, Request)]

    def methods(self) -> list[str]:
        return [request.method for request in self.sent()]

    def reply(
        self,
        status: str,
        *extra: str,
        tag: str = "bob",
        body: str = "",
        of: int = -1,
        contact: str = "<sip:b@192.0.2.9>",
    ) -> None:
        sent = [request for request in self.sent() if request.method != "ACK"][of]
        kept = [f"{name}: {sent.headers.get(name)}" for name in ("via", "from", "call-id", "cseq")]
        self.phone.say(
            f"SIP/2.0 {status}",
            *kept,
            f"To: {sent.headers.get('to')}{'' if sent.to.tag or not tag else f';tag={tag}'}",
            *([f"Contact: {contact}"] if contact else []),
            *([SDP] if body else []),
            *extra,
            body=body,
        )


def test_what_an_invite_holds() -> None:
    placed = Placed(session_expires_s=1_800)
    (invite,) = placed.sent()
    assert invite.uri == "sip:bob@192.0.2.9"
    assert invite.headers.get("max-forwards") == "70"
    assert invite.headers.get("session-expires") == "1800"
    assert invite.headers.get("contact") == "<sip:offhook@192.0.2.1:5060>"
    assert invite.body == b"offer 1"
    assert "100rel" not in invite.headers.get("supported")


def test_answered_and_acknowledged_as_often_as_the_answer_comes() -> None:
    placed = Placed()
    placed.reply("180 Ringing")
    placed.reply("200 OK", body="answer 1")
    placed.reply("200 OK", body="answer 1")
    assert placed.methods() == ["INVITE", "ACK", "ACK"]
    assert placed.ear.told == ["rings", "established"]
    assert placed.sent()[1].uri == "sip:b@192.0.2.9"
    assert placed.media.heard == ["answer 1"]


def test_the_answer_may_have_come_early() -> None:
    placed = Placed()
    placed.reply("183 Session Progress", body="answer early")
    placed.reply("200 OK")
    assert placed.media.heard == ["answer early"]


def test_early_media_that_will_not_do_is_passed_over() -> None:
    placed = Placed()
    placed.reply("183 Session Progress", "Content-Type: text/plain", body="")
    placed.reply("183 Session Progress", "Content-Encoding: gzip", body="x")
    assert placed.phone.agent.counted == ["sip_bad_early_media"]
    placed.reply("200 OK", body="answer 1")
    assert placed.ear.told[-1] == "established"


@pytest.mark.parametrize("body", ["", "bad"])
def test_an_answer_that_will_not_do(body: str) -> None:
    placed = Placed()
    placed.reply("200 OK", body=body)
    assert placed.methods() == ["INVITE", "ACK", "BYE"]
    assert placed.ear.told == ["failed: 488"]
    placed.reply("200 OK")
    assert placed.ear.told == ["failed: 488", "closed"]


@pytest.mark.parametrize("contact", ["", "<tel:1>"])
def test_an_answer_without_a_contact_leaves_the_address_that_was_called(contact: str) -> None:
    placed = Placed()
    placed.reply("200 OK", body="answer 1", contact=contact)
    assert placed.ear.told == ["established"]
    assert placed.sent()[1].uri == "sip:bob@192.0.2.9"
    placed.session.hang_up()
    assert placed.methods() == ["INVITE", "ACK", "BYE"]


def test_a_fork_that_answers_as_well_is_ended() -> None:
    placed = Placed()
    placed.reply("200 OK", body="answer 1")
    placed.reply("200 OK", tag="other", body="answer 2", contact="<sip:c@192.0.2.10>")
    assert placed.methods() == ["INVITE", "ACK", "ACK", "BYE"]
    ack, bye = placed.sent()[2:]
    assert ack.uri == bye.uri == "sip:c@192.0.2.10"
    assert bye.to.tag == "other"
    assert placed.ear.told == ["established"]
    placed.reply("200 OK", tag="third", of=0, body="answer 2", contact="<tel:1>")
    assert placed.phone.agent.counted == ["sip_bad_contact"]
    assert not placed.session.over


@pytest.mark.parametrize(("status", "header", "given"), [
    ("401 Unauthorized", "WWW-Authenticate", "authorization"),
    ("407 Proxy Authentication Required", "Proxy-Authenticate", "proxy-authorization"),
])  # fmt: skip
def test_a_challenge_is_answered_once(status: str, header: str, given: str) -> None:
    placed = Placed(Credentials("us", "secret"))
    challenge = f'{header}: Digest realm="r", nonce="n", qop="auth"'
    placed.reply(status, challenge)
    first, ack, second = placed.sent()
    assert ack.method == "ACK"
    assert second.headers.get(given).startswith("Digest ")
    assert second.cseq[0] == first.cseq[0] + 1
    assert second.call_id == first.call_id
    placed.reply(status, challenge)
    assert placed.ear.told == [f"failed: {status[:3]}", "closed"]


def test_a_stale_nonce_is_answered_again_but_not_for_ever() -> None:
    placed = Placed(Credentials("us", "secret"))
    for _ in range(4):
        if not placed.session.is_closed:
            placed.reply("401 Unauthorized", 'WWW-Authenticate: Digest realm="r", nonce="n", qop="auth", stale=TRUE')
    assert placed.methods().count("INVITE") == 3
    assert placed.ear.told == ["failed: 401", "closed"]


@pytest.mark.parametrize("challenge", ["X: y", "WWW-Authenticate: Basic realm=r", "WWW-Authenticate: Digest x"])
def test_a_challenge_that_we_cannot_answer(challenge: str) -> None:
    placed = Placed(Credentials("us", "secret"))
    placed.reply("401 Unauthorized", challenge)
    assert placed.ear.told == ["failed: 401", "closed"]


def test_a_challenge_in_the_call_is_answered_too() -> None:
    placed = Placed(Credentials("us", "secret"))
    placed.reply("200 OK", body="answer 1")
    placed.session.hang_up("done")
    placed.reply("407 Proxy", 'Proxy-Authenticate: Digest realm="r", nonce="n"')
    assert placed.methods() == ["INVITE", "ACK", "BYE", "BYE"]
    assert placed.sent()[-1].headers.get("proxy-authorization")
    placed.reply("200 OK")
    assert placed.ear.told == ["established", "closed"]


@pytest.mark.parametrize("status", ["302 Moved Temporarily", "422 Session Interval Too Small", "500 Error"])
def test_refusals_and_redirections_are_not_followed(status: str) -> None:
    placed = Placed()
    placed.reply(status)
    assert placed.ear.told == [f"failed: {status[:3]}", "closed"]
    placed.phone.after(40)
    assert placed.phone.agent.is_clean


def test_the_other_side_refreshes_if_it_says_so() -> None:
    placed = Placed(session_expires_s=1_800)
    placed.reply("200 OK", "Session-Expires: 200;refresher=uas", body="answer 1")
    assert statuses(placed.phone.after(130)) == []
    said = placed.phone.after(40)
    assert "BYE" in statuses(said)
    assert placed.ear.told[-1] == "hung up: connection_lost"


def test_closed_while_it_rings() -> None:
    placed = Placed()
    placed.reply("180 Ringing")
    placed.phone.agent.ua.close()
    assert placed.phone.agent.is_clean
    assert placed.ear.told == ["rings", "closed"]


def test_hung_up_before_it_was_sent() -> None:
    phone, ear = Phone.make(), Ear()
    peer = Peer("udp", "192.0.2.9", 5060)
    session = begin_outgoing(
        phone.agent.ua, "sip:bob@192.0.2.9", peer, ear, from_uri="sip:us@192.0.2.1", credentials=None
    )
    session.hang_up()
    session.hang_up()
    assert ear.told == ["closed"]


def test_a_request_in_a_call_that_is_not_answered_yet_is_of_no_call() -> None:
    placed = Placed()
    placed.reply("180 Ringing")
    (invite,) = placed.sent()
    tag = invite.from_.tag
    lines = [
        "BYE sip:us@192.0.2.1 SIP/2.0",
        "Via: SIP/2.0/UDP 192.0.2.9;branch=z9hG4bKx",
        "From: <sip:bob@192.0.2.9>;tag=bob",
        f"To: <sip:us@192.0.2.1>;tag={tag}",
        f"Call-ID: {invite.call_id}",
        "CSeq: 1 BYE",
    ]
    assert statuses(placed.phone.say(*lines)) == [481]


def test_too_many_transactions_to_answer_a_challenge() -> None:
    placed = Placed(Credentials("us", "secret"))
    placed.phone.agent.ua.transactions._limit = 0
    placed.reply("401 Unauthorized", 'WWW-Authenticate: Digest realm="r", nonce="n", qop="auth"')
    assert placed.ear.told == ["failed: 401", "closed"]


def test_nonsense_after_a_good_challenge_is_no_stale_nonce() -> None:
    placed = Placed(Credentials("us", "secret"))
    placed.reply("401 Unauthorized", 'WWW-Authenticate: Digest realm="r", nonce="n", qop="auth"')
    placed.reply("401 Unauthorized", "WWW-Authenticate: nonsense")
    assert placed.ear.told == ["failed: 401", "closed"]


def test_cancelled_and_answered_twice_is_ended_once() -> None:
    placed = Placed()
    placed.reply("180 Ringing")
    placed.session.hang_up()
    placed.reply("183 Session Progress", of=0)
    placed.reply("200 OK", body="answer 1", of=0)
    assert placed.methods() == ["INVITE", "CANCEL", "ACK", "BYE"]
    placed.reply("200 OK")
    assert placed.ear.told == ["rings", "closed"]
    placed.reply("200 OK", body="answer 1", of=0)
    assert placed.ear.told == ["rings", "closed"]
