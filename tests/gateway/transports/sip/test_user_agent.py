"""What is answered outside of a call, and while one is set up: by messages that a peer writes by hand."""

from __future__ import annotations

import pytest

from gateway.transports.sip.incoming import IncomingSession
from gateway.transports.sip.message import Request, Response
from gateway.transports.sip.transaction import Peer
from tests.gateway.transports.sip.sip_rig import (
    SDP,
    FakeMedia,
    Phone,
    answers,
    only_response,
    request,
    statuses,
)


@pytest.fixture
def phone() -> Phone:
    return Phone.make()


def cost_nothing(phone: Phone) -> bool:
    return not phone.agent.ua.sessions and not len(phone.agent.ua.transactions)


def test_options_follows_readiness_and_costs_no_state(phone: Phone) -> None:
    response = only_response(phone.say(*request("OPTIONS")))
    assert response.status == 200
    assert "INVITE" in response.headers.get("allow")
    assert response.headers.get("accept") == "application/sdp"
    assert response.to.tag
    phone.agent.not_ready = "draining"
    response = only_response(phone.say(*request("OPTIONS", branch="z9hG4bKb")))
    assert response.status == 503
    assert response.headers.get("retry-after")
    assert cost_nothing(phone)


def test_options_with_no_hops_left_is_ours_to_answer(phone: Phone) -> None:
    lines = [line.replace("Max-Forwards: 70", "Max-Forwards: 0") for line in request("OPTIONS")]
    assert only_response(phone.say(*lines)).status == 200


@pytest.mark.parametrize(
    ("method", "extra", "uri", "status"),
    [
        ("REGISTER", (), "sip:192.0.2.1", 405),
        ("SUBSCRIBE", (), "sip:192.0.2.1", 405),
        ("MESSAGE", (), "sip:192.0.2.1", 405),
        ("NEWMETHOD", (), "sip:192.0.2.1", 501),
        ("invite", (), "sip:192.0.2.1", 501),
        ("BYE", (), "sip:192.0.2.1", 481),
        ("INFO", (), "sip:192.0.2.1", 481),
        ("PRACK", (), "sip:192.0.2.1", 481),
        ("CANCEL", (), "sip:192.0.2.1", 481),
        ("INVITE", (), "http://192.0.2.1/", 416),
        ("INVITE", (), "sip:a b@192.0.2.1", 400),
        ("INVITE", (), "sip:@@192.0.2.1", 400),
        ("INVITE", ("Require: precondition",), "sip:192.0.2.1", 420),
        ("OPTIONS", ("Require: nothingSupportsThis, nothingSupportsThisEither",), "sip:192.0.2.1", 420),
    ],
)
def test_refused_without_a_state(phone: Phone, method: str, extra: tuple[str, ...], uri: str, status: int) -> None:
    response = only_response(phone.say(*request(method, *extra, uri=uri)))
    assert response.status == status
    assert response.to.tag
    if status in {405, 501}:
        assert "INVITE" in response.headers.get("allow")
    assert cost_nothing(phone)


def test_the_same_refusal_is_given_again(phone: Phone) -> None:
    first, second = (only_response(phone.say(*request("REGISTER"))) for _ in range(2))
    assert first.encode() == second.encode()


def test_judged_before_anything_is_done(phone: Phone) -> None:
    for verdict, expected in (("drop", []), ("challenge", [401]), ("stale", [401])):
        phone.agent.verdict = verdict  # type: ignore[assignment]
        said = phone.say(*request("INVITE", SDP), body="offer 1")
        assert statuses(said) == expected
    assert "stale=true" in said[0].headers.get("www-authenticate")
    assert phone.agent.counted == ["sip_dropped"]
    assert cost_nothing(phone)


def test_an_invite_rings_once_however_often_it_comes(phone: Phone) -> None:
    asked = request("INVITE", SDP)
    assert statuses(phone.say(*asked, body="offer 1")) == [100]
    assert statuses(phone.say(*asked, body="offer 1")) == [100]
    assert len(phone.agent.calls) == 1
    assert phone.agent.calls[0].offers


def test_an_invite_by_two_ways_is_one_call(phone: Phone) -> None:
    phone.say(*request("INVITE", SDP), body="offer 1")
    assert statuses(phone.say(*request("INVITE", SDP, branch="z9hG4bKother"), body="offer 1")) == [482]
    assert len(phone.agent.calls) == 1


