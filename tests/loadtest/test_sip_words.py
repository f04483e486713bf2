"""SIP's texts: messages, addresses, descriptions, digests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.sip.digest import Credentials, answer_challenge, is_stale
from loadtest.sip.message import BadMessage, SipUri, StreamFraming, parse_message, parse_uri, serialise
from loadtest.sip.sdp import NoMedia, RemoteMedia, answering_direction, describe, read_media


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("sip:desk@pbx:5070;transport=tcp", SipUri("desk", "pbx", 5070, (("transport", "tcp"),))),
        ("sip:pbx", SipUri(None, "pbx")),
        ("sips:+1555@[::1]:5061;lr", SipUri("+1555", "::1", 5061, (("lr", ""),), "sips")),
    ],
)
def test_addresses_are_read_and_written(text: str, uri: SipUri) -> None:
    assert parse_uri(text) == uri
    assert str(uri) == text
    assert parse_uri(f'"A name" <{text}?Subject=x>;tag=1') == uri


@pytest.mark.parametrize("text", ["", "sip:", "tel:+1", "sip:a@h:0", "sip:a@h:99999", "sip:a:secret@h", "sip:a b@h"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="not a SIP address"):
        parse_uri(text)


def test_compact_folded_and_listed_headers_are_read() -> None:
    message = parse_message(
        b"SIP/2.0 200 OK\r\nv: SIP/2.0/UDP a;branch=z9hG4bK1, SIP/2.0/UDP b\r\nf: <sip:x@h>\r\n ;tag=1\r\n"
        b'i: c\r\nCSEQ: 1  INVITE\r\nm: "a, b" <sip:y@h>, <sip:z,@h>\r\n\r\nbody'
    )
    assert message.all("via") == ["SIP/2.0/UDP a;branch=z9hG4bK1", "SIP/2.0/UDP b"]
    assert message.branch == "z9hG4bK1"
    assert message.first("from") == "<sip:x@h> ;tag=1"
    assert message.all("contact") == ['"a, b" <sip:y@h>', "<sip:z,@h>"]
    assert (message.status, message.reason, message.cseq, message.body) == (200, "OK", (1, "INVITE"), "body")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_are_refused(data: bytes) -> None:
    for text in (data, b"SIP/2.0 200 OK\r\n" + data, b"BYE sip:a SIP/2.0\r\nCSeq: 1 BYE\r\nCall-ID: x\r\n" + data):
        try:
            message = parse_message(text)
        except BadMessage:
            continue
        assert (message.method == "") == (message.status > 0)
        _ = message.cseq, message.branch, message.reason


def test_a_stream_is_cut_into_messages_wherever_it_is_torn() -> None:
    first = serialise("OPTIONS sip:a SIP/2.0", [("CSeq", "1 OPTIONS"), ("Call-ID", "x")], "some body", "text/plain")
    second = serialise("BYE sip:a SIP/2.0", [("CSeq", "2 BYE"), ("Call-ID", "x")])
    whole = b"\r\n\r\n" + first + b"\r\n" + second
    for cut in range(len(whole)):
        framing = StreamFraming()
        assert [*framing.feed(whole[:cut]), *framing.feed(whole[cut:])] == [first, second]


@pytest.mark.parametrize("data", [b"x" * 70_000, b"BYE sip:a SIP/2.0\r\nContent-Length: 99999\r\n\r\n"])
def test_a_stream_without_end_is_given_up(data: bytes) -> None:
    with pytest.raises(BadMessage):
        list(StreamFraming().feed(data))


MUFASA = Credentials("Mufasa", "Circle of Life")
RFC_7616 = (
    'Digest realm="http-auth@example.org", qop="auth, auth-int", algorithm={}, '
    'nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS"'
)
CLIENT_NONCE = "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ"


@pytest.mark.parametrize(
    ("algorithm", "response"),
    [
        ("MD5", "8ca523f5e9506fed4657c9700eebdbec"),
        ("SHA-256", "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
    ],
)
def test_the_example_of_rfc_7616(algorithm: str, response: str) -> None:
    answer = answer_challenge([RFC_7616.format(algorithm)], MUFASA, "GET", "/dir/index.html", CLIENT_NONCE)
    assert answer is not None
    assert f'response="{response}"' in answer
    assert f"algorithm={algorithm}" in answer
    assert 'opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS"' in answer


def test_the_stronger_challenge_is_answered_and_an_unknown_one_is_not() -> None:
    both = [RFC_7616.format("MD5"), RFC_7616.format("SHA-256")]
    assert "algorithm=SHA-256" in (answer_challenge(both, MUFASA, "GET", "/", "c") or "")
    assert answer_challenge([RFC_7616.format("SHA-512")], MUFASA, "GET", "/", "c") is None
    assert answer_challenge(["Basic realm=x"], MUFASA, "GET", "/", "c") is None
    without = answer_challenge(['Digest realm="r", nonce="n"'], MUFASA, "GET", "/", "c")
    assert without is not None
    assert "qop" not in without
    assert (is_stale(['Digest nonce="n", stale=TRUE']), is_stale(['Digest nonce="n"'])) == (True, False)


def test_an_offer_is_read_as_it_was_written() -> None:
    sdp = describe("127.0.0.1", 4000, ("pcma", "pcmu"), session=1, version=2)
    assert read_media(sdp, ("pcmu", "pcma")) == RemoteMedia("127.0.0.1", 4000, "pcma", 8, 101, True, True)
    assert read_media(sdp, ("pcmu",)).codec == "pcmu"


def test_other_peoples_descriptions() -> None:
    sdp = (
        "v=0\r\nc=IN IP4 10.0.0.9\r\na=sendonly\r\nm=video 9 RTP/AVP 96\r\nc=IN IP4 10.0.0.8\r\n"
        "m=audio 5000/2 RTP/AVP 18 97 98\r\na=rtpmap:97 PCMU/8000/1\r\na=rtpmap:98 telephone-event/8000\r\n"
    )
    assert read_media(sdp, ("pcmu",)) == RemoteMedia("10.0.0.9", 5000, "pcmu", 97, 98, True, False)
    held = sdp.replace("10.0.0.9", "0.0.0.0").replace("a=sendonly\r\n", "")
    media = read_media(held, ("pcmu",))
    assert (media.sends, media.receives, answering_direction(media)) == (False, False, "inactive")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("sendrecv", "sendrecv"), ("sendonly", "recvonly"), ("recvonly", "sendonly"), ("inactive", "inactive")],
)
def test_the_direction_of_an_answer(theirs: str, ours: str) -> None:
    offer = read_media(describe("::1", 2, ("pcmu",), session=1, version=1, direction=theirs), ("pcmu",))
    assert answering_direction(offer) == ours


@given(st.text(max_size=200))
def test_any_text_is_a_description_or_is_refused(text: str) -> None:
    for sdp in (text, "v=0\nc=IN IP4 127.0.0.1\nm=audio " + text):
        try:
            assert read_media(sdp, ("pcmu", "pcma")).codec in ("pcmu", "pcma")
        except NoMedia:
            continue
