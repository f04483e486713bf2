"""``python -m scripts.bench_loss``: what packet loss on the caller's way does to audio, here and in stock aiortc.

A caller of the load test's sends ready-made Opus every 20 ms through its relay, which loses the same packets for both
by seed. Delay is from a packet's sending to the PCM that holds its audio; missing is audio that never came, concealed
or not.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError

from gateway.transports.webrtc.peer import MediaPeer, MediaPolicy
from loadtest.udp_relay import Impairment, Path, RandomLoss, RelayRoute
from loadtest.webrtc_peer import Peer
from scripts.loopback import only_loopback
from streaming.audio.opus import DECODER_HZ, ENCODER_HZ, FRAME_TICKS, OpusEncoder

LOSSES_PERCENT = (0.0, 1.0, 2.0, 5.0)
KINDS = ("stock", "ours")
FRAME_S = 0.02

_FRAME_SAMPLES = int(DECODER_HZ * FRAME_S)
_CONNECT_S = 10.0
_TAIL = 25
"""Packets sent after those that are judged: what still waits in a buffer at the end is not missing."""
_DRAIN_S = 0.5


@dataclass(frozen=True, slots=True)
class Heard:
    """Audio came: ``frames`` of 20 ms that end with the one of position ``last``, counted from the first packet that
    got through, when ``sent`` packets had left."""

    at_s: float
    last: int
    frames: int
    sent: int


@dataclass(slots=True)
class LossRow:
    """One call of one kind. Packets are numbered as they were sent; ``first`` is the first that got through, and
    ``expected`` how many there are from it to the last that is judged, lost ones included."""

    kind: str
    loss_percent: float
    packets: int
    lost: int = 0
    """Of those expected, lost on the way."""
    first: int = 0
    expected: int = 0
    sent_at_s: list[float] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    relayed: int = 0
    """Packets that the relay saw, the tail included."""

    @property
    def delays_ms(self) -> list[float]:
        return [
            (heard.at_s - self.sent_at_s[number]) * 1000
            for heard in self.heard
            for number in range(self.first + heard.last - heard.frames + 1, self.first + heard.last + 1)
            if number < self.packets
        ]

    @property
    def missing(self) -> int:
        """Expected frames that no audio stands for."""
        stood_for = {heard.last - n for heard in self.heard for n in range(heard.frames)}
        return len(set(range(self.expected)) - stood_for)

    @property
    def worst_gap_ms(self) -> float:
        """Between two pieces of audio."""
        times = [heard.at_s for heard in self.heard]
        return max(np.diff(times), default=0.0) * 1000


def fate(how: Impairment, seed: int, packets: int) -> list[int]:
    """Which of a call's packets get through: the relay's dice, thrown beforehand."""
    path = Path(how, 2 * seed)
    through: list[int] = []
    for number in range(packets):
        path.put(b"\x80\x6f" + number.to_bytes(2, "big") + bytes(10), 0.0)
        through += [int.from_bytes(packet[2:4], "big") for packet in path.take(0.0)]
    return through


async def speak(caller: Peer, row: LossRow, packets: int) -> None:
    """So many packets of a tone, each 20 ms after the one before; then nothing."""
    encoder = OpusEncoder()
    wave = (6_000 * np.sin(2 * np.pi * 300 * np.arange(ENCODER_HZ) / ENCODER_HZ)).astype(np.int16)
    tones = [encoder.encode(frame) for frame in wave.reshape(50, -1)]
    loop = asyncio.get_running_loop()
    for number in range(packets):
        if number:
            await asyncio.sleep(max(0.0, row.sent_at_s[0] + number * FRAME_S - loop.time()))
        row.sent_at_s.append(loop.time())
        caller.microphone.say(tones[number % 50])


class _Answerer(Protocol):
    async def answer(self, offer: str) -> str: ...

    async def close(self) -> None: ...


class _Ours:
    """This gateway's peer, which tells of audio as it comes."""

    def __init__(self, row: LossRow) -> None:
        self._row = row
        self._samples = 0
        self._peer = MediaPeer(MediaPolicy(allow_loopback=True), self)

    async def answer(self, offer: str) -> str:
        return await self._peer.answer(offer)

    async def close(self) -> None:
        await self._peer.close()

    def audio(self, pcm: np.ndarray[Any, Any]) -> None:
        before, self._samples = self._samples // _FRAME_SAMPLES, self._samples + len(pcm)
        after = self._samples // _FRAME_SAMPLES
        if after > before:
            now_s = asyncio.get_running_loop().time()
            self._row.heard.append(Heard(now_s, after - 1, after - before, len(self._row.sent_at_s)))

    def connected(self) -> None: ...

    def channel_open(self) -> None: ...

    def message(self, text: str) -> None: ...

    def binary(self) -> None: ...

    def writable(self) -> None: ...

    def suspect(self, silent: bool) -> None: ...

    def lost(self, cause: str) -> None: ...


