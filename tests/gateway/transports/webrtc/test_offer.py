"""Offers of browsers, and offers of those who mean harm."""

from __future__ import annotations

import pytest
from aiortc.sdp import SessionDescription
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.webrtc.offer import MAX_SDP_BYTES, BadOffer, Local, Offer, parse_offer, write_answer

PRINT = ":".join(["AB"] * 32)
TRANSPORT = f"a=ice-ufrag:abcd\na=ice-pwd:{'p' * 24}\na=fingerprint:sha-256 {PRINT}\na=setup:actpass\n"
AUDIO = (
    "m=audio 9 UDP/TLS/RTP/SAVPF 111 63 0\nc=IN IP4 0.0.0.0\na=mid:0\n"
    + TRANSPORT
    + "a=sendrecv\na=rtcp-mux\na=rtpmap:111 opus/48000/2\na=fmtp:111 minptime=10;useinbandfec=1\n"
    "a=rtpmap:63 red/48000/2\na=rtpmap:0 PCMU/8000\na=candidate:1 1 udp 2113937151 203.0.113.7 50000 typ host\n"
)
VIDEO = "m=video 9 UDP/TLS/RTP/SAVPF 96\na=mid:1\n" + TRANSPORT + "a=rtcp-mux\na=rtpmap:96 VP8/90000\n"
CHANNEL = (
    "m=application 9 UDP/DTLS/SCTP webrtc-datachannel\na=mid:2\n"
    + TRANSPORT
    + "a=sctp-port:5000\na=max-message-size:262144\n"
)
LOCAL = Local(
    session_id=7,
    ufrag="local",
    pwd="q" * 22,
    fingerprint=PRINT,
    setup="active",
    candidates=("1 1 udp 2130706431 198.51.100.4 40000 typ host",),
    ssrc=1234,
    cname="us",
    sctp_port=5000,
    max_message_bytes=262144,
)


def offer(*sections: str, bundle: str = "0 1 2", session: str = "") -> str:
    head = f"v=0\no=- 1 2 IN IP4 127.0.0.1\ns=-\nt=0 0\na=group:BUNDLE {bundle}\n{session}"
    return (head + "".join(sections)).replace("\n", "\r\n")


def refused(text: str) -> str:
    with pytest.raises(BadOffer) as caught:
        parse_offer(text)
    assert str(caught.value)
    return caught.value.code


def test_a_browsers_offer() -> None:
    read = parse_offer(offer(AUDIO, VIDEO, CHANNEL))
    assert (read.audio, read.channel, read.opus, read.direction) == (0, 2, 111, "sendrecv")
    assert (read.ufrag, read.pwd, read.setup) == ("abcd", "p" * 24, "actpass")
    assert read.fingerprints == (("sha-256", PRINT),)
    assert read.candidates == ("1 1 udp 2113937151 203.0.113.7 50000 typ host",)
    assert (read.sctp_port, read.max_message_bytes) == (5000, 262144)


def test_the_transport_may_stand_above_the_sections() -> None:
    bare = AUDIO.replace(TRANSPORT, "")
    read = parse_offer(offer(bare, bundle="0", session=TRANSPORT + "a=ice-lite\n"))
    assert read.ufrag == "abcd"
    assert read.ice_lite
    assert read.channel is None


def test_the_transport_is_that_of_the_groups_first_section() -> None:
    other = CHANNEL.replace("abcd", "wxyz")
    assert parse_offer(offer(other, AUDIO, bundle="2 0")).ufrag == "wxyz"
    assert parse_offer(offer(other, AUDIO, bundle="0 2")).ufrag == "abcd"


def test_the_answer_takes_audio_and_channel_and_refuses_the_rest() -> None:
    text = write_answer(parse_offer(offer(AUDIO, VIDEO, CHANNEL, AUDIO.replace("mid:0", "mid:3"))), LOCAL)
    assert text.endswith("\r\n")
    answer = SessionDescription.parse(text)
    assert [media.kind for media in answer.media] == ["audio", "video", "application", "audio"]
    assert [media.port for media in answer.media] == [9, 0, 9, 0]
    assert [str(group) for group in answer.group] == ["BUNDLE 0 2"]
    audio, video = answer.media[:2]
    assert [str(codec) for codec in audio.rtp.codecs] == ["opus/48000/2"]
    assert audio.rtp.codecs[0].parameters["useinbandfec"] == 1
    assert (audio.direction, video.direction) == ("sendrecv", "inactive")
    assert [candidate.ip for candidate in audio.ice_candidates] == ["198.51.100.4"]
    assert audio.ssrc[0].ssrc == 1234


