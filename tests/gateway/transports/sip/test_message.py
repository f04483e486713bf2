"""Messages as peers, careless ones and hostile ones write them. The kinds of RFC 4475, in vectors of our own."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.sip.message import (
    MAX_MESSAGE_BYTES,
    Headers,
    Malformed,
    Request,
    Response,
    answer,
    note_source,
    parse,
)
from tests.gateway.transports.sip.sip_rig import SDP, Phone, answers, request


def raw(*lines: str, body: str = "") -> bytes:
    return "\r\n".join([*lines, "", body]).encode("utf-8", "surrogateescape")


def changed(old: str, new: str, method: str = "OPTIONS") -> bytes:
    lines = request(method)
    assert any(old in line for line in lines)
    return raw(*(line.replace(old, new) for line in lines))


# --- valid, if unusual ----------------------------------------------------------------------------------------------


def test_compact_folded_and_oddly_spaced() -> None:
    data = raw(
        "INVITE sip:vivekg@chair-dnrc.example.com;unknownparam SIP/2.0",
        "TO :",
        " sip:vivekg@chair-dnrc.example.com ;   tag    = 1918181833n",
        'from   : "J Rosenberg \\\\\\""       <sip:jdrosen@example.com>',
        "  ;",
        "  tag = 98asjd8",
        "MaX-fOrWaRdS: 0068",
        "i: wsinv.ndaksdj@192.0.2.1",
        "cseq: 0009",
        "  INVITE",
        "Via  : SIP  /   2.0",
        " /UDP",
        "    192.0.2.2;branch=390skdjuw",
        "s :",
        "NewFangledHeader:   newfangled value",
        " continued newfangled value",
        "UnknownHeaderWithUnusualValue: ;;,,;;,;",
        "Content-Type: application/sdp",
        "Route:",
        " <sip:services.example.com;lr;unknownwith=value;unknown-no-value>",
        "v:  SIP  / 2.0  / TCP     spindle.example.com   ;",
        "  branch  =   z9hG4bK9ikj8  ,",
        " SIP  /    2.0   / UDP  192.168.255.111   ; branch=",
        " z9hG4bK30239",
        'm:"Quoted string \\"\\"" <sip:jdrosen@example.com> ; newparam =',
        "      newvalue ;",
        "  secondparam ; q = 0.33",
    )
    message = parse(data)
    assert isinstance(message, Request)
    assert message.cseq == (9, "INVITE")
    assert message.headers.get("max-forwards") == "0068"
    assert message.to.tag == "1918181833n"
    assert message.from_.tag == "98asjd8"
    assert message.from_.name == 'J Rosenberg \\"'
    assert message.via.branch == "390skdjuw"
    assert len(message.headers.listed("via")) == 3
    assert message.contact is not None
    assert message.contact.parameters["q"] == "0.33"
    assert message.headers.get("newfangledheader") == "newfangled value continued newfangled value"


def test_a_tab_parts_the_number_from_its_method() -> None:
    message = parse(changed("CSeq: 1 OPTIONS", "CSeq: 1\t OPTIONS"))
    assert message.cseq == (1, "OPTIONS")


def test_odd_but_allowed_characters_are_echoed_to_the_bit() -> None:
    odd = "!interesting-Method0123456789_*+`.%indeed'~"
    lines = [
        f"{odd} sip:1_unusual.URI~(to-be!sure)&isn't+it$/crazy?,/;;*:&it+has=1,weird!*pas$wo~d_too.(doesn't-it)"
        "@example.com SIP/2.0",
        "Via: SIP/2.0/TCP host1.example.com;branch=z9hG4bK-.!%66*_+`'~",
        'To: "BEL:\\\x07 NUL:\\\x00 DEL:\\\x7f" <sip:1_unusual.URI~(to-be!sure)&isn\'t+it$/crazy?,/;;*@example.com>',
        "From: token1~` token2'+_ token3*%!.- <sip:mundane@example.com>;fromParam''~+*_!.-%=\"\udcd1\udc80\""
        ";tag=_token~1'+`*%!-.",
        "Call-ID: intmeth.word%ZK-!.*_+'@word`~)(><:\\/\"][?}{",
        f"CSeq: 139122385 {odd}",
        "Max-Forwards: 255",
    ]
    message = parse(raw(*lines))
    assert isinstance(message, Request)
    echoed = answer(message, 501, to_tag="x").encode()
    for index in (1, 3, 4, 5):
        assert lines[index].encode("utf-8", "surrogateescape") in echoed
    assert lines[2].encode() + b";tag=x\r\n" in echoed


def test_escapes_in_the_user_are_read_and_a_null_is_no_end() -> None:
    message = parse(changed("<sip:desk@192.0.2.1>", "<sip:null-%00-null%2b@example.com>"))
    assert message.to.uri.user == "null-\x00-null+"


def test_bytes_beyond_the_length_are_no_part_of_it() -> None:
    message = parse(raw(*request("OPTIONS", "Content-Length: 0"), body="INVITE sip:x@y SIP/2.0\r\n\r\n"))
    assert message.body == b""


def test_blank_lines_before_a_message_are_skipped() -> None:
    assert isinstance(parse(b"\r\n\r\n" + raw(*request("OPTIONS"))), Request)


def test_a_long_message_is_taken() -> None:
    message = parse(raw(*request("OPTIONS", *(f"Unknown-{number}: {'x' * 120}" for number in range(100)))))
    assert len(message.headers) > 100
    with pytest.raises(Malformed, match="head too long"):
        parse(raw(*request("OPTIONS", *(f"Unknown-{number}: {'x' * 200}" for number in range(100)))))


def test_reasons_may_be_missing_or_in_any_script() -> None:
    lines = request("OPTIONS")[1:]
    for first, reason in (
        ("SIP/2.0 200 ", ""),
        ("SIP/2.0 200", ""),
        ("SIP/2.0 200 \u0434\u0430 = 2**3", "\u0434\u0430 = 2**3"),
    ):
        message = parse(raw(first, *lines))
        assert isinstance(message, Response)
        assert message.reason == reason


def test_ipv6_and_its_look_alikes() -> None:
    message = parse(changed("192.0.2.9;branch", "[2001:db8::9:255]:5070;branch"))
    assert (message.via.host, message.via.port) == ("2001:db8::9:255", 5070)


# --- refused, and answered ------------------------------------------------------------------------------------------

ANSWERED = [
    ("a content-length that is negative", changed("Max-Forwards: 70", "Content-Length: -999"), 400),
    ("one beyond the end", changed("Max-Forwards: 70", "Content-Length: 9999"), 400),
    ("two that differ", changed("Max-Forwards: 70", "Content-Length: 0\r\nContent-Length: 1"), 400),
    ("two of From", changed("Max-Forwards: 70", "f: <sip:other@x>;tag=1"), 400),
    ("two of Call-ID", changed("Max-Forwards: 70", "Call-ID: another"), 400),
    ("two of CSeq", changed("Max-Forwards: 70", "CSeq: 2 OPTIONS"), 400),
    ("a CSeq of another method", changed("CSeq: 1 OPTIONS", "CSeq: 1 INVITE"), 400),
    ("a CSeq beyond 2**31", changed("CSeq: 1 ", "CSeq: 36893488147419103232 "), 400),
    ("a CSeq that is no number", changed("CSeq: 1 ", "CSeq: one "), 400),
    ("a CSeq without a method", changed("CSeq: 1 OPTIONS", "CSeq: 1"), 400),
    ("too many hops", changed("Max-Forwards: 70", "Max-Forwards: 300"), 400),
    ("hops that are no number", changed("Max-Forwards: 70", "Max-Forwards: many"), 400),
    ("a URI in angle brackets", changed("sip:desk@192.0.2.1 SIP", "<sip:desk@192.0.2.1> SIP"), 400),
    ("white space in the URI", changed("sip:desk@192.0.2.1 SIP", "sip:desk@192.0.2.1; lr SIP"), 400),
    ("white space behind the version", changed("192.0.2.1 SIP/2.0", "192.0.2.1 SIP/2.0 "), 400),
    ("more than one space", changed("OPTIONS sip", "OPTIONS  sip"), 400),
    ("a version to come", changed("192.0.2.1 SIP/2.0", "192.0.2.1 SIP/7.0"), 505),
    ("a version that is none", changed("192.0.2.1 SIP/2.0", "192.0.2.1 HTTP/1.1"), 400),
    ("no version", changed("192.0.2.1 SIP/2.0", "192.0.2.1"), 400),
    ("a quote without its end", changed("To: <sip:desk", 'To: "Mr. J. User <sip:desk'), 400),
    ("a display name that is no token", changed("To: <sip:desk", "To: Bell, Alexander <sip:desk"), 400),
    ("an angle bracket without its end", changed("192.0.2.1>", "192.0.2.1"), 400),
    ("a From without a URI", changed("<sip:caller@192.0.2.9>", "<>"), 400),
    ("a From with headers and no brackets", changed("<sip:caller@192.0.2.9>", "sip:c@x?Route=%3Csip:y%3E"), 400),
    ("a header line without a colon", changed("Max-Forwards: 70", "Max-Forwards"), 400),
    ("a line feed alone", changed("Max-Forwards: 70", "Subject: a\nX: b"), 400),
    ("a carriage return alone", changed("Max-Forwards: 70", "Subject: a\rX: b"), 400),
    ("a second Via that is none", changed("Max-Forwards: 70", "Via: SIP/3.0/UDP x"), 400),
    ("too many Vias", changed("Max-Forwards: 70", "\r\n".join(["Via: SIP/2.0/UDP x"] * 70)), 483),
    ("too many headers", changed("CSeq: 1 OPTIONS", "\r\n".join(["CSeq: 1 OPTIONS", *["X: y"] * 130])), 400),
    ("a port beyond 65535", changed("To: <sip:desk@192.0.2.1", "To: <sip:desk@192.0.2.1:99999"), 400),
    ("too many parameters", changed("theirs", "theirs" + ";a" * 70), 400),
]


@pytest.mark.parametrize(("what", "data", "status"), ANSWERED, ids=[what for what, _, _ in ANSWERED])
def test_malformed_and_answered_without_a_state(what: str, data: bytes, status: int) -> None:
    phone = Phone.make()
    assert phone.answers_to(data) == [status]
    assert phone.agent.is_clean


UNANSWERED = [
    b"",
    b"\r\n\r\n",
    b"\x00" * 100,
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"OPTIONS sip:x@y SIP/2.0\r\n",
    b"OPTIONS sip:x@y SIP/2.0\r\n\r\n",
    b"\r\n\r\nOPTIONS\r\n\r\n",
    changed("Via: SIP/2.0/UDP 192.0.2.9", "Via: SIP/2.0/UDP ;;,;,,"),
    changed("Via: SIP/2.0/UDP", "Via: nonsense"),
    changed("Call-ID: call-1", "X-ID: call-1"),
    changed("CSeq: 1 ACK", "CSeq: 1 INVITE", "ACK"),
    raw("SIP/2.0 4294967301 better not break the receiver", *request("OPTIONS")[1:]),
    raw("SIP/2.0 99 low", *request("OPTIONS")[1:]),
    raw("SIP/2.0 200 OK", *request("OPTIONS")[1:5], "Call-ID: x"),
    raw("SIP/2.0 200 OK", *request("OPTIONS", "Content-Length: 5")[1:]),
    b"x" * (MAX_MESSAGE_BYTES + 1),
]


@pytest.mark.parametrize("data", UNANSWERED, ids=range(len(UNANSWERED)))
def test_what_cannot_be_answered_is_counted_and_dropped(data: bytes) -> None:
    phone = Phone.make()
    assert phone.say_raw(data) == []
    assert phone.agent.counted == ["sip_malformed"]
    assert phone.agent.is_clean


def test_every_truncation_of_a_call_is_refused_or_silent() -> None:
    whole = raw(*request("INVITE", SDP, "Content-Length: 7"), body="offer 1")
    for length in range(len(whole)):
        phone = Phone.make()
        phone.agent.on_invite = answers
        assert phone.answers_to(whole[:length]) in ([], [400])
        assert phone.agent.is_clean, length


@given(st.binary(max_size=400))
def test_random_bytes_are_never_taken(data: bytes) -> None:
    phone = Phone.make()
    phone.answers_to(data)
    assert phone.agent.is_clean


@pytest.mark.parametrize("seed", range(20))
def test_messages_with_random_damage_do_no_harm(seed: int) -> None:
    """Whatever a damaged INVITE means now, it ends; nothing raises, nothing is left."""
    rng = random.Random(seed)
    whole = raw(*request("INVITE", SDP, "Supported: 100rel, timer", "Session-Expires: 90"), body="offer 1")
    phone = Phone.make()
    phone.agent.on_invite = answers
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(data))
            match rng.randrange(3):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    del data[at : at + rng.randint(1, 30)]
                case _:
                    data[at:at] = rng.choice([b"\r\n", b'"', b"<", b">", b";", b",", b"\x00", b"z9hG4bK", b"%"])
        phone.agent.ua.receive(bytes(data), phone.source)
    phone.agent.net.run(300)
    for session in list(phone.agent.ua.sessions.values()):
        session.close()
    phone.agent.net.run(100)
    assert phone.agent.is_clean


@pytest.mark.parametrize(
    "text", ["<" * 8_000, '"' * 8_001, ";" * 8_000, "a=" * 4_000, "\\" * 8_000, " " * 8_000, "%" * 8_000]
)
def test_long_nonsense_is_read_in_no_time_worth_speaking_of(text: str) -> None:
    """Linear, or this would not end."""
    for header in ("Via", "From", "To", "Contact", "CSeq", "Content-Type", "Session-Expires", "Require"):
        phone = Phone.make()
        phone.answers_to(raw(*request("INVITE", f"{header}: {text}")))
        phone.answers_to(raw(*[line for line in request("INVITE") if not line.startswith(header)], f"{header}: {text}"))
        assert len(phone.agent.ua.sessions) <= 1


# --- written --------------------------------------------------------------------------------------------------------


def test_a_header_of_ours_is_one_line() -> None:
    with pytest.raises(ValueError, match="one line"):
        Headers().add("subject", "a\r\nVia: b")


def test_a_to_that_does_not_parse_gets_a_tag_all_the_same() -> None:
    message = Request(Headers([("via", "SIP/2.0/UDP x"), ("to", "<sip:"), ("from", "x")]), method="OPTIONS")
    assert answer(message, 400, to_tag="t").headers.get("to") == "<sip:;tag=t"


def test_trying_echoes_the_timestamp() -> None:
    message = parse(raw(*request("INVITE", "Timestamp: 54")))
    assert isinstance(message, Request)
    assert answer(message, 100).headers.get("timestamp") == "54"
    assert answer(message, 200).headers.get("timestamp") == ""


def test_the_source_is_noted_in_the_topmost_via_alone() -> None:
    message = parse(changed("192.0.2.9;branch=z9hG4bKa", "192.0.2.9;rport;branch=z9hG4bKa, SIP/2.0/UDP far;rport"))
    assert isinstance(message, Request)
    note_source(message, "192.0.2.9", 7)
    assert message.headers.listed("via") == [
        "SIP/2.0/UDP 192.0.2.9;rport=7;branch=z9hG4bKa;received=192.0.2.9",
        "SIP/2.0/UDP far;rport",
    ]


def test_too_large() -> None:
    with pytest.raises(Malformed) as caught:
        parse(b"x" * (MAX_MESSAGE_BYTES + 1))
    assert caught.value.status == 413
