"""The sender alone: what of it the two ends of a call do not show."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gateway.transports.rtp.g711 import G711
from gateway.transports.rtp.g722 import G722
from gateway.transports.rtp.opus import Opus
from gateway.transports.rtp.packet import RtpPacket, parse_rtp
from gateway.transports.sip.paced_sender import MAX_OWED, MAX_QUEUED, PacedSender
from gateway.transports.sip.telephone_event import key_packets
from streaming.audio.g711 import decode_mulaw, encode_mulaw


class Wire:
    def __init__(self) -> None:
        self.packets: list[RtpPacket] = []
        self.sender = PacedSender(self._take, random.Random(1))
        self._number = 1000

    def _take(self, data: bytes) -> None:
        packet = parse_rtp(data)
        assert packet is not None
        self.packets.append(packet)

    def tick(self, frames: int = 1, skip: int = 0) -> list[RtpPacket]:
        self._number += skip
        for _ in range(frames):
            self._number += 1
            self.sender.tick(self._number, self._number * 0.02)
        return self.packets[-frames:]


def wire(codec: G711 | G722 | Opus | None = None, kind: int = 0) -> Wire:
    made = Wire()
    made.sender.use(kind, codec or G711("pcmu"))
    return made


RAMP = np.arange(-8000, 8000, 100, dtype=np.int16)


def test_g711_frames_leave_bit_by_bit() -> None:
    ours = wire()
    ours.sender.play(RAMP)
    assert ours.tick()[0].payload == encode_mulaw(RAMP)


def test_a_short_frame_is_filled_and_two_at_once_are_two() -> None:
    ours = wire()
    ours.sender.play(np.concatenate((RAMP, RAMP[:10])))
    assert ours.sender.queued
    first, second = ours.tick(2)
    assert first.payload == encode_mulaw(RAMP)
    assert second.payload == encode_mulaw(np.pad(RAMP[:10], (0, 150)))
    assert not ours.sender.queued


def test_what_is_cut_fades_and_what_ends_softly_does_not() -> None:
    ours = wire()
    ours.sender.play(RAMP)
    _, fade, silence = ours.tick(3)
    faded = decode_mulaw(fade.payload)
    assert abs(int(faded[0]) - int(RAMP[-1])) < 400
    assert not faded[40:].any()
    assert silence.payload == b"\xff" * 160
    ours.sender.play(RAMP - RAMP[-1] + 50)
    assert ours.tick(2)[1].payload == b"\xff" * 160


def test_a_frame_that_the_grid_missed_is_missed_in_the_timestamps() -> None:
    ours = wire()
    before, after = ours.tick(1)[0], ours.tick(1, skip=49)[0]
    assert after.timestamp - before.timestamp == 50 * 160
    assert after.sequence - before.sequence == 1


def times(packets: list[RtpPacket]) -> list[int]:
    return [(packet.timestamp - packets[0].timestamp) // 160 for packet in packets]


def test_a_short_stall_inside_a_word_leaves_no_hole() -> None:
    ours = wire()
    for _ in range(5):
        ours.sender.play(RAMP)
    ours.tick(2)
    ours.tick(1, skip=2)
    assert times(ours.packets) == [0, 1, 2, 3, 4]
    assert [packet.marker for packet in ours.packets] == [True, False, False, False, False]
    assert {packet.payload for packet in ours.packets} == {encode_mulaw(RAMP)}


def test_a_voice_that_was_stalled_as_well_catches_up_when_it_comes() -> None:
    ours = wire()
    for _ in range(3):
        ours.sender.play(RAMP)
    ours.tick(2)
    ours.tick(1, skip=2)
    assert times(ours.packets) == [0, 1, 2], "no silence for what is on its way"
    for _ in range(3):
        ours.sender.play(RAMP)
    ours.tick()
    assert times(ours.packets) == [0, 1, 2, 3, 4, 5]
    assert {packet.payload for packet in ours.packets} == {encode_mulaw(RAMP)}


def test_a_voice_that_does_not_come_after_a_stall_was_over() -> None:
    ours = wire()
    ours.sender.play(RAMP)
    ours.tick()
    ours.tick(1, skip=1)
    assert len(ours.packets) == 1
    ours.tick()
    assert times(ours.packets) == [0, 3]
    ours.sender.play(RAMP)
    assert ours.tick()[0].marker
    assert times(ours.packets) == [0, 3, 4]


def test_a_long_stall_is_a_pause() -> None:
    ours = wire()
    for _ in range(6):
        ours.sender.play(RAMP)
    ours.tick()
    ours.tick(2, skip=MAX_OWED + 1)
    assert times(ours.packets) == [0, MAX_OWED + 2, MAX_OWED + 3]


def test_more_than_can_be_sent_drops_the_oldest() -> None:
    ours = wire()
    for n in range(MAX_QUEUED + 3):
        ours.sender.play(np.full(160, 1000 * (n + 1), np.int16))
    assert ours.sender.dropped == 3
    assert ours.tick()[0].payload == encode_mulaw(np.full(160, 4000, np.int16))
    assert ours.sender.clear()
    assert not ours.sender.clear()


def test_another_codec_goes_on_where_the_clock_is() -> None:
    ours = wire()
    ours.sender.play(RAMP)
    first = ours.tick(50)[0]
    ours.sender.play(RAMP)
    ours.sender.use(96, Opus())
    last = ours.packets[-1]
    one, two = ours.tick(2)
    assert (one.payload_type, last.payload_type) == (96, 0)
    assert last.timestamp - first.timestamp == 49 * 160
    assert two.timestamp - one.timestamp == 960
    assert 0 < one.timestamp - last.timestamp <= 960
    assert ours.sender.timestamp_at(ours._number * 0.02 + 0.01) == two.timestamp + 480


@pytest.mark.parametrize(("codec", "distinct"), [(G711("pcma"), 1), (Opus(), 1), (G722(), 20)])
def test_silence_settles_where_it_can(codec: G711 | G722 | Opus, distinct: int) -> None:
    """G.722 codes it for as long as it lasts: both ends' states are one."""
    ours = wire(codec)
    ours.sender.play((3000 * np.sin(np.arange(codec.encode_hz // 5) / 5)).astype(np.int16))
    ours.tick(60)
    assert len({packet.payload for packet in ours.tick(20)}) <= distinct
    pcm = np.concatenate([codec.decode(packet.payload) for packet in ours.packets])
    assert np.abs(pcm[-2000:]).max() <= 16


def test_keys_take_the_place_of_audio_and_share_one_timestamp_each() -> None:
    ours = wire()
    ours.sender.press(101, key_packets("12", 8000))
    ours.sender.play(RAMP)
    sent = ours.tick(21)
    keys = [packet for packet in sent if packet.payload_type == 101]
    assert len(keys) == 16
    assert [len({packet.timestamp for packet in part}) for part in (keys[:8], keys[8:])] == [1, 1]
    assert [packet.marker for packet in keys].count(True) == 2
    assert keys[8].timestamp - keys[0].timestamp == 10 * 160
    assert not ours.sender.pressing
    assert [packet.sequence - sent[0].sequence for packet in sent] == list(range(21))
    ours.sender.press(101, key_packets("3", 8000))
    ours.sender.release()
    assert ours.tick()[0].payload_type == 0
