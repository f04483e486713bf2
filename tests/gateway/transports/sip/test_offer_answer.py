"""Offer and answer: first, again, secured, on hold, and with what cannot be agreed on."""

from __future__ import annotations

import itertools
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.sip.offer_answer import Agreed, Local, OfferAnswer, Srtp
from gateway.transports.sip.sdp import Address, BadSdp, read_sdp
from tests.gateway.transports.sip.descriptions import ASTERISK, KEY, LINPHONE, PCMU, SECURE, sdp

ALL = ("opus", "g722", "pcmu", "pcma")


def talks(codecs: tuple[str, ...] = ALL, srtp: Srtp = Srtp.ACCEPTED, ip: str = "192.0.2.1") -> OfferAnswer:
    return OfferAnswer(Local(ip, 30_000, 30_001, codecs, srtp), 7, random.Random(1).randbytes)


def answered(offer: str, ours: OfferAnswer | None = None) -> tuple[str, Agreed]:
    ours = ours or talks()
    text = ours.answer(offer)
    assert ours.agreed is not None
    return text, ours.agreed


def refusal(offer: str, ours: OfferAnswer | None = None) -> tuple[int, str]:
    with pytest.raises(BadSdp) as raised:
        (ours or talks()).answer(offer)
    return raised.value.status, raised.value.code


def test_the_answer_to_a_plain_offer() -> None:
    text, agreed = answered(sdp(PCMU))
    assert text == (
        "v=0\r\no=- 7 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\nm=audio 30000 RTP/AVP 0 101\r\n"
        "a=rtpmap:0 PCMU/8000\r\na=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-15\r\na=ptime:20\r\na=sendrecv\r\n"
    )
    assert agreed.remote == Address("192.0.2.7", 4000)
    assert agreed.remote_rtcp == Address("192.0.2.7", 4001)
    assert (agreed.send, agreed.receive, agreed.remote_hold) == (True, True, False)


def test_the_callers_order_counts_and_other_streams_are_rejected_in_their_place() -> None:
    text, agreed = answered(LINPHONE)
    assert agreed.formats[0].name == "opus"
    assert agreed.keys is not None
    assert (agreed.keys.payload_type, agreed.keys.clock_hz) == (101, 48_000)
    assert "m=audio 30000 RTP/AVP 96 101\r\na=rtpmap:96 opus/48000/2\r\na=fmtp:96 useinbandfec=1\r\n" in text
    assert text.endswith("m=video 0 RTP/AVP 96\r\n")
    assert answered(ASTERISK)[1].formats[0].name == "pcma"
    assert answered(ASTERISK)[1].comfort_noise == 13
    assert answered(ASTERISK, talks(("g722",)))[1].formats[0].name == "g722"


def test_a_stream_before_the_audio_keeps_its_place() -> None:
    text, _ = answered(sdp("m=video 5000 RTP/AVP 96", PCMU, PCMU))
    assert [stream.port for stream in read_sdp(text).streams] == [0, 30_000, 0]


def test_keys_at_another_clock_are_better_than_none() -> None:
    offer = sdp("m=audio 4000 RTP/AVP 96 101|a=rtpmap:96 opus/48000/2|a=rtpmap:101 telephone-event/8000")
    _, agreed = answered(offer)
    assert agreed.keys is not None
    assert agreed.keys.clock_hz == 8000
    assert answered(sdp("m=audio 4000 RTP/AVP 0"))[1].keys is None


@pytest.mark.parametrize(
    ("line", "direction", "send", "receive", "hold"),
    [
        ("a=sendrecv", "sendrecv", True, True, False),
        ("a=sendonly", "recvonly", False, True, True),
        ("a=recvonly", "sendonly", True, False, False),
        ("a=inactive", "inactive", False, False, True),
        ("c=IN IP4 0.0.0.0", "inactive", False, False, True),
    ],
)
def test_directions(line: str, direction: str, send: bool, receive: bool, hold: bool) -> None:
    text, agreed = answered(sdp(f"m=audio 4000 RTP/AVP 0|{line}"))
    assert f"a={direction}\r\n" in text
    assert (agreed.send, agreed.receive, agreed.remote_hold) == (send, receive, hold)


def test_hold_and_resume_by_the_far_end_change_the_version_and_nothing_else() -> None:
    ours = talks()
    texts = [ours.answer(sdp(PCMU + line)) for line in ("", "|a=sendonly", "|a=sendonly", "|a=sendrecv")]
    versions = [re.findall(r"o=- 7 (\d+) ", text)[0] for text in texts]
    assert versions == ["1", "2", "2", "3"]
    assert texts[3].replace("7 3 IN", "7 1 IN") == texts[0]


def test_our_hold_is_in_offers_and_answers() -> None:
    ours = talks()
    ours.answer(sdp(PCMU))
    ours.hold = True
    assert "a=sendonly\r\n" in ours.offer()
    ours.accept(sdp(PCMU + "|a=recvonly"))
    assert ours.agreed is not None
    assert (ours.agreed.send, ours.agreed.receive) == (True, False)
    assert "a=sendonly\r\n" in ours.answer(sdp(PCMU)), "a refresh of theirs does not end our hold"
    assert "a=inactive\r\n" in ours.answer(sdp(PCMU + "|a=sendonly"))
    ours.hold = False
    assert "a=sendrecv\r\n" in ours.offer()


