"""Datagrams that nobody should send: nothing of them is heard, kept, or costs more than its bound."""

from __future__ import annotations

import asyncio
import os
import random
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.rtp.packet import write_rtp
from gateway.transports.sip.caller_stream import MAX_SOURCES
from gateway.transports.sip.media import MAX_BURST, PACKETS_A_FRAME
from gateway.transports.sip.media_policy import RtpPolicy
from gateway.transports.sip.offer_answer import Srtp
from tests.gateway.transports.sip.descriptions import sdp
from tests.gateway.transports.sip.media_rig import agree, hang_up, speech, two
from tests.virtual_time import run_virtual, virtual

STRANGER = ("198.51.100.66", 40_000)


def voice(n: int, *, kind: int = 0, ssrc: int = 7, payload: bytes = b"\x9a" * 160) -> bytes:
    return write_rtp(kind, False, n & 0xFFFF, 160 * n & 0xFFFFFFFF, ssrc, payload)


@virtual
async def test_a_stranger_is_not_heard_and_hears_nothing() -> None:
    us, them = two()
    agree(us, them)
    await asyncio.sleep(0.1)
    for n in range(50):
        us.media.on_rtp(voice(n, ssrc=them.media._sender.ssrc), STRANGER)
        us.media.on_rtcp(bytes.fromhex("80c9000100000007"), STRANGER)
        await asyncio.sleep(0.02)
    assert not us.told.pcm.any()
    assert us.media.refused == 100
    assert STRANGER not in {to for _, _, _, to in us.line.sent}
    assert us.media.quality().lost == 0
    await hang_up(us, them)


@virtual
async def test_a_flood_of_strangers_starves_nobody() -> None:
    us, them = two()
    agree(us, them)
    await asyncio.sleep(0.1)
    heard = us.media.quality().frames_in
    for _ in range(50):
        for n in range(200):
            us.media.on_rtp(voice(n), STRANGER)
            us.media.on_rtcp(bytes.fromhex("80c9000100000007"), STRANGER)
        await asyncio.sleep(0.02)
    assert us.media.quality().frames_in - heard == pytest.approx(50, abs=1)
    assert us.media.refused == 20_000
    await hang_up(us, them)


@virtual
async def test_a_stranger_who_is_faster_than_the_caller_holds_the_place_for_a_moment_only() -> None:
    us, them = two()
    them_offer = them.media.offer()
    answer = us.media.answer(them_offer)
    us.media.on_rtp(voice(0), STRANGER)
    await asyncio.sleep(0.1)
    them.media.accept(answer)
    await them.speak(speech(0.5))
    us.media.on_rtp(voice(1), STRANGER)
    assert {to for _, kind, _, to in us.line.sent[-10:] if kind == "rtp"} == {them.address}
    assert us.told.pcm.any()
    await hang_up(us, them)


@virtual
async def test_bytes_that_are_no_media_latch_nothing() -> None:
    us, them = two()
    us.media.answer(them.media.offer())
    for data in (b"", b"\x80", os.urandom(40), bytes(1500), voice(0, kind=77), b"\x80\xc8" + bytes(30)):
        us.media.on_rtp(data, STRANGER)
        us.media.on_rtcp(data[:3], STRANGER)
    await asyncio.sleep(0.1)
    assert STRANGER not in {to for _, _, _, to in us.line.sent}
    assert us.told.blocks == []
    await hang_up(us, them)


@virtual
async def test_a_flood_from_the_caller_itself_is_bounded() -> None:
    us, them = two()
    us.media.answer(them.media.offer())
    for n in range(10_000):
        us.media.on_rtp(voice(n), them.address)
    assert us.media.quality().frames_in == MAX_BURST
    await asyncio.sleep(1.0)
    for n in range(10_000):
        us.media.on_rtp(voice(n), them.address)
    assert us.media.quality().frames_in <= 2 * MAX_BURST
    await asyncio.sleep(0.1)
    assert us.media._budget <= 6 * PACKETS_A_FRAME
    await hang_up(us, them)


@virtual
async def test_a_caller_who_is_always_another_under_the_same_keys_is_hung_up() -> None:
    policy = RtpPolicy(bind_ip="192.0.2.1", codecs=("pcmu",), srtp=Srtp.REQUIRED)
    us, them = two(policy, policy)
    agree(us, them)
    secure = them.media._path._secure
    assert secure is not None
    for n in range(MAX_SOURCES + 1):
        assert us.told.log == [] or n == MAX_SOURCES  # the caller's own stream is one of them
        us.media.on_rtp(secure.protect(voice(n, ssrc=n)), them.address)
        await asyncio.sleep(0.01)
    assert us.told.log == [("lost", "protocol_error")]
    await hang_up(us, them)


