"""What networks and the far end do to a call's media: loss, jitter, silence, holds, death."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from gateway.transports.rtp.packet import parse_rtp, write_rtp
from gateway.transports.sip.media_policy import RtpPolicy
from streaming.audio.level import rms_dbfs
from tests.gateway.transports.sip.descriptions import sdp
from tests.gateway.transports.sip.media_rig import End, agree, click, hang_up, place_of, speech, two
from tests.virtual_time import virtual


def voice(n: int, *, kind: int = 0, ssrc: int = 7, at: int | None = None, payload: bytes = b"\x9a" * 160) -> bytes:
    return write_rtp(kind, False, n & 0xFFFF, 160 * (n if at is None else at) & 0xFFFFFFFF, ssrc, payload)


@virtual
@pytest.mark.parametrize("percent", [1, 5, 10])
async def test_loss_costs_no_time_and_makes_no_clicks(percent: int) -> None:
    us, them = two()
    agree(us, them)
    throws = random.Random(percent)
    them.line.fate = lambda data: () if throws.random() * 100 < percent else (0.02 + throws.random() * 0.015,)
    said = speech(20.0)
    await them.speak(said)
    await asyncio.sleep(0.3)
    begin = place_of(said[4000:5600], us.told.pcm[:20_000]) - 4000
    heard = us.told.pcm[begin : begin + len(said)]
    assert place_of(said[-4000:-2400], heard[-12_000:]) == pytest.approx(8000, abs=8), "no drift"
    assert click(heard) <= 1.5 * click(said)
    quality = us.media.quality()
    assert quality.lost is not None
    assert quality.concealed is not None
    assert 0 < quality.lost == pytest.approx(10.0 * percent, rel=0.6)
    assert quality.concealed == pytest.approx(quality.lost, abs=3)
    assert rms_dbfs(heard) == pytest.approx(rms_dbfs(said), abs=1.0)
    await hang_up(us, them)


@virtual
async def test_a_network_that_stalls_again_and_again_makes_the_call_no_longer() -> None:
    """Each stall is told as silence, and then its packets come: the pauses of the talk pay for it."""
    us, them = two()
    agree(us, them)
    loop = us.loop

    def stall(data: bytes) -> tuple[float, ...]:
        late_s = loop.time() % 3.0
        return (0.6 - late_s,) if late_s < 0.6 else (0.0,)

    them.line.fate = stall
    began_s, before = loop.time(), len(us.told.pcm)
    said = speech(1.5)
    for _ in range(10):
        await them.speak(said)
        await asyncio.sleep(1.5)
    heard_s = (len(us.told.pcm) - before) / 8000
    assert heard_s == pytest.approx(loop.time() - began_s, abs=0.6)
    stream = us.media._stream.receiver
    assert stream.counts.overlap_ticks > 3 * 8000
    loud = int((np.abs(us.told.pcm.astype(np.int32)) > 300).sum())
    assert loud == pytest.approx(10 * int((np.abs(said.astype(np.int32)) > 300).sum()), rel=0.01), (
        "no voice is left out"
    )
    await hang_up(us, them)


@virtual
async def test_packets_that_come_in_another_order_and_twice() -> None:
    us, them = two()
    agree(us, them)
    throws = random.Random(3)
    them.line.fate = lambda data: (throws.uniform(0.0, 0.05), throws.uniform(0.0, 0.05))
    said = speech(5.0)
    await them.speak(said)
    await asyncio.sleep(0.3)
    begin = place_of(said[8000:9600], us.told.pcm) - 8000
    assert np.corrcoef(us.told.pcm[begin + 1600 : begin + 38_000], said[1600:38_000])[0, 1] >= 0.999
    await hang_up(us, them)


@virtual
async def test_ten_minutes_without_drift_either_way() -> None:
    us, them = two()
    agree(us, them)
    said, began_s = speech(2.0), us.loop.time() + 0.007  # between two frames of the grid
    marks: list[tuple[int, ...]] = []
    for n in range(11):
        await asyncio.sleep(began_s + 60.0 * n - us.loop.time())
        heard = len(us.told.pcm), len(them.told.pcm)
        await asyncio.gather(us.speak(said), them.speak(said))
        await asyncio.sleep(0.2)
        ears = zip((us, them), heard, strict=True)
        marks.append(tuple(place_of(said[8000:9600], ear.told.pcm[at:]) + at for ear, at in ears))
    for side in (0, 1):
        drift_ms = [(mark[side] - marks[0][side]) / 8 - 60_000 * n for n, mark in enumerate(marks)]
        assert max(map(abs, drift_ms)) < 1
    assert us.media.quality().lost == them.media.quality().lost == 0
    await hang_up(us, them)


@virtual
async def test_a_sender_whose_clock_is_wrong_is_followed() -> None:
    """500 ppm for a minute: what comes is heard, nothing piles up."""
    us, them = two()
    us.media.answer(them.media.offer())
    for n in range(3000):
        us.media.on_rtp(voice(n), them.address)
        await asyncio.sleep(0.02 * 0.9995)
    assert len(us.told.pcm) == pytest.approx(3000 * 160, abs=160)
    assert us.told.log == []
    await hang_up(us, them)


@virtual
async def test_a_caller_who_sends_nothing_while_silent_is_silent() -> None:
    us, them = two()
    agree(us, them)
    await asyncio.sleep(0.1)
    them.line.fate = lambda data: ()
    heard = len(us.told.pcm)
    await asyncio.sleep(1.0)
    assert len(us.told.pcm) - heard == pytest.approx(8000 - 0.15 * 8000, abs=900)
    assert not us.told.pcm[heard:].any()
    them.line.fate = lambda data: (0.0,)
    await them.speak(speech(0.5))
    await asyncio.sleep(0.1)
    total_s = len(us.told.pcm) / 8000
    assert total_s == pytest.approx(1.7, abs=0.1), "nothing twice: what was filled is not filled again"
    await hang_up(us, them)


@virtual
async def test_comfort_noise_is_silence_and_reports_show_that_its_sender_lives() -> None:
    us, them = two()
    us.media.answer(sdp("m=audio 40000 RTP/AVP 0 13", ip="192.0.2.2"))
    us.media.on_rtp(voice(0), them.address)
    us.media.on_rtp(write_rtp(13, False, 1, 160, 7, b"\x40"), them.address)
    for _ in range(8):
        await asyncio.sleep(2.0)
        us.media.on_rtcp(bytes.fromhex("80c9000100000007"), (them.address[0], them.port + 1))
    assert us.told.log == [] or ("lost", "media_timeout") not in us.told.log
    assert len(us.told.pcm) == pytest.approx(16 * 8000, rel=0.02)
    us.media.on_rtp(voice(2, at=100), them.address)
    assert us.media.quality().lost == 0
    await hang_up(us, them)


@virtual
async def test_a_caller_whose_media_stops_is_suspect_and_then_lost() -> None:
    us, them = two()
    agree(us, them)
    await asyncio.sleep(1.0)
    them.line.fate = lambda data: ()
    await asyncio.sleep(1.95)
    assert us.told.log == []
    await asyncio.sleep(0.15)
    assert us.told.log == [("suspect", True)]
    them.line.fate = lambda data: (0.0,)
    await asyncio.sleep(1.0)
    assert us.told.log == [("suspect", True), ("suspect", False)]
    them.line.fate = lambda data: ()
    await asyncio.sleep(11.0)
    assert us.told.log[2:] == [("suspect", True), ("lost", "media_timeout")]
    sent = len(us.line.sent)
    us.media.on_rtp(voice(5), them.address)
    us.media.play(speech(0.1))
    await asyncio.sleep(1.0)
    assert len(us.line.sent) == sent, "nothing more is sent"
    await hang_up(us, them)


@virtual
async def test_a_caller_who_never_sends_is_lost_too() -> None:
    us, them = two()
    us.media.answer(them.media.offer())
    await asyncio.sleep(11.0)
    assert ("lost", "media_timeout") in us.told.log
    await hang_up(us, them)


@virtual
async def test_while_it_rings_nothing_is_sent_and_nothing_expected() -> None:
    us, them = two(RtpPolicy(codecs=("pcmu",), starts_at_once=False))
    us.media.start()
    us.media.start()
    other, _ = two(RtpPolicy(codecs=("pcmu",), starts_at_once=False))
    other.media.answer(them.media.offer())
    await asyncio.sleep(30.0)
    assert other.told.log == []
    assert not [kind for _, kind, _, _ in other.line.sent if kind == "rtp"]
    other.media.on_rtp(voice(0), them.address)
    assert len(other.told.pcm) == 160, "early media is heard"
    other.media.start()
    await asyncio.sleep(1.0)
    assert [kind for _, kind, _, _ in other.line.sent].count("rtp") == pytest.approx(50, abs=1)
    await asyncio.sleep(10.0)
    assert ("lost", "media_timeout") in other.told.log
    await hang_up(us, them, other)


@virtual
async def test_the_far_end_holds_and_resumes() -> None:
    us, them = two()
    agree(us, them)
    await us.speak(speech(0.5))
    await them.media.hold(True)
    them.media.accept(us.media.answer(them.media.offer()))
    assert us.held()
    assert us.waits()
    sent, heard = len(us.line.packets), len(us.told.pcm)
    us.media.play(speech(0.2))
    await them.speak(speech(1.0))
    await asyncio.sleep(59.0)
    assert len(us.told.pcm) == heard, "music on hold is no caller"
    assert len(us.line.packets) == sent, "nobody wants to hear us"
    assert [kind for _, kind, _, _ in us.line.sent].count("rtcp") > 8, "reports go on"
    us.media.answer(sdp("m=audio 40000 RTP/AVP 0|a=inactive", ip="192.0.2.2"))
    them.line.fate = lambda data: ()
    await asyncio.sleep(60.0)
    assert us.told.log == [], "a hold is no lost media"
    them.line.fate = lambda data: (0.0,)
    await them.media.hold(False)
    them.media.accept(us.media.answer(them.media.offer()))
    assert not us.held()
    heard = len(us.told.pcm)
    before = us.line.packets[-1]
    await asyncio.sleep(1.0)
    assert len(us.told.pcm) - heard == pytest.approx(8000, abs=640), "a minute's hold leaves no minute of silence"
    after = us.line.packets[-1]
    assert us.line.packets[sent].sequence == (before.sequence + 1) & 0xFFFF
    ticks = (after.timestamp - before.timestamp) & 0xFFFFFFFF
    assert ticks / 8000 == pytest.approx(121.0, abs=0.1), "timestamps follow the clock"
    await hang_up(us, them)


@virtual
async def test_we_hold_and_resume() -> None:
    us, them = two()
    agree(us, them)
    await asyncio.sleep(0.5)
    await us.media.hold(True)
    heard = len(us.told.pcm)
    us.media.accept(them.media.answer(us.media.offer()))
    assert them.held()
    assert not them.media._sends, "the caller is told not to send"
    await asyncio.sleep(30.0)
    assert len(us.told.pcm) == heard
    assert us.told.log == them.told.log == []
    await us.media.hold(False)
    us.media.accept(them.media.answer(us.media.offer()))
    said = speech(1.0)
    await them.speak(said)
    await asyncio.sleep(0.1)
    at = place_of(said[800:2400], us.told.pcm)
    assert np.corrcoef(us.told.pcm[at : at + 6000], said[800:6800])[0, 1] >= 0.999
    assert us.told.log == []
    await hang_up(us, them)


@virtual
async def test_media_that_moves_with_a_new_description() -> None:
    us, them = two()
    agree(us, them)
    await asyncio.sleep(0.2)
    moved = End(("198.51.100.3", 44_000), RtpPolicy(codecs=("pcmu",)), 5)
    moved.network = us.network
    us.network[moved.address] = moved
    moved.media.accept(us.media.answer(moved.media.offer()))
    heard = len(us.told.pcm)
    await asyncio.gather(us.speak(speech(0.5)), moved.speak(speech(0.5)))
    assert {to for at, kind, _, to in us.line.sent[-20:] if kind == "rtp"} == {moved.address}
    assert us.told.pcm[heard:].any()
    assert moved.told.pcm.any()
    await hang_up(us, them, moved)


@virtual
async def test_a_caller_behind_a_nat_is_answered_where_it_comes_from() -> None:
    us, them = two()
    answer = us.media.answer(sdp("m=audio 40000 RTP/AVP 0", ip="10.0.0.5"))
    assert "sendrecv" in answer
    await asyncio.sleep(0.1)
    assert {to for _, _, _, to in us.line.sent} == {("10.0.0.5", 40_000)}
    us.media.on_rtp(voice(0), ("203.0.113.1", 61_000))
    await asyncio.sleep(1.0)
    assert us.line.sent[-1][3][0] == "203.0.113.1"
    assert {to for _, kind, _, to in us.line.sent[-30:] if kind == "rtp"} == {("203.0.113.1", 61_000)}
    assert {to for _, kind, _, to in us.line.sent if kind == "rtcp"} == {("203.0.113.1", 61_001)}
    us.media.on_rtcp(bytes.fromhex("80c9000100000007"), ("203.0.113.1", 61_777))
    await asyncio.sleep(6.0)
    assert {to for _, kind, _, to in us.line.sent[-60:] if kind == "rtcp"} <= {("203.0.113.1", 61_777)}
    await hang_up(us, them)


@virtual
async def test_where_nobody_is_known_nothing_is_sent_until_somebody_comes() -> None:
    us, them = two()
    us.media.answer(sdp("m=audio 40000 RTP/AVP 0|c=IN IP4 phone.example.com"))
    await asyncio.sleep(1.0)
    assert us.line.sent == []
    us.media.on_rtp(voice(0), them.address)
    await asyncio.sleep(0.1)
    assert {to for _, _, _, to in us.line.sent} == {them.address}
    await hang_up(us, them)


@virtual
async def test_a_voice_that_is_cut_ends_without_a_click() -> None:
    us, them = two()
    agree(us, them)
    said = speech(2.0)
    talk = asyncio.create_task(us.speak(said))
    await asyncio.sleep(1.003)
    talk.cancel()
    us.media.clear()
    await asyncio.sleep(0.5)
    heard = them.told.pcm
    assert click(heard) <= 1.5 * click(said)
    assert not heard[-2000:].any()
    parsed = [parse_rtp(data) for _, kind, data, _ in us.line.sent if kind == "rtp"]
    assert all(parsed)
    await hang_up(us, them)