def test_a_new_offer_keeps_the_codec_in_use() -> None:
    ours = talks()
    ours.answer(ASTERISK)
    ours.answer(sdp("m=audio 4000 RTP/AVP 0 8"))
    assert ours.agreed is not None
    assert ours.agreed.formats[0].name == "pcma"
    ours.answer(sdp("m=audio 4000 RTP/AVP 0"))
    assert ours.agreed.formats[0].name == "pcmu"


def test_reports_with_the_media() -> None:
    text, agreed = answered(sdp(PCMU + "|a=rtcp-mux"))
    assert "a=rtcp-mux\r\n" in text
    assert agreed.remote_rtcp == agreed.remote
    odd = OfferAnswer(Local("192.0.2.1", 30_000, 30_007, ALL), 7, bytes)
    assert "a=rtcp:30007\r\n" in odd.answer(sdp(PCMU))


# --- secured ------------------------------------------------------------------------------------------------------


def test_an_offer_of_srtp_is_answered_with_keys() -> None:
    text, agreed = answered(sdp(SECURE))
    assert "m=audio 30000 RTP/SAVP 0\r\n" in text
    assert re.search(r"a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:[A-Za-z0-9+/]{40}\r\n", text)
    assert KEY not in text
    assert agreed.our_crypto is not None
    assert agreed.their_crypto is not None


@pytest.mark.parametrize(
    "lines",
    [
        "m=audio 4000 RTP/SAVP 0",
        f"m=audio 4000 RTP/SAVP 0|a=crypto:1 F8_128_HMAC_SHA1_80 {KEY}",
        f"m=audio 4000 RTP/SAVPF 0|a=crypto:1 AES_CM_128_HMAC_SHA1_80 {KEY}|2^20|1:4".replace("|2^20|1:4", "UNUSABLE"),
    ],
)
def test_srtp_without_usable_keys_is_never_answered_in_clear(lines: str) -> None:
    assert refusal(sdp(lines)) == (488, "no_usable_keys")


def test_what_the_operator_wants_of_srtp() -> None:
    assert refusal(sdp(SECURE), talks(srtp=Srtp.OFF)) == (488, "no_usable_keys")
    assert refusal(sdp(PCMU), talks(srtp=Srtp.REQUIRED)) == (488, "bad_profile")
    with pytest.raises(BadSdp, match="only SRTP is taken here"):
        talks(srtp=Srtp.REQUIRED).answer(sdp(PCMU))
    assert answered(sdp(SECURE), talks(srtp=Srtp.REQUIRED))[1].our_crypto is not None
    optional = sdp(PCMU + f"|a=crypto:3 AES_CM_128_HMAC_SHA1_32 {KEY}")
    text, agreed = answered(optional, talks(srtp=Srtp.REQUIRED))
    assert "RTP/AVP 0 101" in text
    assert "a=crypto:3 AES_CM_128_HMAC_SHA1_32 " in text
    assert agreed.our_crypto is not None
    text, agreed = answered(optional, talks(srtp=Srtp.OFF))
    assert "crypto" not in text
    assert agreed.our_crypto is None


def test_the_secured_one_of_two_streams_is_taken() -> None:
    text, agreed = answered(sdp(PCMU, SECURE))
    assert [stream.port for stream in read_sdp(text).streams] == [0, 30_000]
    assert agreed.our_crypto is not None
    text, agreed = answered(sdp(PCMU, SECURE), talks(srtp=Srtp.OFF))
    assert [stream.port for stream in read_sdp(text).streams] == [30_000, 0]
    assert agreed.our_crypto is None


def test_our_key_stays_through_a_hold_and_changes_with_the_suite() -> None:
    ours = talks()
    seen = []
    for offer in (SECURE, SECURE + "|a=sendonly", SECURE.replace("_80", "_32")):
        ours.answer(sdp(offer))
        assert ours.agreed is not None
        assert ours.agreed.our_crypto is not None
        seen.append(ours.agreed.our_crypto.key)
    assert seen[0] == seen[1] != seen[2]
    ours.answer(sdp(PCMU))
    assert ours.agreed is not None
    assert ours.agreed.our_crypto is None


# --- our offers ---------------------------------------------------------------------------------------------------


def test_our_first_offer_names_all_that_we_can() -> None:
    text = talks().offer()
    assert "m=audio 30000 RTP/AVP 96 9 0 8 101 102\r\n" in text
    assert "a=rtpmap:102 telephone-event/48000\r\n" in text
    assert "RTP/AVP 0 101\r\n" in talks(("pcmu",)).offer()
    assert "RTP/AVP 96 102\r\n" in talks(("opus",)).offer()


