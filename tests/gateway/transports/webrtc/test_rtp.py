"""RTP in and out without sockets, in virtual time."""

from __future__ import annotations

import asyncio
import random
import statistics
from struct import pack

import numpy as np
import pytest
from aiortc.jitterbuffer import JitterBuffer as StockBuffer
from aiortc.rtp import RtcpPacket, RtcpReceiverInfo, RtcpRrPacket, RtcpSrPacket, RtpPacket
from hypothesis import given
from hypothesis import strategies as st

from engines.api import Pcm16
from gateway.transports.rtp.decoding import OpusDecoding
from gateway.transports.rtp.receiver import RtpReceiver
from gateway.transports.rtp.rtcp import Reports
from gateway.transports.webrtc.rtp_sender import KEEPALIVE_S, TAIL_FRAMES, RtpSender
from streaming.audio.level import rms_dbfs
from streaming.audio.opus import OpusDecoder, OpusEncoder
from tests.virtual_time import virtual

OPUS = 111
SSRC = 99


def tone(number: int, amplitude: int = 8000) -> Pcm16:
    at = (np.arange(480) + 480 * number) / 24_000
    return (amplitude * np.sin(2 * np.pi * 300.0 * at)).astype(np.int16)


def speech(frames: int) -> list[bytes]:
    encoder = OpusEncoder()
    return [encoder.encode(tone(number)) for number in range(frames)]


def rtp(number: int, payload: bytes, *, at: int | None = None, ssrc: int = SSRC, head: int = 0x80) -> bytes:
    timestamp = (number if at is None else at) * 960
    return pack("!BBHLL", head, OPUS, number & 0xFFFF, timestamp & 0xFFFFFFFF, ssrc) + payload


class Ear:
    """A receiver and all that it lets be heard."""

    def __init__(self) -> None:
        self.blocks: list[Pcm16] = []
        self.receiver = RtpReceiver({OPUS: OpusDecoding()}, self.blocks.append)

    @property
    def samples(self) -> int:
        return sum(len(block) for block in self.blocks)

    @property
    def pcm(self) -> Pcm16:
        return np.concatenate(self.blocks)