@pytest.mark.parametrize(
    ("extra", "body", "status"),
    [
        (("Content-Type: text/plain",), "hello", 415),
        (("Content-Type: application/sdp", "Content-Encoding: gzip"), "x", 415),
        (("Content-Type: application/sdp",), "\udcff", 400),
        (("Content-Type: multipart/mixed",), "x", 400),
        (("Content-Type: multipart/mixed;boundary=b",), "--b\r\nContent-Type: a/b\r\n\r\nx\r\n--b--", 415),
        (("Supported: timer", "Session-Expires: 60"), "", 422),
    ],
)
def test_an_invite_that_cannot_be_taken(phone: Phone, extra: tuple[str, ...], body: str, status: int) -> None:
    head = "\r\n".join([*request("INVITE", *extra), "", ""]).encode()
    said = phone.say_raw(head + body.encode("utf-8", "surrogateescape"))
    assert statuses(said) == [100, status]
    if status == 415:
        assert said[-1].headers.get("accept") == "application/sdp"
    if status == 422:
        assert said[-1].headers.get("min-se") == "90"
    assert phone.agent.calls == []
    assert not phone.agent.ua.sessions


@pytest.mark.parametrize("contact", ["", "<tel:+1555>", "<sip:x@[::1>", "*", "<sip:x@h;transport=ws>"])
def test_an_invite_without_a_contact_that_can_be_reached(phone: Phone, contact: str) -> None:
    said = phone.say(*request("INVITE", SDP, contact=contact), body="offer 1")
    assert statuses(said) == [100, 400]
    assert not phone.agent.ua.sessions


def test_the_description_may_be_one_part_of_several(phone: Phone) -> None:
    phone.agent.on_invite = answers
    body = (
        "--b1\r\nContent-Type: application/isup\r\n\r\n\x01\x02\r\n"
        "--b1\r\nContent-Disposition: session\r\nContent-Type: application/sdp\r\n\r\noffer 1\r\n--b1--\r\n"
    )
    said = phone.say(*request("INVITE", 'Content-Type: multipart/mixed; boundary="b1"'), body=body)
    assert statuses(said) == [100, 180, 200]
    assert phone.agent.media[0].heard == ["offer 1\r\n"]


def test_a_tel_uri_may_be_called(phone: Phone) -> None:
    assert statuses(phone.say(*request("INVITE", uri="tel:+15551234567"))) == [100]


# --- where answers go -----------------------------------------------------------------------------------------------


def sent_to(phone: Phone, *lines: str, source: Peer) -> tuple[Peer, Response]:
    went: list[Peer] = []
    send = phone.agent.ua.send

    def note(data: bytes, peer: Peer) -> None:
        went.append(peer)
        send(data, peer)

    phone.agent.ua.send = note
    response = only_response(phone.say(*lines, source=source))
    return went[0], response


def test_answers_go_where_the_request_came_from(phone: Phone) -> None:
    source = Peer("udp", "198.51.100.7", 40_000)
    plain = request("OPTIONS")
    peer, response = sent_to(phone, *plain, source=source)
    assert peer == Peer("udp", "198.51.100.7", 5060)
    assert response.headers.get("via") == "SIP/2.0/UDP 192.0.2.9;branch=z9hG4bKa;received=198.51.100.7"
    asking = [line.replace(";branch", ";rport;branch") for line in plain]
    peer, response = sent_to(phone, *asking, source=source)
    assert peer == source
    assert "rport=40000" in response.headers.get("via")
    assert "received=198.51.100.7" in response.headers.get("via")


def test_a_received_that_the_peer_made_up_is_not_believed(phone: Phone) -> None:
    lines = [line.replace(";branch", ";received=203.0.113.1;rport=9;branch") for line in request("OPTIONS")]
    peer, response = sent_to(phone, *lines, source=Peer("udp", "198.51.100.7", 40_000))
    assert peer == Peer("udp", "198.51.100.7", 40_000)
    assert "203.0.113.1" not in response.headers.get("via")


def test_over_a_connection_answers_go_back_on_it(phone: Phone) -> None:
    source = Peer("tcp", "198.51.100.7", 40_000, flow=3)
    peer, _ = sent_to(phone, *request("OPTIONS"), source=source)
    assert peer == source


# --- ringing --------------------------------------------------------------------------------------------------------


def rings_long(session: IncomingSession, media: FakeMedia) -> None:
    session.negotiate(media)
    session.ring(for_long=True)


