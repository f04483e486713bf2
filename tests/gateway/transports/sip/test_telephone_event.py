"""Keys by RFC 4733: each once, whatever is lost; and as they are sent."""

from __future__ import annotations

import random
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.sip.telephone_event import KEYS, KeyPacket, KeyReader, key_packets

CLOCK_HZ = 8000


def event(key: str, ticks: int, *, end: bool = False) -> bytes:
    return pack("!BBH", KEYS.index(key), end << 7 | 10, ticks)


def press(key: str, at: int, frames: int = 5) -> list[tuple[bytes, int, bool]]:
    """What a phone sends of one key: payload, timestamp, marker."""
    packets = [(event(key, 160 * (n + 1)), at, n == 0) for n in range(frames)]
    return packets + [(event(key, 160 * frames, end=True), at, False)] * 3


def read(packets: list[tuple[bytes, int, bool]], reader: KeyReader | None = None) -> str:
    reader = reader or KeyReader(CLOCK_HZ)
    told = [reader.read(payload, at & 0xFFFFFFFF, marker=marker) for payload, at, marker in packets]
    return "".join(key for key in told if key)


def test_a_key_is_told_with_its_first_packet_and_once() -> None:
    reader = KeyReader(CLOCK_HZ)
    first, *rest = press("5", 8000)
    assert read([first], reader) == "5"
    assert read(rest, reader) == ""


def test_all_keys() -> None:
    assert read([packet for n, key in enumerate(KEYS) for packet in press(key, 2000 * n)]) == KEYS


@given(
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=12),
    st.integers(0, 0xFFFFFFFF),
    st.integers(0, 1 << 32),
)
def test_each_key_once_whatever_packets_are_lost_if_one_is_left(keys: list[str], base: int, seed: int) -> None:
    throws, packets = random.Random(seed), []
    for n, key in enumerate(keys):
        sent = press(key, base + 2000 * n)
        kept = [packet for packet in sent if throws.random() < 0.4] or [throws.choice(sent)]
        packets += kept
    assert read(packets) == "".join(keys)


def test_what_is_late_or_doubled_is_no_key() -> None:
    one, two = press("1", 8000), press("2", 10_000)
    assert read([*one[:3], *two[:2], *one[3:], *two, *one]) == "12"


def test_a_key_held_for_long_goes_on_in_segments() -> None:
    longest = 0xFFFF
    packets = [(event("7", 800), 1000, True), (event("7", longest), 1000, False)]
    packets += [(event("7", 160), 1000 + longest, False), (event("7", 800, end=True), 1000 + longest, False)]
    assert read(packets) == "7"


def test_senders_that_move_the_timestamp_on_with_each_packet() -> None:
    packets = [(event("3", 160 * (n + 1)), 1000 + 160 * n, n == 0) for n in range(6)]
    packets.append((event("3", 960, end=True), 1000 + 160 * 6, False))
    assert read([*packets, *press("3", 6000)]) == "33"


def test_the_same_key_again_after_all_its_ends_were_lost() -> None:
    assert read([*press("9", 1000)[:5], *press("9", 3000)[1:]]) == "99"


def test_another_source_counts_anew() -> None:
    reader = KeyReader(CLOCK_HZ)
    assert read(press("1", 90_000), reader) == "1"
    reader.forget()
    assert read(press("1", 80_000), reader) == "1"


@pytest.mark.parametrize("payload", [b"", b"\x01\x0a\x00", pack("!BBH", 16, 10, 160), pack("!BBH", 255, 138, 160)])
def test_what_is_no_key(payload: bytes) -> None:
    assert KeyReader(CLOCK_HZ).read(payload, 0, marker=True) is None


@given(st.lists(st.tuples(st.binary(max_size=6), st.integers(0, 0xFFFFFFFF), st.booleans()), max_size=30))
def test_no_packets_raise(packets: list[tuple[bytes, int, bool]]) -> None:
    read(packets)


def test_what_is_sent_of_a_key() -> None:
    packets = list(key_packets("*", CLOCK_HZ))
    assert [packet.payload.hex() if packet else None for packet in packets] == [
        "0a0a00a0",
        "0a0a0140",
        "0a0a01e0",
        "0a0a0280",
        "0a0a0320",
        "0a8a0320",
        "0a8a0320",
        "0a8a0320",
        None,
        None,
    ]
    assert [packet.first for packet in packets if packet] == [True] + [False] * 7


def test_what_is_sent_is_read() -> None:
    at, told, reader, began = 500, "", KeyReader(48_000), 0
    for packet in key_packets("0123*#abcd99", 48_000):
        at += 960
        if isinstance(packet, KeyPacket):
            began = at if packet.first else began
            told += reader.read(packet.payload, began, marker=packet.first) or ""
    assert told == "0123*#ABCD99"


def test_what_cannot_be_sent() -> None:
    with pytest.raises(ValueError, match="substring"):
        key_packets("1x", CLOCK_HZ)
