"""Two ends of one call's media with a network between them that does what a test says, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from engines.api import Pcm16
from gateway.transports.rtp.packet import RtpPacket, parse_rtp
from gateway.transports.sip.media import RtpMedia
from gateway.transports.sip.media_policy import RtpPolicy

Source = tuple[str, int]
Kind = Literal["rtp", "rtcp"]


class Told:
    """All that the media told."""

    def __init__(self) -> None:
        self.blocks: list[Pcm16] = []
        self.heard_ms = 0.0
        self.rates: set[int] = set()
        self.keys = ""
        self.log: list[object] = []

    @property
    def pcm(self) -> Pcm16:
        return np.concatenate(self.blocks) if self.blocks else np.zeros(0, np.int16)

    def audio(self, pcm: Pcm16, rate_hz: int, at_ms: float) -> None:
        assert at_ms == self.heard_ms, "no gap, no overlap"
        self.heard_ms += len(pcm) * 1000 / rate_hz
        self.blocks.append(pcm)
        self.rates.add(rate_hz)

    def dtmf(self, digit: str) -> None:
        self.keys += digit

    def suspect(self, silent: bool) -> None:
        self.log.append(("suspect", silent))

    def lost(self, cause: str) -> None:
        self.log.append(("lost", cause))


@dataclass
class Line:
    """What one end sends, and what becomes of it. ``fate`` gives the delays of its copies in seconds: none, it is
    lost."""

    fate: Callable[[bytes], tuple[float, ...]] = lambda data: (0.0,)
    sent: list[tuple[float, Kind, bytes, Source]] = field(default_factory=list)

    @property
    def packets(self) -> list[RtpPacket]:
        """Of RTP, in clear."""
        parsed = [parse_rtp(data) for _, kind, data, _ in self.sent if kind == "rtp"]
        return [packet for packet in parsed if packet is not None]


class End:
    """One end at ``address``; RTCP at the port above."""

    def __init__(self, address: Source, policy: RtpPolicy, seed: int) -> None:
        self.address, self.port, self.unsent, self.oversize = address, address[1], 0, 0
        self.loop = asyncio.get_running_loop()
        self.told, self.line = Told(), Line()
        self.network: dict[Source, End] = {}
        self.closed = False
        rng = random.Random(seed)
        self.media = RtpMedia(policy, self.told, address[0], rng)
        self.media.attach(self, rng.randbytes)

    # the wire

    def send_rtp(self, data: bytes, to: Source) -> None:
        self._send("rtp", data, to, self.address)

    def send_rtcp(self, data: bytes, to: Source) -> None:
        self._send("rtcp", data, to, (self.address[0], self.port + 1))

    def close(self) -> None:
        self.closed = True

    def _send(self, kind: Kind, data: bytes, to: Source, source: Source) -> None:
        assert not self.closed
        self.line.sent.append((self.loop.time(), kind, data, to))
        for delay_s in self.line.fate(data):
            self.loop.call_later(delay_s, self._arrive, data, to, source)

    def _arrive(self, data: bytes, to: Source, source: Source) -> None:
        for end in self.network.values():
            if not end.closed and to == end.address:
                end.media.on_rtp(data, source)
            elif not end.closed and to == (end.address[0], end.port + 1):
                end.media.on_rtcp(data, source)

    # what tests do

    def waits(self) -> bool:
        """Audio has to (a method, for it changes from one line of a test to the next)."""
        return self.media.congested

    def held(self) -> bool:
        return self.media.remote_hold

    async def speak(self, pcm: Pcm16) -> None:
        """As the pacer above does: two frames ahead, then one every 20 ms."""
        frame = self.media.rate_hz // 50
        frames = [pcm[at : at + frame] for at in range(0, len(pcm), frame)]
        began_s = self.loop.time()
        for number, one in enumerate(frames):
            await asyncio.sleep(max(0.0, began_s + 0.02 * (number - 1) - self.loop.time()))
            self.media.play(one)


POLICY = RtpPolicy(bind_ip="192.0.2.1", codecs=("pcmu", "pcma"))


def two(ours: RtpPolicy = POLICY, theirs: RtpPolicy = POLICY) -> tuple[End, End]:
    """The gateway and its caller, not agreed on anything yet."""
    us, them = End(("192.0.2.1", 30_000), ours, 1), End(("192.0.2.2", 40_000), theirs, 2)
    us.network = them.network = {us.address: us, them.address: them}
    return us, them


def agree(us: End, them: End) -> None:
    """The caller offers."""
    them.media.accept(us.media.answer(them.media.offer()))


async def hang_up(*ends: End) -> None:
    for end in ends:
        await end.media.close()
        await end.media.close()


def speech(seconds: float, rate_hz: int = 8000) -> Pcm16:
    """A voice that glides and pulses, never silent: any place in it is like no other."""
    at = np.arange(int(seconds * rate_hz)) / rate_hz
    pitch = np.cumsum(180 + 60 * np.sin(2 * np.pi * 0.31 * at) + 25 * np.sin(2 * np.pi * 1.7 * at)) / rate_hz
    wave = sum(np.sin(2 * np.pi * n * pitch + n) / n for n in range(1, 8))
    return (5000 * wave * (0.7 + 0.3 * np.sin(2 * np.pi * 3.1 * at))).astype(np.int16)


def place_of(part: Pcm16, whole: Pcm16) -> int:
    """Where the part begins in the whole: where they are most alike."""
    products = np.correlate(whole.astype(float), part.astype(float), "valid")
    energies = np.convolve(whole.astype(float) ** 2, np.ones(len(part)), "valid")
    return int(np.argmax(products / np.sqrt(energies + 1.0)))


def click(pcm: Pcm16) -> int:
    """The greatest difference of neighbours."""
    return int(np.abs(np.diff(pcm.astype(np.int32))).max()) if len(pcm) > 1 else 0
