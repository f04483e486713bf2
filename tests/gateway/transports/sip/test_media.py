"""A call's media between two ends, in virtual time."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest
from aiortc.rtp import RtcpByePacket, RtcpPacket, RtcpSrPacket

from gateway.transports.phone.line import LineError
from gateway.transports.rtp.packet import write_rtp
from gateway.transports.sip import codecs
from gateway.transports.sip.media import BadSdp
from gateway.transports.sip.media_policy import RtpPolicy
from gateway.transports.sip.offer_answer import Srtp
from streaming.audio.opus import OpusUnavailable
from tests.gateway.transports.sip.descriptions import sdp
from tests.gateway.transports.sip.media_rig import POLICY, agree, hang_up, place_of, speech, two
from tests.virtual_time import virtual


@virtual
async def test_a_call_in_clear() -> None:
    us, them = two()
    assert us.media.rate_hz == 8000
    agree(us, them)
    said, answered = speech(1.0), speech(1.0)[::-1].copy()
    await asyncio.gather(us.speak(said), them.speak(answered))
    await asyncio.sleep(0.1)
    for ear, pcm in ((them, said), (us, answered)):
        at = place_of(pcm[:800], ear.told.pcm)
        assert at % 160 == 0
        likeness = np.corrcoef(ear.told.pcm[at : at + 8000], pcm)[0, 1]
        assert likeness >= 0.999
    assert us.told.log == them.told.log == []
    assert not us.media.secured
    quality = us.media.quality()
    assert quality.frames_out == len(us.line.packets)
    assert quality.frames_in == pytest.approx(len(them.line.packets), abs=1)
    await hang_up(us, them)


@virtual
async def test_what_is_sent_is_on_the_grid_whether_somebody_speaks_or_not() -> None:
    us, them = two()
    agree(us, them)
    for pause_s in (0.5, 0.013, 1.0):
        await us.speak(speech(0.5))
        await asyncio.sleep(pause_s)
    packets = us.line.packets
    times = [at for at, kind, _, _ in us.line.sent if kind == "rtp"]
    for (before, after), (then_s, now_s) in zip(itertools.pairwise(packets), itertools.pairwise(times), strict=True):
        assert (after.sequence - before.sequence) & 0xFFFF == 1
        assert (after.timestamp - before.timestamp) & 0xFFFFFFFF == 160
        assert now_s - then_s == pytest.approx(0.02, abs=1e-6)
    assert {len(packet.payload) for packet in packets} == {160}
    assert [packet.marker for packet in packets].count(True) == 2, "what goes on within the lead is no new spurt"
    assert packets[0].payload == b"\xff" * 160 or packets[0].marker
    assert packets[-1].payload == b"\xff" * 160
    await hang_up(us, them)


@virtual
async def test_clear_drops_what_has_not_left_and_says_so() -> None:
    us, them = two()
    agree(us, them)
    assert not us.media.clear()
    us.media.play(speech(0.04))
    assert us.media.clear()
    await asyncio.sleep(0.1)
    assert not them.told.pcm.any()
    us.media.play(speech(1.0))
    await asyncio.sleep(0.05)
    assert us.media._sender.dropped == 40, "no more than ten frames wait"
    await hang_up(us, them)


@virtual
async def test_keys_both_ways_while_one_speaks() -> None:
    us, them = two()
    agree(us, them)
    talk = asyncio.create_task(us.speak(speech(3.0)))
    await asyncio.sleep(0.5)
    began_s = us.loop.time()
    sending = asyncio.create_task(us.media.send_dtmf("12#"))
    await asyncio.sleep(0.1)
    assert us.waits()
    with pytest.raises(LineError) as raised:
        await us.media.send_dtmf("3")
    assert raised.value.code == "busy"
    await sending
    assert us.loop.time() - began_s == pytest.approx(0.6, abs=0.05)
    assert not us.waits()
    await them.media.send_dtmf("90AB")
    await talk
    assert (them.told.keys, us.told.keys) == ("12#", "90AB")
    await hang_up(us, them)


@virtual
async def test_keys_that_cannot_be_sent() -> None:
    us, them = two()
    for code, act in (("line_down", "1"),):
        with pytest.raises(LineError) as raised:
            await us.media.send_dtmf(act)
        assert raised.value.code == code
    agree(us, them)
    for digits in ("12x", "1" * 33, "１"):
        with pytest.raises(LineError) as raised:
            await us.media.send_dtmf(digits)
        assert raised.value.code == "bad_keys"
    sending = asyncio.create_task(us.media.send_dtmf("123"))
    await asyncio.sleep(0.05)
    us.media.answer(sdp("m=audio 40000 RTP/AVP 0 101|a=rtpmap:101 telephone-event/8000|a=inactive", ip="192.0.2.2"))
    with pytest.raises(LineError) as raised:
        await sending
    assert raised.value.code == "on_hold"
    with pytest.raises(LineError) as raised:
        await us.media.send_dtmf("1")
    assert raised.value.code == "on_hold"
    us.media.answer(sdp("m=audio 40000 RTP/AVP 0", ip="192.0.2.2"))
    with pytest.raises(LineError) as raised:
        await us.media.send_dtmf("1")
    assert raised.value.code == "no_keys"
    await hang_up(us, them)


@virtual
async def test_the_end_of_a_call_ends_the_keys() -> None:
    us, them = two()
    agree(us, them)
    sending = asyncio.create_task(us.media.send_dtmf("123456789"))
    await asyncio.sleep(0.2)
    await hang_up(us, them)
    with pytest.raises(LineError) as raised:
        await sending
    assert raised.value.code == "line_down"
    us.media.play(speech(0.1))
    us.media.answer(them.media.offer())
    assert us.closed


@virtual
async def test_a_cancelled_wait_for_keys_ends_them() -> None:
    us, them = two()
    agree(us, them)
    sending = asyncio.create_task(us.media.send_dtmf("111"))
    await asyncio.sleep(0.05)
    sending.cancel()
    await asyncio.sleep(0.1)
    await us.media.send_dtmf("2")
    assert them.told.keys == "12"
    await hang_up(us, them)


@virtual
async def test_a_call_over_srtp() -> None:
    policy = RtpPolicy(bind_ip="192.0.2.1", codecs=("pcma",), srtp=Srtp.REQUIRED)
    us, them = two(POLICY, policy)
    agree(us, them)
    said = speech(1.0)
    await us.speak(said)
    await us.media.send_dtmf("42")
    await asyncio.sleep(6.0)
    assert us.media.secured
    assert them.told.keys == "42"
    at = place_of(said[:800], them.told.pcm)
    assert np.corrcoef(them.told.pcm[at : at + 7000], said[:7000])[0, 1] >= 0.999
    assert us.media.quality().round_trip_ms is not None, "reports are under the keys, too"
    refused = us.media.refused
    us.media.on_rtp(write_rtp(8, False, 9, 9, 9, bytes(160)), them.address)
    us.media.on_rtcp(b"\x80\xc9\x00\x01\x00\x00\x00\x63", (them.address[0], them.port + 1))
    us.media.on_rtp(bytes(2000), them.address)
    assert us.media.refused == refused + 3, "what is in clear is not taken"
    them.media.accept(us.media.answer(them.media.offer()))  # a session timer's refresh: the keys and the counts stay
    await us.speak(said)
    await asyncio.sleep(0.2)
    assert us.media.refused == refused + 3
    assert them.media.refused == 0
    await hang_up(us, them)


@virtual
async def test_reports_tell_both_ends_how_it_goes() -> None:
    us, them = two()
    agree(us, them)
    us.line.fate = them.line.fate = lambda data: (0.03,)
    await asyncio.sleep(20.0)
    quality = us.media.quality()
    assert quality.round_trip_ms is not None
    assert quality.round_trip_ms == pytest.approx(60, abs=1)
    assert quality.round_trip_ms == round(quality.round_trip_ms, 1), "for people, too"
    assert (quality.lost, quality.concealed, quality.late) == (0, 0, 0)
    reports = [(at, data, to) for at, kind, data, to in us.line.sent if kind == "rtcp"]
    assert 4 <= len(reports) <= 6
    assert {to for _, _, to in reports} == {(them.address[0], them.port + 1)}
    report = RtcpPacket.parse(reports[-1][1])[0]
    assert isinstance(report, RtcpSrPacket)
    (block,) = report.reports
    assert block.packets_lost == 0
    ticks = (report.sender_info.rtp_timestamp - us.line.packets[0].timestamp) & 0xFFFFFFFF
    assert ticks / 8000 == pytest.approx(reports[-1][0] - us.line.sent[0][0], abs=0.03)
    await hang_up(us, them)
    assert any(isinstance(one, RtcpByePacket) for one in RtcpPacket.parse(us.line.sent[-1][2]))


@virtual
async def test_reports_on_the_medias_own_port() -> None:
    us, them = two()
    offer = them.media.offer() + "a=rtcp-mux\r\n"
    answer = us.media.answer(offer)
    assert "a=rtcp-mux" in answer
    them.media.accept(answer)
    await asyncio.sleep(12.0)
    assert {to for end in (us, them) for _, kind, _, to in end.line.sent if kind == "rtcp"} == set()
    assert us.media.quality().round_trip_ms is not None
    await hang_up(us, them)


@virtual
async def test_a_codec_that_changes_within_the_call() -> None:
    """The rate of play stays; the other codec's is brought to it."""
    us, them = two(RtpPolicy(codecs=("pcmu", "g722")), RtpPolicy(codecs=("pcmu",)))
    agree(us, them)
    await us.speak(speech(0.3))
    ear = RtpPolicy(codecs=("g722",))
    us2, other = two(POLICY, ear)
    us.network[other.address] = other
    other.network = us.network
    other.media.accept(us.media.answer(other.media.offer()))
    assert us.media.rate_hz == 8000
    said = speech(1.0)
    await us.speak(said)
    await other.speak(speech(1.0, 16_000))
    assert other.told.rates == {16_000}
    assert us.told.rates == {8000, 16_000}
    heard = other.told.pcm[::2].copy()
    at = place_of(said[1600:3200], heard)
    assert np.corrcoef(heard[at : at + 1600], said[1600:3200])[0, 1] > 0.95
    us.media.clear()
    await hang_up(us, them, other, us2)


