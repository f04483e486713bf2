from __future__ import annotations

import random

import pytest

from gateway.transports.sip.framing import Framer
from gateway.transports.sip.message import MAX_HEAD_BYTES, MAX_MESSAGE_BYTES, Malformed

ONE = b"OPTIONS sip:x SIP/2.0\r\nContent-Length: 5\r\n\r\nhello"
TWO = b"BYE sip:x SIP/2.0\r\nl:0\r\n\r\n"
FOLDED = b"BYE sip:x SIP/2.0\r\nContent-Length:\r\n 2\r\n\r\nhi"


@pytest.mark.parametrize("seed", range(20))
def test_cut_anywhere_the_messages_are_the_same(seed: int) -> None:
    rng = random.Random(seed)
    stream = b"".join([ONE, b"\r\n\r\n", TWO, FOLDED, b"\r\n", ONE, b"\r\n\r\n\r\n\r\n", TWO])
    framer = Framer()
    found: list[bytes] = []
    while stream:
        size = rng.randint(1, 40)
        found += framer.feed(stream[:size])
        stream = stream[size:]
    assert found == [ONE, TWO, FOLDED, ONE, TWO]
    assert framer.pings == 3
    assert not framer.partial


def test_half_a_message_waits() -> None:
    framer = Framer()
    assert framer.feed(ONE[:-1]) == []
    assert framer.partial
    assert framer.feed(ONE[-1:]) == [ONE]


@pytest.mark.parametrize(
    "data",
    [
        b"BYE sip:x SIP/2.0\r\n\r\n",
        b"BYE sip:x SIP/2.0\r\nContent-Length: 1\r\nl: 2\r\n\r\n",
        b"BYE sip:x SIP/2.0\r\nContent-Length: -1\r\n\r\n",
        b"BYE sip:x SIP/2.0\r\nContent-Length: 1_0\r\n\r\n",
        b"BYE sip:x SIP/2.0\r\nContent-Length: %d\r\n\r\n" % MAX_MESSAGE_BYTES,
        b"x" * (MAX_HEAD_BYTES + 1),
    ],
)
def test_a_stream_that_cannot_be_followed(data: bytes) -> None:
    with pytest.raises(Malformed):
        Framer().feed(data)


def test_a_head_that_never_ends_is_cut_off_early_and_searched_once() -> None:
    framer = Framer()
    for _ in range(MAX_HEAD_BYTES):
        framer.feed(b"x")
    with pytest.raises(Malformed):
        framer.feed(b"x")