def test_both_ends_of_an_offer_agree() -> None:
    for codecs, srtp in itertools.product((ALL, ("pcma",), ("g722", "pcmu")), (Srtp.ACCEPTED, Srtp.REQUIRED)):
        us, them = talks(codecs, srtp), talks(("pcma", "pcmu"), ip="192.0.2.2")
        us.accept(them.answer(us.offer()))
        assert us.agreed is not None
        assert them.agreed is not None
        assert us.agreed.formats[0] == them.agreed.formats[0]
        assert us.agreed.keys == them.agreed.keys
        assert us.agreed.our_crypto == them.agreed.their_crypto
        assert us.agreed.their_crypto == them.agreed.our_crypto
        assert (us.agreed.our_crypto is not None) == (srtp is Srtp.REQUIRED)
        them.accept(us.answer(them.offer()))
        assert us.agreed.formats[0] == them.agreed.formats[0]


def test_an_offer_after_theirs_keeps_their_streams_and_numbers() -> None:
    ours = talks(("pcmu",))
    ours.answer(sdp("m=video 5000 RTP/AVP 96", "m=audio 4000 RTP/AVP 111|a=rtpmap:111 PCMU/8000"))
    text = ours.offer()
    assert [stream.port for stream in read_sdp(text).streams] == [0, 30_000]
    assert "m=audio 30000 RTP/AVP 111\r\n" in text
    ours.accept(sdp("m=video 0 RTP/AVP 96", "m=audio 6000 RTP/AVP 111|a=rtpmap:111 PCMU/8000"))
    assert ours.agreed is not None
    assert ours.agreed.remote.port == 6000


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (sdp(), "no_audio"),
        (sdp("m=audio 0 RTP/AVP 0"), "no_audio"),
        (sdp("m=video 4000 RTP/AVP 0"), "no_audio"),
        (sdp("m=audio 4000 RTP/AVP 0|c=IN IP4 224.0.0.1"), "no_audio"),
        (sdp("m=audio 4000 RTP/AVP 18"), "no_common_codec"),
        (sdp("m=audio 4000 RTP/AVP 110|a=rtpmap:110 PCMU/8000"), "no_common_codec"),
        (sdp(SECURE), "no_usable_keys"),
        (sdp("m=audio 4000 RTP/AVP 0", ip="2001:db8::1").replace("IP4 2001", "IP6 2001"), "bad_address_family"),
    ],
)
def test_answers_that_are_none(answer: str, code: str) -> None:
    ours = talks()
    ours.offer()
    with pytest.raises(BadSdp) as raised:
        ours.accept(answer)
    assert raised.value.code == code
    assert ours.agreed is None


@pytest.mark.parametrize("answer", [PCMU, "m=audio 4000 RTP/SAVP 0", SECURE.replace("_80", "_32")])
def test_a_secured_offer_takes_no_answer_in_clear_or_under_another_suite(answer: str) -> None:
    ours = talks(srtp=Srtp.REQUIRED)
    ours.offer()
    with pytest.raises(BadSdp) as raised:
        ours.accept(sdp(answer))
    assert raised.value.code == "no_usable_keys"


# --- what cannot be agreed on -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offer", "code"),
    [
        (sdp(), "no_audio"),
        (sdp("m=video 4000 RTP/AVP 96"), "no_audio"),
        (sdp("m=audio 0 RTP/AVP 0"), "no_audio"),
        (sdp("m=audio 4000 RTP/AVP 18"), "no_common_codec"),
        (sdp("m=audio 4000 RTP/AVP 96|a=rtpmap:96 PCMU/16000"), "no_common_codec"),
        (sdp("m=audio 4000 RTP/AVP 96|a=rtpmap:96 PCMU/8000/2"), "no_common_codec"),
        (sdp("m=audio 4000 RTP/AVP 96|a=rtpmap:96 opus/16000"), "no_common_codec"),
        (sdp("m=audio 4000 udptl t38"), "bad_profile"),
        (sdp("m=audio 4000 UDP/TLS/RTP/SAVPF 0"), "bad_profile"),
        (sdp("m=audio 4000 RTP/AVP 0|c=IN IP4 224.0.0.1"), "no_common_codec"),
        (sdp(PCMU, ip="::1").replace("IP4 ::1", "IP6 ::1"), "bad_address_family"),
    ],
)
def test_what_cannot_be_agreed_on_leaves_what_was(offer: str, code: str) -> None:
    ours = talks()
    ours.answer(sdp(PCMU))
    before = ours.agreed
    assert refusal(offer, ours) == (488, code)
    assert ours.agreed is before
    assert read_sdp(ours.answer(sdp(PCMU))).origin.startswith("- 7 1 ")


@given(st.lists(st.sampled_from((LINPHONE + ASTERISK + sdp(PCMU, SECURE)).split("\r\n")), max_size=50))
def test_whatever_the_lines_they_are_answered_or_refused(lines: list[str]) -> None:
    ours = talks()
    try:
        answer = ours.answer("v=0\r\n" + "\r\n".join(lines))
    except BadSdp as error:
        assert error.status in (400, 488)  # noqa: PT017
        return
    live = [stream for stream in read_sdp(answer).streams if stream.port]
    assert len(live) == 1
    assert ours.agreed is not None
    secured = ours.agreed.our_crypto is not None
    assert secured == bool(live[0].cryptos)
    assert secured or "SAVP" not in live[0].profile