@pytest.mark.parametrize(("theirs", "ours"), [("sendonly", "recvonly"), ("recvonly", "sendonly")])
def test_the_direction_is_turned_round(theirs: str, ours: str) -> None:
    text = write_answer(parse_offer(offer(AUDIO.replace("sendrecv", theirs))), LOCAL)
    assert SessionDescription.parse(text).media[0].direction == ours
    assert ("a=ssrc" in text) == (ours == "sendonly")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "bad_sdp"),
        ("hello", "bad_sdp"),
        ("v=0\r\n", "no_audio"),
        (offer(VIDEO, CHANNEL), "no_audio"),
        (offer(AUDIO.replace("m=audio 9", "m=audio 0")), "no_audio"),
        (offer(AUDIO.replace("sendrecv", "inactive")), "no_audio"),
        (offer(AUDIO.replace("UDP/TLS/RTP/SAVPF", "RTP/AVP")), "no_audio"),
        (offer(AUDIO.replace("opus/48000/2", "speex/16000")), "no_opus"),
        (offer(AUDIO.replace("111", "72")), "no_opus"),
        (offer(AUDIO.replace("a=rtcp-mux\n", "")), "no_rtcp_mux"),
        (offer(AUDIO, CHANNEL, bundle="0"), "not_bundled"),
        (offer(AUDIO, CHANNEL.replace("mid:2", "mid:0")), "bad_sdp"),
        (offer(AUDIO.replace("a=ice-ufrag:abcd\n", "")), "no_ice"),
        (offer(AUDIO.replace("a=ice-ufrag:abcd", "a=ice-ufrag:a b\x00cd")), "no_ice"),
        (offer(AUDIO.replace("p" * 24, "short")), "no_ice"),
        (offer(AUDIO.replace("sha-256", "md5")), "bad_fingerprint"),
        (offer(AUDIO.replace("AB:AB", "AB:XY", 1)), "bad_fingerprint"),
        (offer(AUDIO.replace("AB:AB:", "AB:", 1)), "bad_fingerprint"),
        (offer(AUDIO.replace("actpass", "holdconn")), "bad_setup"),
        (offer(AUDIO.replace("m=audio 9", "m=audio x")), "bad_sdp"),
        (offer(AUDIO.replace("mid:0", "mid:a b")), "bad_sdp"),
        (offer(AUDIO, CHANNEL.replace("sctp-port:5000", "sctp-port:99999")), "bad_sdp"),
        (offer(AUDIO, CHANNEL.replace("262144", "lots")), "bad_sdp"),
        ("v=0\n" + "a" * MAX_SDP_BYTES, "too_large"),
        ("v=0\n" + "a\n" * 5000, "too_large"),
        (offer(AUDIO, *[VIDEO.replace("mid:1", f"mid:v{n}") for n in range(20)]), "too_large"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_a_code(text: str, code: str) -> None:
    assert refused(text) == code


def test_fingerprints_by_unknown_hashes_are_passed_over() -> None:
    read = parse_offer(offer(AUDIO.replace("a=setup", "a=fingerprint:sha-1 AB:CD\na=setup")))
    assert read.fingerprints == (("sha-256", PRINT),)


def test_candidates_are_bounded() -> None:
    many = "".join(f"a=candidate:{n} 1 udp 1 203.0.113.7 {1024 + n} typ host\n" for n in range(500))
    assert len(parse_offer(offer(AUDIO + many)).candidates) == 64


def test_a_section_on_the_groups_transport_may_have_port_0() -> None:
    assert parse_offer(offer(AUDIO, CHANNEL.replace("ation 9", "ation 0") + "a=bundle-only\n")).channel == 1
    assert parse_offer(offer(AUDIO, CHANNEL.replace("ation 9", "ation 0"))).channel is None


lines = offer(AUDIO, VIDEO, CHANNEL).split("\r\n")
scraps = (
    st.sampled_from(lines)
    | st.text(max_size=40)
    | st.sampled_from(
        [
            "m=audio 9 UDP/TLS/RTP/SAVPF 111",
            "a=group:BUNDLE",
            "a=rtpmap:",
            "a=candidate:",
            "m=",
            "a=mid:",
            "a=setup:",
            "a=",
        ]
    )
)


@given(st.lists(scraps, max_size=40), st.booleans())
def test_anything_else_is_a_bad_offer_or_can_be_answered(found: list[str], head: bool) -> None:
    answerable("\r\n".join((["v=0"] if head else []) + found))


@given(st.data())
def test_an_offer_with_one_bite_out_of_it(data: st.DataObject) -> None:
    text = offer(AUDIO, VIDEO, CHANNEL)
    at = data.draw(st.integers(0, len(text)))
    answerable(text[:at] + data.draw(st.text(max_size=6)) + text[at + data.draw(st.integers(0, 30)) :])


def answerable(text: str) -> None:
    try:
        read: Offer = parse_offer(text)
    except BadOffer:
        return
    answer = write_answer(read, LOCAL)
    assert answer.count("\r\nm=") == len(read.sections)
    assert all(line.isprintable() for line in answer.split("\r\n"))
