"""Descriptions as peers write them, and as nobody should."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.sip.sdp import (
    MAX_CHARS,
    MAX_FORMATS,
    MAX_LINES,
    MAX_STREAMS,
    Address,
    BadSdp,
    Format,
    Stream,
    read_sdp,
    write_sdp,
)
from tests.gateway.transports.sip.descriptions import ASTERISK, LINPHONE, PCMU, SECURE, sdp


def only(text: str) -> Stream:
    (stream,) = read_sdp(text).streams
    return stream


def test_what_asterisk_writes() -> None:
    stream = only(ASTERISK)
    assert (stream.media, stream.profile, stream.direction) == ("audio", "RTP/AVP", "sendrecv")
    assert stream.address == Address("203.0.113.9", 15_220)
    assert stream.rtcp == Address("203.0.113.9", 15_221)
    assert [(one.payload_type, one.name, one.clock_hz) for one in stream.formats] == [
        (8, "pcma", 8000),
        (0, "pcmu", 8000),
        (9, "g722", 8000),
        (13, "cn", 8000),
        (101, "telephone-event", 8000),
    ]


def test_what_linphone_writes() -> None:
    audio, video = read_sdp(LINPHONE).streams
    assert audio.formats[0] == Format(96, "opus", 48_000, 2, "useinbandfec=1")
    assert [one.payload_type for one in audio.formats] == [96, 97, 98, 0, 8, 101, 99, 100], "18 says nothing of itself"
    assert (video.media, video.port, video.format_words) == ("video", 9078, ("96",))


def test_static_formats_need_no_map_and_a_map_wins() -> None:
    assert [one.name for one in only(sdp("m=audio 4000 RTP/AVP 0 8 9 13")).formats] == ["pcmu", "pcma", "g722", "cn"]
    assert [one.name for one in only(sdp("m=audio 4000 RTP/AVP 0|a=rtpmap:0 GSM/8000")).formats] == ["gsm"]
    assert only(sdp("m=audio 4000 RTP/AVP 0|a=rtpmap:0 PCMU")).formats == (), "a map that is broken is no map"


def test_bare_newlines_blanks_and_unknown_lines_do_no_harm() -> None:
    text = sdp(PCMU).replace("\r\n", "\n").replace("a=fmtp", " a=fmtp") + "\n\nz=0\nwhat\n=\n"
    assert only(text).formats[1].parameters == "0-15"


def test_a_stream_says_more_than_the_session() -> None:
    text = sdp("m=audio 4000 RTP/AVP 0|c=IN IP4 198.51.100.1|a=recvonly", PCMU, session=("a=sendonly", "a=tool:x"))
    first, second = read_sdp(text).streams
    assert (first.address.ip, first.direction) == ("198.51.100.1", "recvonly")
    assert (second.address.ip, second.direction) == ("192.0.2.7", "sendonly")


@pytest.mark.parametrize(
    ("line", "ip", "holds", "multicast"),
    [
        ("c=IN IP4 0.0.0.0", "", True, False),
        ("c=IN IP6 ::", "", True, False),
        ("c=IN IP4 224.2.36.42/127", "224.2.36.42", False, True),
        ("c=IN IP6 2001:db8::7", "2001:db8::7", False, False),
        ("c=IN IP4 phone.example.com", "", False, False),
        ("c=ATM NSAP 47", "", False, False),
        ("c=IN", "", False, False),
    ],
)
def test_addresses(line: str, ip: str, holds: bool, multicast: bool) -> None:
    stream = only(sdp(f"m=audio 4000 RTP/AVP 0|{line}"))
    assert (stream.address.ip, stream.holds_by_address, stream.multicast) == (ip, holds, multicast)


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("a=rtcp:5005", Address("192.0.2.7", 5005)),
        ("a=rtcp:5005 IN IP4 198.51.100.9", Address("198.51.100.9", 5005)),
        ("a=rtcp:5005 IN IP4 0.0.0.0", Address("", 5005)),
        ("a=rtcp:x", Address("192.0.2.7", 4001)),
        ("a=rtcp:0", Address("192.0.2.7", 4001)),
    ],
)
def test_where_reports_go(line: str, address: Address) -> None:
    assert only(sdp(f"m=audio 4000 RTP/AVP 0|{line}")).rtcp == address


def test_keys_and_mux() -> None:
    stream = only(sdp(SECURE + "|a=rtcp-mux"))
    assert stream.profile == "RTP/SAVP"
    assert stream.rtcp_mux
    assert len(stream.cryptos) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "o=- 1 1 IN IP4 1.2.3.4\r\nv=0\r\n",
        "v=1\r\n",
        sdp("m=audio"),
        sdp("m=audio x RTP/AVP 0"),
        sdp("m=audio 70000 RTP/AVP 0"),
        sdp("m=audio -1 RTP/AVP 0"),
        sdp("m=audio ４０００ RTP/AVP 0"),
        sdp("m=audio 4000 RTP/AVP " + "0 " * (MAX_FORMATS + 1)),
        sdp(*["m=audio 4000 RTP/AVP 0"] * (MAX_STREAMS + 1)),
        "v=0\r\n" + "a=x\r\n" * MAX_LINES,
        "v=0\r\n" + "a" * MAX_CHARS,
    ],
)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(BadSdp) as raised:
        read_sdp(text)
    assert raised.value.status == 400


def test_formats_out_of_range_are_passed_over() -> None:
    assert [one.payload_type for one in only(sdp("m=audio 4000/2 RTP/AVP 0 200 x 99999999999 8")).formats] == [0, 8]
    odd = "m=audio 4000 RTP/AVP 96 97|a=rtpmap:96 opus/48000/9|a=rtpmap:97 x/999999|a=rtpmap:x y|a=fmtp"
    assert only(sdp(odd)).formats == ()


@given(st.text(max_size=400) | st.lists(st.sampled_from(sdp(PCMU, SECURE).split("\r\n")), max_size=40).map("\n".join))
def test_whatever_the_text_it_is_read_or_refused(text: str) -> None:
    for candidate in (text, "v=0\r\n" + text, sdp(PCMU) + text):
        try:
            read_sdp(candidate)
        except BadSdp as error:
            assert error.status == 400  # noqa: PT017


@given(st.integers(0, 1_000_000), st.binary(min_size=1, max_size=8))
def test_a_description_with_any_hole_in_it(at: int, junk: bytes) -> None:
    text = LINPHONE + SECURE
    at %= len(text)
    try:
        read_sdp(text[:at] + junk.decode("latin-1") + text[at + len(junk) :])
    except BadSdp as error:
        assert error.status == 400  # noqa: PT017


def test_what_is_written() -> None:
    text = write_sdp("- 7 2", "192.0.2.1", [["audio 4000 RTP/AVP 0", "sendrecv"], ["video 0 RTP/AVP 96"]])
    assert text == (
        "v=0\r\no=- 7 2 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\n"
        "m=audio 4000 RTP/AVP 0\r\na=sendrecv\r\nm=video 0 RTP/AVP 96\r\n"
    )
    assert "c=IN IP6 2001:db8::1\r\n" in write_sdp("- 7 2", "2001:db8::1", [])