def rack(said: Response) -> str:
    return f"RAck: {said.headers.get('rseq')} 1 INVITE"


def test_a_reliable_180_is_repeated_until_its_prack(phone: Phone) -> None:
    phone.agent.on_invite = rings_long
    said = phone.say(*request("INVITE", SDP, "Supported: 100rel"), body="offer 1")
    ringing = said[-1]
    assert isinstance(ringing, Response)
    assert ringing.headers.get("require") == "100rel"
    assert statuses(phone.after(4)) == [180, 180, 180]
    session = phone.agent.calls[0]
    session.accept()
    assert phone.after(0.1) == []
    tag = ringing.to.tag
    wrong = request("PRACK", "RAck: 1 1 INVITE", tag=tag, seq=2, branch="z9hG4bKp")
    assert only_response(phone.say(*wrong)).status == 481
    right = request("PRACK", rack(ringing), tag=tag, seq=3, branch="z9hG4bKq")
    assert statuses(phone.say(*right)) == [200, 200]
    again = request("PRACK", rack(ringing), tag=tag, seq=4, branch="z9hG4bKr")
    assert only_response(phone.say(*again)).status == 481


def test_without_100rel_it_rings_unreliably(phone: Phone) -> None:
    phone.agent.on_invite = rings_long
    said = phone.say(*request("INVITE", SDP), body="offer 1")
    assert said[-1].headers.get("rseq") == ""
    assert phone.after(10) == []


def test_no_prack_ends_the_call(phone: Phone) -> None:
    phone.agent.on_invite = answers
    phone.say(*request("INVITE", SDP, "Require: 100rel"), body="offer 1")
    said = phone.after(33)
    assert statuses(said)[-1] == 504
    assert phone.agent.ears[0].told == ["hung up: no_prack", "closed"]
    assert not phone.agent.ua.sessions


def test_a_late_offer_goes_into_the_reliable_180(phone: Phone) -> None:
    def answer_late(session: IncomingSession, media: FakeMedia) -> None:
        session.negotiate(media)
        session.ring(for_long=True)
        session.accept()

    phone.agent.on_invite = answer_late
    ringing = phone.say(*request("INVITE", "Require: 100rel"))[-1]
    assert isinstance(ringing, Response)
    assert ringing.body == b"offer 1"
    asked = request("PRACK", rack(ringing), SDP, tag=ringing.to.tag, seq=2, branch="z9hG4bKp")
    said = phone.say(*asked, body="answer 1")
    assert statuses(said) == [200, 200]
    assert said[1].body == b""
    phone.say(*request("ACK", tag=ringing.to.tag, branch="z9hG4bKb"))
    assert phone.agent.ears[0].told == ["established"]
    assert phone.agent.media[0].heard == ["answer 1"]


@pytest.mark.parametrize(
    ("invite_body", "extra", "body", "status"),
    [
        ("", (SDP,), "bad", 488),
        ("", (), "", 488),
        ("offer 1", (SDP,), "offer 2", 488),
        ("", ("Content-Type: text/plain",), "x", 415),
    ],
)
def test_a_prack_that_will_not_do(
    phone: Phone, invite_body: str, extra: tuple[str, ...], body: str, status: int
) -> None:
    phone.agent.on_invite = rings_long
    given = [SDP] if invite_body else []
    ringing = phone.say(*request("INVITE", "Require: 100rel", *given), body=invite_body)[-1]
    assert isinstance(ringing, Response)
    asked = request("PRACK", rack(ringing), *extra, tag=ringing.to.tag, seq=2, branch="z9hG4bKp")
    assert statuses(phone.say(*asked, body=body)) == [status, 488]
    assert phone.agent.ears[0].told == ["hung up: bad_media", "closed"]


def test_cancel(phone: Phone) -> None:
    phone.agent.on_invite = rings_long
    ringing = phone.say(*request("INVITE", SDP), body="offer 1")[-1]
    said = phone.say(*request("CANCEL"))
    assert statuses(said) == [200, 487]
    assert {message.to.tag for message in said} == {ringing.to.tag}
    assert statuses(phone.say(*request("CANCEL"))) == [200]
    assert phone.say(*request("ACK", tag=ringing.to.tag)) == []
    assert phone.after(10) == []
    phone.after(100)
    assert phone.agent.is_clean


