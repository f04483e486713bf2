"""The phone's RTP socket, at the other end of which is another's phone system: what it may send without asking."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
import pytest

from loadtest.rtp_playout import RtpPlayout
from loadtest.sip import rtp
from loadtest.sip.rtp import RtpPort
from loadtest.sip.sdp import RemoteMedia
from streaming.audio.g711 import decode_mulaw, encode_alaw, encode_mulaw

PCMU, PCMA, COMFORT_NOISE, G722 = 0, 8, 13, 9
TICKS = 160
LOUD = (6_000 * np.sin(2 * np.pi * 200 * np.arange(TICKS) / 8_000)).astype(np.int16)


def packet(kind: int, sequence: int, payload: bytes, timestamp: int | None = None, ssrc: int = 7) -> bytes:
    stamp = sequence * TICKS if timestamp is None else timestamp
    return struct.pack(">BBHII", 0x80, kind, sequence, stamp, ssrc) + payload


@dataclass
class Phone:
    """A port whose clock is moved by hand, and what it told its owner."""

    port: RtpPort
    firsts: int = 0
    keys: str = ""
    unknown: list[int] = field(default_factory=list)

    def send(self, *packets: bytes) -> None:
        for data in packets:
            self.port.datagram_received(data, ("127.0.0.1", 9))


class Time:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(rtp, "running_clock", lambda: time)
    return time


def phone() -> Phone:
    made = Phone(RtpPort(lambda: first(), lambda key: press(key), lambda kind: made.unknown.append(kind)))

    def first() -> None:
        made.firsts += 1

    def press(key: str) -> None:
        made.keys += key

    made.port.talk_to(RemoteMedia("127.0.0.1", 9, "pcmu", PCMU, 101, sends=True, receives=True))
    return made


def heard(ear: RtpPlayout, until_s: float) -> list[bool]:
    """Of each slot, whether it was loud."""
    ear.advance(until_s)
    whole = ear.recording.whole()
    return [bool(np.abs(slot).max() > 1_000) for slot in whole.reshape(-1, TICKS)]


def test_whichever_offered_codec_comes_is_heard_though_the_other_is_spoken(time: Time) -> None:
    here = phone()
    ear = here.port.listen("pcmu")
    ear.start(0.0)
    here.send(
        packet(PCMA, 1, encode_alaw(LOUD)), packet(PCMU, 2, encode_mulaw(LOUD)), packet(PCMA, 3, encode_alaw(LOUD))
    )
    assert heard(ear, 0.14).count(True) == 3
    assert (here.firsts, here.unknown, ear.counts.lost) == (1, [], 0)


def test_early_media_is_no_part_of_the_call_but_what_overtook_the_answer_is(time: Time) -> None:
    here = phone()
    for number in range(100):  # two seconds of a ringing tone, then the call is up at 2.03
        time.now_s = number * 0.02
        here.send(packet(PCMU, number, encode_mulaw(LOUD)))
    time.now_s = 2.03
    ear = here.port.listen("pcmu")
    ear.start(2.03)
    assert heard(ear, 2.4).count(True) == 3


def test_comfort_noise_and_what_cannot_be_played_are_silence_and_no_loss(time: Time) -> None:
    here = phone()
    ear = here.port.listen("pcmu")
    ear.start(0.0)
    voice = encode_mulaw(LOUD)
    here.send(packet(G722, 0, b"x" * TICKS))
    here.send(packet(PCMU, 1, voice), packet(COMFORT_NOISE, 2, b"\x40"), packet(G722, 3, b"x" * TICKS))
    here.send(packet(G722, 4, b"x" * TICKS), packet(PCMU, 5, voice))
    assert heard(ear, 0.2) == [False, False, True, False, False, False, True, False, False, False]
    assert (here.unknown, ear.counts.lost) == ([G722], 0)


def test_no_packet_of_another_kind_breaks_anything(time: Time) -> None:
    here = phone()
    ear = here.port.listen("pcmu")
    ear.start(0.0)
    here.send(b"", b"\x00\x00\x00\x00", b"\x00" * 20, packet(PCMU, 1, b""), packet(101, 2, b"\x05"))
    here.send(packet(101, 3, b"\x05\x8a\x01\x40"), packet(101, 4, b"\xff\x8a\x01\x40", 9))
    assert not any(heard(ear, 0.2))
    assert (here.keys, here.unknown) == ("5?", [])


@pytest.mark.parametrize("packet_ms", [10, 20, 30, 40, 60, 80])
def test_packets_of_any_length_are_heard_whole_and_in_time(time: Time, packet_ms: int) -> None:
    here = phone()
    ear = here.port.listen("pcmu")
    ear.start(0.0)
    ticks = 8 * packet_ms
    voice = encode_mulaw(np.tile(LOUD, 4)[:ticks])
    for number in range(960 // packet_ms):
        time.now_s = number * packet_ms / 1000
        here.send(packet(PCMU, number, voice, timestamp=number * ticks))
    assert heard(ear, 1.2).count(True) == 48
    media = ear.heard_media()
    assert (media.frames_due, media.frames_late, media.frames_lost, media.slow) == (48, 0, 0, 0)


class Socket:
    """In place of a transport."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def is_closing(self) -> bool:
        return False

    def sendto(self, data: bytes, _: object) -> None:
        self.sent.append(data)


def test_frames_go_out_in_the_codec_that_was_asked_for_since(time: Time) -> None:
    here, out = phone(), Socket()
    here.port.connection_made(out)  # type: ignore[arg-type]
    here.port.listen("pcmu")
    here.port.send(encode_mulaw(LOUD), None)
    here.port.talk_to(RemoteMedia("127.0.0.1", 9, "pcma", PCMA, 101, sends=True, receives=True))
    here.port.send(encode_mulaw(LOUD), None)
    first, second = out.sent
    assert (first[1] & 0x7F, first[12:]) == (PCMU, encode_mulaw(LOUD))
    assert (second[1] & 0x7F, second[12:]) == (PCMA, encode_alaw(decode_mulaw(encode_mulaw(LOUD))))
