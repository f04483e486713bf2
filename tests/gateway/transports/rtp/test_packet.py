from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.rtp.packet import RtpPacket, is_rtcp, parse_rtp, write_rtp


@given(
    st.builds(
        RtpPacket,
        st.integers(0, 127),
        st.booleans(),
        st.integers(0, 0xFFFF),
        st.integers(0, 0xFFFFFFFF),
        st.integers(0, 0xFFFFFFFF),
        st.binary(max_size=40),
    )
)
def test_what_is_written_is_read(packet: RtpPacket) -> None:
    assert parse_rtp(write_rtp(*packet)) == packet


def test_the_bytes_on_the_wire() -> None:
    assert write_rtp(8, True, 0x0102, 0x03040506, 0x0708090A, b"\xd5").hex() == "80880102030405060708090ad5"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x00" + bytes(9),
        b"\x00" + bytes(20),
        b"\x90\x00" + bytes(10) + b"\xbe\xde",
        b"\x90\x00" + bytes(10) + b"\xbe\xde\xff\xff",
        b"\x8f\x00" + bytes(20),
        b"\xa0\x00" + bytes(10) + b"\x02",
    ],
    ids=["empty", "short", "version", "cut extension", "long extension", "sources", "padding"],
)
def test_what_is_no_packet(data: bytes) -> None:
    assert parse_rtp(data) is None


def test_padding_extension_and_sources_are_left_out() -> None:
    data = b"\xb1\x00" + bytes(10) + pack("!LHHL", 5, 0xBEDE, 1, 0) + b"voice" + b"\x00\x00\x03"
    packet = parse_rtp(data)
    assert packet is not None
    assert packet.payload == b"voice"


@given(st.binary(max_size=80))
def test_no_bytes_raise(data: bytes) -> None:
    parse_rtp(data)
    is_rtcp(data)


def test_reports_are_told_from_media() -> None:
    assert is_rtcp(b"\x80\xc8")
    assert is_rtcp(b"\x80\xcf")
    assert not is_rtcp(b"\x80\x80")
    assert not is_rtcp(b"\x80")
