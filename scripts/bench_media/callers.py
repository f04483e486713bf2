"""The process of the callers: ``callers CORE PACKETS``. Ready-made Opus out, nothing decoded: ~1 % of a core a call."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCRtpReceiver, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from av import Packet

from scripts.bench_media.lateness import NOTHING, Arrival, lateness
from scripts.bench_media.talk import FRAME_MS, RTP_FRAME, RTP_HZ
from scripts.bench_media.wire import Message, run_child
from scripts.loopback import only_loopback

# The callers' own sends: later than this counts against the window, whose lateness they could not tell.
OWN_LATE_MS = 10.0
CONNECT_S = 20


class Caller:
    """One call: a sender that never encodes, and a receiver that only notes when what came."""

    def __init__(self, packets: Sequence[bytes], call: int) -> None:
        self.track = ReadyTrack(packets, call)
        self.arrivals: list[Arrival] = []
        self.peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))

    async def offer(self) -> str:
        sender = self.peer.addTrack(self.track)
        self.peer.createDataChannel("oai-events")
        receiver = next(t.receiver for t in self.peer.getTransceivers() if t.sender is sender)
        note_instead_of_decode(receiver, self.arrivals)
        await self.peer.setLocalDescription(await self.peer.createOffer())
        return str(self.peer.localDescription.sdp)

    async def accept(self, answer_sdp: str) -> None:
        """Take the answer, and wait until the call is up. Raises :class:`TimeoutError`."""
        connected = asyncio.Event()

        @self.peer.on("connectionstatechange")
        def on_change() -> None:
            if self.peer.connectionState == "connected":
                connected.set()

        await self.peer.setRemoteDescription(RTCSessionDescription(sdp=answer_sdp, type="answer"))
        await asyncio.wait_for(connected.wait(), CONNECT_S)


class ReadyTrack(MediaStreamTrack):
    """The caller's speech, a ready-made packet every 20 ms: aiortc sends a packet as it is."""

    kind = "audio"

    def __init__(self, packets: Sequence[bytes], call: int) -> None:
        super().__init__()
        self._packets = packets
        self._index = call * 37
        self._first = self._index
        self._start_s: float | None = None
        self.sent = 0
        self.sent_late = 0

    async def recv(self) -> Packet[Any]:
        if self.readyState != "live":
            raise MediaStreamError
        if self._start_s is None:
            self._start_s = time.monotonic()
        else:
            self._index += 1
            due_s = self._start_s + (self._index - self._first) * FRAME_MS / 1000
            await asyncio.sleep(due_s - time.monotonic())
            self.sent += 1
            self.sent_late += (time.monotonic() - due_s) * 1000 > OWN_LATE_MS
        packet = Packet(self._packets[self._index % len(self._packets)])
        packet.pts = (self._index - self._first) * RTP_FRAME
        packet.time_base = Fraction(1, RTP_HZ)
        return packet


def note_instead_of_decode(receiver: RTCRtpReceiver, arrivals: list[Arrival]) -> None:
    """Every packet that the transport hands to the receiver is noted, and goes no further."""

    async def note(packet: Any, arrival_time_ms: int) -> None:
        arrivals.append(Arrival(packet.sequence_number, packet.timestamp, time.monotonic(), len(packet.payload)))

    assert hasattr(receiver, "_handle_rtp_packet")
    receiver._handle_rtp_packet = note  # type: ignore[method-assign]


def load_packets(path: Path) -> list[bytes]:
    return [bytes.fromhex(packet) for packet in json.loads(path.read_text())]


async def call(arguments: Sequence[str]) -> Callable[[Message], Awaitable[Message]]:
    packets = load_packets(Path(arguments[0]))
    only_loopback()
    callers: list[Caller] = []

    async def answer(message: Message) -> Message:
        if message["do"] == "offer":
            callers.append(Caller(packets, len(callers)))
            return {"sdp": await callers[-1].offer()}
        if message["do"] == "accept":
            try:
                await callers[-1].accept(message["sdp"])
            except TimeoutError:
                return {"error": f"the call did not connect within {CONNECT_S} s"}
            return {}
        if message["do"] == "open_window":
            gc.collect()
            for caller in callers:
                caller.arrivals.clear()
                caller.track.sent = caller.track.sent_late = 0
        used = resource.getrusage(resource.RUSAGE_SELF)
        came = sum((lateness(caller.arrivals) for caller in callers), NOTHING)
        return {
            "cpu_s": used.ru_utime + used.ru_stime,
            "frames": came.frames,
            "late": came.late,
            "lost": came.lost,
            "worst_ms": came.worst_ms,
            "sent": sum(caller.track.sent for caller in callers),
            "sent_late": sum(caller.track.sent_late for caller in callers),
        }

    return answer


if __name__ == "__main__":
    run_child(call)
