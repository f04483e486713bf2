"""What the leg makes of the ends of replies."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from engines.api import Pcm16
from gateway.transports.asterisk.audiosocket_line import AudioSocketLine
from gateway.transports.phone.leg import PhoneLeg
from gateway.transports.phone.line import PhoneLine, PlayoutOwner
from gateway.transports.rtp.packet import parse_rtp
from gateway.transports.sip.paced_sender import PacedSender
from tests.gateway.transports.asterisk.test_audiosocket_line import Told, Wire
from tests.gateway.transports.phone.fake_line import FakeLine
from tests.virtual_time import virtual

LOUD = np.full(160, 8_000, np.int16)


def leg_on(line: PhoneLine) -> PhoneLeg:
    return PhoneLeg(line, control=lambda effect: None, notified=lambda notice: None)


@pytest.mark.parametrize("owner", list(PlayoutOwner))
@virtual
async def test_what_is_cut_off_fades_out_where_it_is_ours_and_what_goes_on_fades_in(owner: PlayoutOwner) -> None:
    line = FakeLine(owner)
    leg = leg_on(line)
    leg.play("r", "i", LOUD)
    leg.clear()
    leg.clear()
    leg.play("r", "i", LOUD)
    leg.play("r", "i", LOUD)
    frames = [pcm for _, pcm in line.sent]
    assert len(frames) == (4 if owner is PlayoutOwner.OURS else 3)
    together = np.concatenate(frames[-3:] if owner is PlayoutOwner.OURS else frames[-2:]).astype(int)
    assert np.abs(np.diff(together)).max() <= 201
    assert (LOUD == 8_000).all(), "the engine's audio is not ours to change"
    assert np.array_equal(frames[-1], LOUD)
    if owner is PlayoutOwner.OURS:
        assert frames[1][0] == 8_000
        assert not frames[1][40:].any()
    await asyncio.sleep(0.1)


@virtual
async def test_nothing_fades_out_of_silence_or_on_a_line_that_takes_nothing() -> None:
    line = FakeLine(PlayoutOwner.OURS)
    leg = leg_on(line)
    leg.clear()
    leg.play("r", "i", np.zeros(160, np.int16))
    leg.clear()
    leg.play("r", "i", LOUD)
    leg.held = True
    leg.clear()
    assert len(line.sent) == 2
    await asyncio.sleep(0.1)


class Linear:
    """A codec that codes nothing."""

    clock_hz = encode_hz = 8_000
    tail_frames = 2

    def encode(self, pcm: Pcm16) -> bytes:
        return pcm.tobytes()


class RtpLine(FakeLine):
    """Frames wait in a real sender, whose grid is ticked here."""

    def __init__(self) -> None:
        super().__init__(PlayoutOwner.OURS)
        self.frames: list[Pcm16] = []
        self.sender = PacedSender(self._leaves, random.Random(1))
        self.sender.use(0, Linear())

    def _leaves(self, data: bytes) -> None:
        packet = parse_rtp(data)
        assert packet is not None
        self.frames.append(np.frombuffer(packet.payload, np.int16))

    def play(self, pcm: Pcm16) -> None:
        self.sender.play(pcm)

    def clear(self) -> bool:
        return self.sender.clear()


VOICE = (8_000 * np.sin(np.arange(8_000) * 2 * np.pi * 263 / 8_000)).astype(np.int16)
"""No frame of it ends where another does."""
OWN_STEP = int(np.abs(np.diff(VOICE.astype(int))).max())


def frames_of_voice(count: int) -> list[Pcm16]:
    return [VOICE[at : at + 160] for at in range(0, count * 160, 160)]


@pytest.mark.parametrize("waiting", range(5))
@virtual
async def test_a_cut_makes_no_step_on_rtp_however_many_frames_wait(waiting: int) -> None:
    for sent in range(1, 12):
        line = RtpLine()
        leg = leg_on(line)
        frames = frames_of_voice(sent + waiting)
        for frame in frames[:sent]:
            leg.play("r", "i", frame)
            line.sender.tick(len(line.frames), 0.0)
        for frame in frames[sent:]:
            leg.play("r", "i", frame)
        leg.clear()
        for _ in range(3):
            line.sender.tick(len(line.frames), 0.0)
        heard = np.concatenate(line.frames).astype(int)
        assert np.array_equal(heard[: sent * 160], VOICE[: sent * 160]), "what was dropped is not heard"
        assert np.abs(np.diff(heard)).max() <= OWN_STEP
        assert not heard[sent * 160 + 40 :].any()


@pytest.mark.parametrize("waiting", range(3))
@virtual
async def test_a_cut_makes_no_step_on_audiosocket_however_many_frames_wait(waiting: int) -> None:
    for sent in range(1, 12):
        wire = Wire()
        line = AudioSocketLine(wire, lambda name: None)
        await line.rate_heard(0.0)
        line.attach(Told())
        leg = leg_on(line)
        await asyncio.sleep(0.01)
        frames = frames_of_voice(sent + waiting)
        for frame in frames[:sent]:
            leg.play("r", "i", frame)
            await asyncio.sleep(0.02)
        for frame in frames[sent:]:
            leg.play("r", "i", frame)
        leg.clear()
        await asyncio.sleep(0.06)
        line.down("test_over")
        heard = np.concatenate([np.frombuffer(data[3:], "<i2") for _, data in wire.writes]).astype(int)[160:]
        assert np.array_equal(heard[: sent * 160], VOICE[: sent * 160]), "what was dropped is not heard"
        assert np.abs(np.diff(heard)).max() <= OWN_STEP
        assert not heard[sent * 160 + 40 :].any()