@pytest.mark.parametrize("percent", [0, 1, 2, 5])
def test_loss_costs_neither_audio_nor_time_beside_stock_aiortc(percent: int) -> None:
    """The same packets, lost by the same throws, to both: when is each frame there, and which never is?"""
    frames = 1500
    packets, throws = speech(frames), random.Random(percent)
    arrivals = [number for number in range(frames) if not number or throws.random() * 100 >= percent]
    ear, stock = Ear(), StockBuffer(capacity=16, prefetch=4)
    ours_s: list[float] = []
    stock_s: dict[int, float] = {}
    for number in arrivals:
        now_s = 100.0 + number * 0.02
        due_s = ear.receiver.due_s()
        if due_s is not None and due_s < now_s:
            ear.receiver.expire(due_s)
            ours_s += [due_s] * (ear.samples // 320 - len(ours_s))
        ear.receiver.receive(rtp(number, packets[number]), now_s)
        ours_s += [now_s] * (ear.samples // 320 - len(ours_s))
        packet = RtpPacket(payload_type=OPUS, sequence_number=number, timestamp=number * 960, payload=b"x")
        packet._data = b"x"  # type: ignore[attr-defined]  # as aiortc's receiver puts it
        _, frame = stock.add(packet)
        if frame is not None:
            stock_s[frame.timestamp // 960] = now_s
    last = arrivals[-1]
    assert ear.samples == (last + 1) * 320, "every frame is there, as it was sent or concealed"
    delays = [heard_s - (100.0 + number * 0.02) for number, heard_s in enumerate(ours_s)]
    assert statistics.median(delays) <= 0.005
    assert max(delays) < 0.1
    assert ear.receiver.counts.lost == last + 1 - len(arrivals)
    level = rms_dbfs(np.concatenate([tone(number) for number in range(frames)]))
    assert rms_dbfs(ear.pcm) == pytest.approx(level, abs=0.5 if percent < 5 else 1.0), (
        "a tone that is guessed is a bit weaker"
    )
    stock_delays = [heard_s - (100.0 + number * 0.02) for number, heard_s in stock_s.items()]
    stock_missing = 1 - len(stock_s) / frames
    print(
        f"{percent} %: added delay p50 {statistics.median(delays) * 1000:.0f} ms, longest {max(delays) * 1000:.0f} ms; "
        f"stock p50 {statistics.median(stock_delays) * 1000:.0f} ms, missing {stock_missing:.1%}"
    )
    assert statistics.median(stock_delays) >= 0.06, "the buffer that this replaces"


def test_a_sender_that_goes_silent_leaves_silence() -> None:
    ear, packets = Ear(), speech(4)
    for number, at in enumerate((0, 1, 21, 22)):
        ear.receiver.receive(rtp(number, packets[number], at=at), 100.0 + at * 0.02)
    assert ear.samples == 23 * 320
    assert not ear.pcm[700 : 20 * 320].any()


def test_silence_that_was_announced_is_told_as_it_goes_by() -> None:
    ear, packets = Ear(), speech(3)
    ear.receiver.receive(rtp(0, packets[0]), 100.0)
    quiet = [ear.receiver.quiet]
    ear.receiver.receive(rtp(1, packets[1][:1]), 100.02)
    quiet.append(ear.receiver.quiet)
    ear.receiver.fill(10 * 960, 100.3)
    assert ear.samples == 12 * 320
    ear.receiver.receive(rtp(2, packets[2], at=22), 100.44)
    assert [*quiet, ear.receiver.quiet] == [False, True, False]
    assert ear.samples == 23 * 320


def test_a_long_hole_is_concealed_at_its_ends() -> None:
    ear, packets = Ear(), speech(60)
    for number in (*range(10), *range(40, 60)):
        ear.receiver.receive(rtp(number, packets[number]), 100.0 + number * 0.02)
    assert ear.samples == 60 * 320
    assert ear.receiver.concealed_ticks == 30 * 960
    assert not ear.pcm[14 * 320 : 36 * 320].any()


def test_packets_that_cannot_be_decoded_are_counted_and_concealed() -> None:
    ear, packets = Ear(), speech(6)
    packets[2] = b"\xff\xff"
    packets[4] = b""
    for number, payload in enumerate(packets):
        ear.receiver.receive(rtp(number, payload), 100.0 + number * 0.02)
    assert ear.samples == 6 * 320
    assert ear.receiver.malformed == 2


def test_another_source_is_another_stream() -> None:
    ear, packets = Ear(), speech(4)
    for number in range(2):
        ear.receiver.receive(rtp(number, packets[number]), 100.0)
    ear.receiver.receive(rtp(40_000, packets[2], ssrc=7), 100.1)
    assert ear.samples == 3 * 320
    assert ear.receiver.ssrc == 7


def test_extensions_sources_and_padding_are_read_past() -> None:
    ear, (payload,) = Ear(), speech(1)
    extended = pack("!LHH", 5, 0xBEDE, 1) + b"\x10\x01\x00\x00" + payload + b"\x00\x00\x03"
    ear.receiver.receive(rtp(0, extended, head=0x80 | 0x20 | 0x10 | 1), 100.0)
    expected = OpusDecoder().decode(payload)
    assert np.array_equal(ear.pcm, expected)


@given(st.lists(st.binary(max_size=60) | st.binary(max_size=40).map(lambda junk: rtp(3, junk, head=0xFF)), max_size=10))
def test_no_bytes_raise(datagrams: list[bytes]) -> None:
    ear = Ear()
    for data in datagrams:
        ear.receiver.receive(data, 100.0)
        ear.receiver.expire(101.0)


class Wire:
    """What a sender sent, as RTP packets with the time."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.packets: list[tuple[float, RtpPacket]] = []
        self.sender = RtpSender(OPUS, self._take, self.loop.time)
        self.began_s = self.loop.time()

    def _take(self, data: bytes) -> None:
        self.packets.append((self.loop.time(), RtpPacket.parse(data)))

    async def speak(self, frames: int) -> None:
        for number in range(frames):
            self.sender.play(tone(number))
            await asyncio.sleep(0.02)

    def check(self) -> None:
        """Sequence numbers without a gap, timestamps never back, and never far from the clock."""
        first = self.packets[0][1]
        for (_, before), (at_s, after) in zip(self.packets, self.packets[1:], strict=False):
            assert (after.sequence_number - before.sequence_number) & 0xFFFF == 1
            assert 960 <= (after.timestamp - before.timestamp) & 0xFFFFFFFF < 10 * 48_000
            ticks = (after.timestamp - first.timestamp) & 0xFFFFFFFF
            assert abs(ticks / 48_000 - (at_s - self.began_s)) < 0.1


@virtual
async def test_talk_is_sent_as_it_is_played_and_silence_hardly_at_all() -> None:
    wire = Wire()
    wire.sender.start()
    await asyncio.sleep(1.9)
    assert [len(packet.payload) for _, packet in wire.packets] == [1] * 5
    await wire.speak(50)
    talk = wire.packets[5:]
    assert len(talk) >= 50
    assert [packet.marker for _, packet in talk[:50]] == [1] + [0] * 49
    await asyncio.sleep(2.0)
    tail = [packet for _, packet in wire.packets[55:]]
    coded = [len(packet.payload) > 1 for packet in tail]
    assert coded == [True] * TAIL_FRAMES + [False] * (len(tail) - TAIL_FRAMES)
    assert len(tail) <= TAIL_FRAMES + 2.0 / KEEPALIVE_S
    assert heard_at_the_end(wire) < -80
    await wire.speak(1)
    assert [packet.marker for _, packet in wire.packets].count(1) == 2
    wire.check()
    wire.sender.close()


def heard_at_the_end(wire: Wire) -> float:
    """Level of the last packets, in dBFS."""
    decoder = OpusDecoder()
    return rms_dbfs(np.concatenate([decoder.decode(packet.payload) for _, packet in wire.packets][-3:]))


@virtual
async def test_a_short_pause_is_no_end() -> None:
    wire = Wire()
    await wire.speak(5)
    await asyncio.sleep(0.15)
    await wire.speak(5)
    assert [packet.marker for _, packet in wire.packets] == [1] + [0] * (len(wire.packets) - 1)
    assert all(len(packet.payload) > 1 for _, packet in wire.packets)
    wire.check()
    wire.sender.close()


@virtual
async def test_a_reply_that_is_cut_ends_at_once_and_the_next_begins_anew() -> None:
    wire = Wire()
    await wire.speak(5)
    wire.sender.clear()
    wire.sender.clear()
    assert len(wire.packets) == 6, "silence at once"
    await asyncio.sleep(0.1)
    assert len(wire.packets) > 8
    await wire.speak(2)
    assert [packet.marker for _, packet in wire.packets].count(1) == 2
    wire.check()
    wire.sender.close()


@virtual
async def test_two_frames_at_once_and_odd_lengths_make_whole_packets() -> None:
    wire = Wire()
    wire.sender.play(np.concatenate((tone(0), tone(1)[:100])))
    assert len(wire.packets) == 2
    assert wire.sender.packets == 2
    assert wire.sender.octets == sum(len(packet.payload) for _, packet in wire.packets)
    wire.sender.close()


@virtual
async def test_reports_tell_the_round_trip_and_what_was_lost() -> None:
    loop = asyncio.get_running_loop()
    ear, wire = Ear(), Wire()
    sent: list[bytes] = []
    reports = Reports(wire.sender, ear.receiver, "us", sent.append, loop.time)
    for number, payload in enumerate(speech(10)):
        if number != 4:
            ear.receiver.receive(rtp(number, payload), loop.time() + number * 0.02)
    wire.sender.play(tone(0))
    wire.sender.close()
    reports.send(loop.time())
    report = RtcpPacket.parse(sent[0])[0]
    assert isinstance(report, RtcpSrPacket)
    assert report.sender_info.packet_count == 1
    (block,) = report.reports
    assert (block.ssrc, block.packets_lost, block.highest_sequence) == (SSRC, 1, 9)
    assert block.fraction_lost == 256 // 10
    middle = report.sender_info.ntp_timestamp >> 16 & 0xFFFFFFFF
    await asyncio.sleep(0.25)
    answer = RtcpReceiverInfo(wire.sender.ssrc, 0, 3, 1, 0, lsr=middle, dlsr=int(0.2 * 65_536))
    reports.receive(bytes(RtcpRrPacket(ssrc=SSRC, reports=[answer])), loop.time())
    assert reports.rtt_ms == pytest.approx(50, abs=1)
    assert reports.far_lost == 3
    reports.send(loop.time())
    assert isinstance(RtcpPacket.parse(sent[1])[0], RtcpRrPacket), "nothing was sent since"
    reports.send_goodbye()
    reports.receive(sent[2], loop.time())
    assert not reports.goodbye, "another's"
    wire.sender.close()


@given(st.binary(max_size=80))
def test_no_rtcp_raises(data: bytes) -> None:
    async def receive() -> None:
        ear, wire = Ear(), Wire()
        reports = Reports(wire.sender, ear.receiver, "us", lambda data: None, asyncio.get_running_loop().time)
        for head in (b"\x81\xc8", b"\x81\xc9", b"\x82\xcb", b"\x81\xca", b"\x81\xcd", b""):
            reports.receive(head + data, 1.0)
        wire.sender.close()

    asyncio.run(receive())