class _Stock:
    """aiortc's own, read as its examples do."""

    def __init__(self, row: LossRow) -> None:
        self._row = row
        self._peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._peer.on("track", self._on_track)
        self._reading: asyncio.Task[None] | None = None

    async def answer(self, offer: str) -> str:
        await self._peer.setRemoteDescription(RTCSessionDescription(offer, "offer"))
        await self._peer.setLocalDescription(await self._peer.createAnswer())
        return str(self._peer.localDescription.sdp)

    async def close(self) -> None:
        await self._peer.close()
        if self._reading is not None:
            await self._reading

    def _on_track(self, track: MediaStreamTrack) -> None:
        self._reading = asyncio.create_task(self._read(track))

    async def _read(self, track: MediaStreamTrack) -> None:
        while True:
            try:
                frame: Any = await track.recv()
            except MediaStreamError:
                return
            now_s = asyncio.get_running_loop().time()
            self._row.heard.append(Heard(now_s, frame.pts // FRAME_TICKS, 1, len(self._row.sent_at_s)))


async def measure_loss(kind: str, loss_percent: float, *, packets: int, seed: int = 1) -> LossRow:
    """One call to ``ours`` or ``stock``, in this process, over loopback. Raises :class:`~loadtest.call.CallOver`."""
    how = Impairment(loss=lambda: RandomLoss(loss_percent / 100))
    through = fate(how, seed, packets)
    row = LossRow(kind, loss_percent, packets, first=through[0], expected=packets - through[0])
    row.lost = row.expected - len(through)
    answerer: _Answerer = _Ours(row) if kind == "ours" else _Stock(row)
    route = RelayRoute(up=how, seed=seed)
    caller = Peer(loopback=True)
    try:
        answer = await route.answer(await answerer.answer(route.offer(await caller.offer())))
        await caller.accept(answer, "", within_s=_CONNECT_S)
        await speak(caller, row, packets + _TAIL)
        await asyncio.sleep(_DRAIN_S)
        row.relayed = route.relay.up.counts.media
    finally:
        await caller.close()
        await answerer.close()
        route.close()
    return row


async def measure_losses(*, packets: int, losses_percent: Sequence[float] = LOSSES_PERCENT) -> list[LossRow]:
    """Both kinds at every loss; the two of one loss at the same time, losing the same packets."""
    rows: list[LossRow] = []
    for loss_percent in losses_percent:
        rows += await asyncio.gather(*(measure_loss(kind, loss_percent, packets=packets) for kind in KINDS))
    return rows


def loss_table(rows: Sequence[LossRow]) -> str:
    lines = [f"{'loss':>5} {'':6} {'delay p50':>10} {'p95':>8} {'worst gap':>10} {'missing':>8}   (ms, % of audio)"]
    for row in rows:
        p50, p95 = np.percentile(row.delays_ms, [50, 95])
        lines.append(
            f"{row.loss_percent:4.0f}% {row.kind:6} {p50:10.1f} {p95:8.1f} {row.worst_gap_ms:10.0f} "
            f"{100 * row.missing / row.expected:7.1f}%"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench_loss", description=__doc__)
    parser.add_argument("--seconds", type=float, default=16.0, help="of speech a call (default 16)")
    options = parser.parse_args()
    only_loopback()
    rows = asyncio.run(measure_losses(packets=int(options.seconds / FRAME_S)))
    print(loss_table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