@virtual
async def test_a_peer_that_sends_the_other_law_of_those_agreed_is_heard() -> None:
    us, them = two()
    us.media.answer(sdp("m=audio 40000 RTP/AVP 0 8", ip="192.0.2.2"))
    for n in range(10):
        kind = 0 if n < 5 else 8
        us.media.on_rtp(
            write_rtp(kind, False, n, 160 * n, 7, b"\xff" * 160 if kind == 0 else b"\xd5" * 160), them.address
        )
        await asyncio.sleep(0.02)
    assert np.abs(us.told.pcm).max() <= 8
    assert len(us.told.pcm) == 1600
    await hang_up(us, them)


@virtual
async def test_an_offer_that_cannot_be_taken_leaves_the_call_as_it_was() -> None:
    us, them = two()
    agree(us, them)
    with pytest.raises(BadSdp):
        us.media.answer(sdp("m=audio 4000 RTP/AVP 18"))
    with pytest.raises(BadSdp):
        us.media.accept("junk")
    said = speech(0.5)
    await us.speak(said)
    await asyncio.sleep(0.1)
    assert them.told.pcm.any()
    await hang_up(us, them)


def test_without_libopus_opus_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise OpusUnavailable("not here")

    codecs.usable_codecs.cache_clear()
    monkeypatch.setattr(codecs, "find_library", nowhere)
    assert codecs.usable_codecs(("opus", "pcmu")) == ("pcmu",)
    assert codecs.usable_codecs(("pcma",)) == ("pcma",)
    codecs.usable_codecs.cache_clear()


@virtual
async def test_opus_between_two_ends() -> None:
    policy = RtpPolicy(codecs=("opus",))
    us, them = two(policy, policy)
    agree(us, them)
    assert us.media.rate_hz == 24_000
    await us.speak(speech(1.0, 24_000))
    await asyncio.sleep(3.0)
    assert them.told.rates == {16_000}
    assert len(them.told.pcm) == pytest.approx(4.0 * 16_000, abs=1600)
    assert len(us.line.packets) == pytest.approx(200, abs=3), "silence is sent like speech"
    assert len({packet.payload for packet in us.line.packets[-100:]}) == 1, "and costs nothing"
    await us.media.send_dtmf("5")
    assert them.told.keys == "5"
    await hang_up(us, them)