@virtual
async def test_a_stranger_who_is_faster_than_the_caller_does_not_end_the_call() -> None:
    us, them = two()
    us.media.answer(them.media.offer())
    for n in range(2 * MAX_SOURCES):
        us.media.on_rtp(voice(n, ssrc=n), STRANGER)
        await asyncio.sleep(0.002)
    assert us.told.log == []
    heard = len(us.told.pcm)
    for n in range(20):
        us.media.on_rtp(voice(n, ssrc=9_999), them.address)
        us.media.on_rtp(voice(n, ssrc=n), STRANGER)
        await asyncio.sleep(0.02)
    assert us.media.refused >= 20
    assert len(us.told.pcm) >= heard + 19 * 160
    assert not us.media._stream._sources
    await hang_up(us, them)


@virtual
async def test_another_source_once_is_a_transfer_behind_a_pbx() -> None:
    us, them = two()
    us.media.answer(them.media.offer())
    for n in range(20):
        us.media.on_rtp(voice(n + (30_000 if n > 9 else 0), ssrc=1 if n < 10 else 2), them.address)
        await asyncio.sleep(0.02)
    assert len(us.told.pcm) == 20 * 160
    assert us.told.log == []
    await hang_up(us, them)


@virtual
async def test_payloads_of_odd_lengths_are_heard_or_counted() -> None:
    us, them = two()
    us.media.answer(them.media.offer())
    at = 0
    for n, length in enumerate((160, 80, 240, 1, 1400, 0, 160)):
        us.media.on_rtp(write_rtp(0, False, n, at, 7, b"\x9a" * length), them.address)
        at += length
        await asyncio.sleep(0.02)
    assert len(us.told.pcm) == at
    await hang_up(us, them)


@virtual
async def test_timestamps_that_run_make_no_hours_of_silence() -> None:
    us, them = two()
    us.media.answer(them.media.offer())
    throws = random.Random(1)
    for n in range(500):
        us.media.on_rtp(write_rtp(0, False, n, throws.getrandbits(32), 7, b"\x9a" * 160), them.address)
        await asyncio.sleep(0.02)
    assert len(us.told.pcm) <= (500 * 0.02 + 1) * 8000 + 500 * 160
    await hang_up(us, them)


@virtual
async def test_no_key_can_be_made_of_junk_and_a_held_key_is_one() -> None:
    us, them = two()
    us.media.answer(them.media.offer())
    throws = random.Random(2)
    for n in range(200):
        us.media.on_rtp(voice(n, kind=101, payload=throws.randbytes(throws.randrange(4))), them.address)
        us.media.on_rtp(voice(n + 300, kind=101, payload=pack("!BBH", 200, 0, 0)), them.address)
        await asyncio.sleep(0.02)
    assert us.told.keys == ""
    for n in range(1000):
        us.media.on_rtp(write_rtp(101, n == 0, n + 600, 77, 7, pack("!BBH", 5, 10, 160 * n & 0xFFFF)), them.address)
        await asyncio.sleep(0.02)
    assert us.told.keys == "5"
    await hang_up(us, them)


datagrams = st.binary(max_size=200) | st.builds(
    lambda head, kind, rest: bytes([head, kind]) + rest,
    st.sampled_from((0x80, 0x90, 0xA0, 0x8F, 0xBF)),
    st.sampled_from((0, 8, 101, 0x80, 13, 200, 201, 203)),
    st.binary(min_size=10, max_size=200),
)


@given(st.lists(st.tuples(datagrams, st.booleans(), st.booleans()), max_size=25), st.booleans())
def test_no_datagrams_raise(stream: list[tuple[bytes, bool, bool]], mux: bool) -> None:
    async def call() -> None:
        us, them = two()
        us.media.on_rtp(b"\x80" * 20, them.address)
        us.media.on_rtcp(b"\x80" * 20, them.address)
        us.media.answer(sdp("m=audio 40000 RTP/AVP 0 8 13 101|a=rtpmap:101 telephone-event/8000" + "|a=rtcp-mux" * mux))
        for data, by_caller, report in stream:
            source = them.address if by_caller else STRANGER
            (us.media.on_rtcp if report else us.media.on_rtp)(data, source)
            await asyncio.sleep(0.01)
        await asyncio.sleep(1.0)
        await hang_up(us, them)

    run_virtual(call())


@virtual
@pytest.mark.parametrize("report", [False, True])
async def test_a_defect_where_packets_come_in_ends_that_call(report: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    us, them = two()
    agree(us, them)

    def broken(*_: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(us.media._stream, "take", broken)
    monkeypatch.setattr(us.media._reports, "receive", broken)
    (us.media.on_rtcp if report else us.media.on_rtp)(bytes(20), (them.address[0], them.address[1] + report))
    assert us.told.log == [("lost", "internal_error")]
    await asyncio.sleep(0.1)
    assert us.line.packets == []
    await hang_up(us, them)


@virtual
async def test_a_defect_in_one_call_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    us, them = two()
    agree(us, them)
    await asyncio.sleep(0.1)
    monkeypatch.setattr(us.media._sender, "tick", lambda number, now_s: 1 / 0)
    await asyncio.sleep(0.1)
    assert us.told.log == [("lost", "internal_error")]
    assert ("lost", "internal_error") not in them.told.log
    await hang_up(us, them)
