"""AudioSocket's messages, by bytes as the protocol's page gives them."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.asterisk import audiosocket_wire as wire

ID = uuid.UUID("40325ec2-5efd-4bd3-805f-53576e581d13")


def test_the_messages_of_a_call_are_read_by_their_bytes() -> None:
    stream = (
        bytes.fromhex("010010 40325ec25efd4bd3805f53576e581d13")
        + bytes.fromhex("100004 01000200")
        + bytes.fromhex("030001 35")
        + bytes.fromhex("120002 ff7f")
        + bytes.fromhex("ff0001 01")
        + bytes.fromhex("000000")
    )
    assert wire.Decoder().feed(stream) == [
        wire.CallId(ID),
        wire.Audio(b"\x01\x00\x02\x00", 8_000),
        wire.Digit("5"),
        wire.Audio(b"\xff\x7f", 16_000),
        wire.Failed(wire.CALLER_GONE),
        wire.HangUp(),
    ]


@given(cuts=st.lists(st.integers(0, 60), max_size=8))
def test_it_does_not_matter_how_tcp_cuts_the_stream(cuts: list[int]) -> None:
    stream = b"\x01\x00\x10" + ID.bytes + wire.encode_audio(bytes(20), 8_000) + b"\x03\x00\x01#" + wire.HANG_UP
    decoder = wire.Decoder()
    at, found = 0, []
    for cut in sorted({min(c, len(stream)) for c in cuts} | {len(stream)}):
        found += decoder.feed(stream[at:cut])
        at = cut
    assert found == wire.Decoder().feed(stream)


@given(st.binary(max_size=400))
def test_random_bytes_break_nothing(data: bytes) -> None:
    for message in wire.Decoder().feed(data):
        if isinstance(message, wire.Audio):
            assert message.pcm
            assert len(message.pcm) % 2 == 0


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("100000", "audiosocket_empty_audio"),
        ("100001 07", "audiosocket_empty_audio"),
        ("010002 4032", "audiosocket_bad_uuid"),
        ("030001 5a", "audiosocket_bad_digit"),
        ("030002 3132", "audiosocket_bad_digit"),
        ("030000", "audiosocket_bad_digit"),
        ("420003 616263", "audiosocket_unknown_type"),
    ],
)
def test_what_means_nothing_is_named(message: str, reason: str) -> None:
    assert wire.Decoder().feed(bytes.fromhex(message)) == [wire.Ignored(reason)]


def test_half_a_sample_is_left_out() -> None:
    assert wire.Decoder().feed(bytes.fromhex("100003 010203")) == [wire.Audio(b"\x01\x02", 8_000)]


def test_audio_goes_out_in_one_message_of_its_rate() -> None:
    assert wire.encode_audio(b"\x01\x00" * 160, 8_000)[:3] == b"\x10\x01\x40"
    assert wire.encode_audio(b"\x01\x00" * 320, 16_000)[:3] == b"\x12\x02\x80"
    with pytest.raises(ValueError, match="11025"):
        wire.encode_audio(b"\x01\x00", 11_025)
    with pytest.raises(ValueError, match="65535"):
        wire.encode_audio(b"", 8_000)
    with pytest.raises(ValueError, match="65535"):
        wire.encode_audio(bytes(70_000), 8_000)