def test_a_cancel_that_is_too_late_changes_nothing(phone: Phone) -> None:
    phone.agent.on_invite = answers
    phone.say(*request("INVITE", SDP), body="offer 1")
    assert statuses(phone.say(*request("CANCEL"))) == [200]
    assert phone.agent.ears[0].told == []
    phone.agent.ua.close()
    assert phone.agent.is_clean


def test_a_cancel_of_what_was_refused(phone: Phone) -> None:
    phone.agent.on_invite = lambda session, media: session.reject(404)
    phone.say(*request("INVITE", SDP), body="offer 1")
    assert statuses(phone.say(*request("CANCEL"))) == [200]


def test_an_ack_of_nothing_is_only_counted(phone: Phone) -> None:
    assert phone.say(*request("ACK", tag="x")) == []
    assert phone.agent.counted == ["sip_stray_acks"]


def test_a_stray_response_is_only_counted(phone: Phone) -> None:
    lines = request("OPTIONS")
    assert phone.say("SIP/2.0 200 OK", *lines[1:]) == []
    assert phone.agent.counted == ["sip_stray_responses"]


def test_a_bye_before_the_ack_ends_the_call(phone: Phone) -> None:
    phone.agent.on_invite = answers
    tag = phone.say(*request("INVITE", SDP), body="offer 1")[-1].to.tag
    assert statuses(phone.say(*request("BYE", tag=tag, seq=2, branch="z9hG4bKb"))) == [200]
    assert phone.agent.ears[0].told == ["hung up: caller_hung_up", "closed"]
    assert phone.after(10) == []


def test_a_bye_while_it_rings_ends_both(phone: Phone) -> None:
    phone.agent.on_invite = rings_long
    tag = phone.say(*request("INVITE", SDP), body="offer 1")[-1].to.tag
    assert statuses(phone.say(*request("BYE", tag=tag, seq=2, branch="z9hG4bKb"))) == [200, 487]
    assert phone.agent.ears[0].told == ["hung up: caller_hung_up", "closed"]


