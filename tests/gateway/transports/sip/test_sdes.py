from __future__ import annotations

import base64

import pylibsrtp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.rtp.packet import write_rtp
from gateway.transports.sip.sdes import MAX_CRYPTOS, Crypto, SecureMedia, key_bytes, read_crypto, usable_crypto
from tests.gateway.transports.sip.descriptions import KEY

SUITES = ("AES_CM_128_HMAC_SHA1_80", "AES_CM_128_HMAC_SHA1_32", "AEAD_AES_128_GCM", "AEAD_AES_256_GCM")
GOOD = f"1 AES_CM_128_HMAC_SHA1_80 {KEY}"


def test_a_key_is_read_and_never_shown() -> None:
    crypto = read_crypto(GOOD)
    assert crypto is not None
    assert (crypto.tag, crypto.suite, len(crypto.key)) == (1, "AES_CM_128_HMAC_SHA1_80", 30)
    assert crypto.attribute == f"crypto:{GOOD}"
    assert "WVNf" not in repr(crypto)
    assert repr(crypto.key) not in repr(crypto)


@pytest.mark.parametrize(
    "value", [GOOD, f"{GOOD}|2^31", f"{GOOD}|2^20 WSH=128", GOOD.lower().replace(KEY.lower(), KEY)]
)
def test_what_can_be_used(value: str) -> None:
    assert read_crypto(value) is not None


@pytest.mark.parametrize(
    "value",
    [
        "",
        "1 AES_CM_128_HMAC_SHA1_80",
        "1 F8_128_HMAC_SHA1_80 " + KEY,
        f"{GOOD}|2^20|1:4",
        f"{GOOD}|1:4",
        f"{GOOD} UNENCRYPTED_SRTP",
        f"{GOOD} KDR=1",
        "1 AES_CM_128_HMAC_SHA1_80 inline:AAAA",
        "1 AES_CM_128_HMAC_SHA1_80 inline:=====",
        "1 AEAD_AES_128_GCM " + KEY,
        "x AES_CM_128_HMAC_SHA1_80 " + KEY,
    ],
)
def test_what_cannot(value: str) -> None:
    assert read_crypto(value) is None


def test_the_first_that_can_be_used_is() -> None:
    values = ("1 F8_128_HMAC_SHA1_80 " + KEY, "2 AES_CM_128_HMAC_SHA1_32 " + KEY, GOOD)
    chosen = usable_crypto(values)
    assert chosen is not None
    assert chosen.tag == 2
    assert usable_crypto(("junk",) * MAX_CRYPTOS + (GOOD,)) is None
    assert usable_crypto(()) is None


@given(st.text(max_size=120))
def test_no_text_raises(text: str) -> None:
    read_crypto(text)
    read_crypto(GOOD + text)


def pair(suite: str) -> tuple[SecureMedia, SecureMedia]:
    ours, theirs = (Crypto(1, suite, bytes([fill]) * key_bytes(suite)) for fill in (1, 2))
    return SecureMedia(ours, theirs), SecureMedia(theirs, ours)


@pytest.mark.parametrize("suite", SUITES)
def test_both_ways_under_each_suite(suite: str) -> None:
    a, b = pair(suite)
    packet = write_rtp(0, False, 1, 160, 99, b"voice")
    report = b"\x80\xc9\x00\x01\x00\x00\x00\x63"
    assert b.unprotect(a.protect(packet)) == packet
    assert a.unprotect(b.protect(packet)) == packet
    assert b.unprotect_rtcp(a.protect_rtcp(report)) == report
    assert b"voice" not in a.protect(write_rtp(0, False, 2, 320, 99, b"voice"))


def test_forged_and_repeated_packets_are_refused() -> None:
    a, b = pair(SUITES[0])
    sent = a.protect(write_rtp(0, False, 1, 160, 99, b"voice"))
    with pytest.raises(pylibsrtp.Error):
        b.unprotect(sent[:-1] + bytes([sent[-1] ^ 1]))
    b.unprotect(sent)
    with pytest.raises(pylibsrtp.Error):
        b.unprotect(sent)


def test_an_rfc_4568_key_is_the_one_that_it_says() -> None:
    crypto = read_crypto(GOOD)
    assert crypto is not None
    assert crypto.key == base64.b64decode(KEY.removeprefix("inline:"))


def test_a_new_key_of_one_side_leaves_the_others_count_as_it_was() -> None:
    """Packet counts have 48 bits, of which the wire has 16: who forgets the rest is not understood any more."""
    ours, theirs, next_theirs = (Crypto(1, SUITES[0], bytes([fill]) * 30) for fill in (1, 2, 3))
    a, b = SecureMedia(ours, theirs), SecureMedia(theirs, ours)
    for sequence in (65_534, 65_535, 0, 1):
        b.unprotect(a.protect(write_rtp(0, False, sequence, 0, 99, b"voice")))
    a = SecureMedia(Crypto(2, ours.suite, ours.key), next_theirs, before=a)
    b = SecureMedia(next_theirs, ours, before=b)
    packet = write_rtp(0, False, 2, 0, 99, b"voice")
    assert b.unprotect(a.protect(packet)) == packet
    assert a.unprotect(b.protect(packet)) == packet
    with pytest.raises(pylibsrtp.Error):
        a.protect(packet)