def test_too_many_dialogs(phone: Phone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.transports.sip.user_agent.MAX_SESSIONS", 1)
    phone.say(*request("INVITE", SDP), body="offer 1")
    response = only_response(phone.say(*request("INVITE", SDP, branch="z9hG4bKb", call_id="call-2"), body="offer 1"))
    assert response.status == 503
    assert response.headers.get("retry-after")


def test_too_many_transactions_are_dropped_and_counted(phone: Phone) -> None:
    phone.agent.on_invite = answers
    tag = phone.say(*request("INVITE", SDP), body="offer 1")[-1].to.tag
    phone.agent.ua.transactions._limit = 0
    assert phone.say(*request("INFO", tag=tag, seq=2, branch="z9hG4bKb")) == []
    assert phone.agent.counted == ["sip_transactions_full"]
    _, ear, _ = phone.agent.call(phone.agent)
    assert ear.told == ["failed: 408", "closed"]
    assert phone.agent.counted[-1] == "sip_requests_dropped"


def test_a_call_of_ours_that_comes_back_is_a_loop(phone: Phone) -> None:
    session, ear, _ = phone.agent.call(phone.agent)
    phone.agent.net.run(1)
    assert ear.told == ["failed: 482", "closed"]
    assert session.is_closed


def test_the_route_set_of_a_dialog_is_kept(phone: Phone) -> None:
    phone.agent.on_invite = answers
    routes = ("Record-Route: <sip:p2.example;lr>, <sip:p1.example:5070;lr>", "Record-Route: <sip:p0.example;lr>")
    response = phone.say(*request("INVITE", SDP, *routes), body="offer 1")[-1]
    assert response.headers.listed("record-route") == [
        "<sip:p2.example;lr>",
        "<sip:p1.example:5070;lr>",
        "<sip:p0.example;lr>",
    ]
    phone.say(*request("ACK", tag=response.to.tag, branch="z9hG4bKb"))
    went: list[Peer] = []
    phone.agent.ua.transactions.send = lambda data, peer: went.append(peer)
    phone.agent.calls[0].hang_up()
    assert went == [Peer("udp", "p2.example", 5060)]
    bye = next(iter(phone.agent.ua.transactions._clients.values())).request
    assert bye.headers.all("route") == response.headers.listed("record-route")
    assert bye.uri == "sip:caller@192.0.2.9"


def test_a_router_of_old_gets_the_target_as_its_last_route(phone: Phone) -> None:
    phone.agent.on_invite = answers
    response = phone.say(*request("INVITE", SDP, "Record-Route: <sip:old.example>"), body="offer 1")[-1]
    phone.say(*request("ACK", tag=response.to.tag, branch="z9hG4bKb"))
    phone.agent.calls[0].hang_up()
    bye = next(iter(phone.agent.ua.transactions._clients.values())).request
    assert isinstance(bye, Request)
    assert bye.uri == "sip:old.example"
    assert bye.headers.all("route") == ["<sip:caller@192.0.2.9>"]


@pytest.mark.parametrize("routes", ["<sip:p;lr>, " * 30 + "<sip:p;lr>", "<tel:1>", "junk"])
def test_routes_that_cannot_be_kept(phone: Phone, routes: str) -> None:
    assert statuses(phone.say(*request("INVITE", SDP, f"Record-Route: {routes}"), body="offer 1")) == [100, 400]


@pytest.mark.parametrize(
    ("source", "contact", "goes_to"),
    [
        ("8.8.8.8", "<sip:c@192.168.1.5:5062>", ("8.8.8.8", 40_000)),
        ("8.8.8.8", "<sip:c@9.9.9.9:5062>", ("9.9.9.9", 5062)),
        ("10.0.0.1", "<sip:c@192.168.1.5:5062>", ("192.168.1.5", 5062)),
        ("8.8.8.8", "<sip:c@host.example>", ("host.example", 5060)),
    ],
)
def test_requests_of_ours_reach_a_peer_behind_nat(
    phone: Phone, source: str, contact: str, goes_to: tuple[str, int]
) -> None:
    peer = Peer("udp", source, 40_000)
    phone.agent.on_invite = answers
    tag = phone.say(*request("INVITE", SDP, contact=contact), body="offer 1", source=peer)[-1].to.tag
    phone.say(*request("ACK", tag=tag, branch="z9hG4bKb"), source=peer)
    hop = phone.agent.calls[0].dialog.next_hop
    assert (hop.host, hop.port) == goes_to


def test_a_dialog_over_a_connection_stays_on_it_and_knows_where_else(phone: Phone) -> None:
    peer = Peer("tcp", "198.51.100.7", 40_000, flow=3)
    phone.agent.on_invite = answers
    asked = request("INVITE", SDP, contact="<sip:c@198.51.100.7:5062;transport=tcp>")
    response = phone.say(*asked, body="offer 1", source=peer)[-1]
    assert "transport=tcp" in response.headers.get("contact")
    hop = phone.agent.calls[0].dialog.next_hop
    assert hop.flow == 3
    assert hop.otherwise == ("198.51.100.7", 5062)


def test_what_is_asked_of_a_call_that_is_over_does_nothing(phone: Phone) -> None:
    phone.agent.on_invite = rings_long
    phone.say(*request("INVITE", SDP), body="offer 1")
    phone.say(*request("CANCEL"))
    session = phone.agent.calls[0]
    before = len(phone.agent.net.log)
    session.ring(for_long=True)
    session.accept()
    session.reject(486)
    session.hang_up()
    session.cancelled()
    session.close()
    assert len(phone.agent.net.log) == before
    assert phone.agent.ears[0].told == ["hung up: caller_hung_up", "closed"]


def test_a_secure_uri_is_reached_by_tls(phone: Phone) -> None:
    phone.agent.on_invite = answers
    tag = phone.say(*request("INVITE", SDP, contact="<sips:c@192.0.2.9>"), body="offer 1")[-1].to.tag
    phone.say(*request("ACK", tag=tag, branch="z9hG4bKb"))
    hop = phone.agent.calls[0].dialog.next_hop
    assert (hop.transport, hop.port) == ("tls", 5061)


def test_an_ack_of_another_answer_is_passed_over(phone: Phone) -> None:
    phone.agent.on_invite = answers
    tag = phone.say(*request("INVITE", SDP), body="offer 1")[-1].to.tag
    phone.say(*request("ACK", tag=tag, seq=7, branch="z9hG4bKb"))
    assert phone.agent.ears[0].told == []
    session = phone.agent.calls[0]
    session.over = True  # hung up here in the same moment
    phone.say(*request("ACK", tag=tag, branch="z9hG4bKc"))
    assert phone.agent.ears[0].told == []
    assert statuses(phone.say(*request("INFO", tag=tag, seq=2, branch="z9hG4bKd"))) == [481]
