"""The leg of a browser's call: audio by RTP, events over the data channel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import numpy as np

from engines.api import Pcm16
from gateway.realtime.protocol import RealtimeProtocol
from gateway.transports.outbox import CONGESTED_BYTES, Outbox
from gateway.transports.webrtc.peer import MediaStats
from streaming.effects import Control
from streaming.notices import Notice

LEAD_MS = 40
"""We own the playout clock: what was sent is heard at once, but for the browser's jitter buffer."""

TAIL_S = 0.25
"""A browser's jitter buffer holds 20 to 200 ms."""

FRAME_SAMPLES = 480
"""20 ms at 24 kHz."""


class Peer(Protocol):
    """What a call asks of its :class:`gateway.transports.webrtc.peer.MediaPeer`."""

    @property
    def buffered_bytes(self) -> int: ...

    async def answer(self, offer_sdp: str) -> str: ...

    def play(self, pcm: Pcm16) -> None: ...

    def clear(self) -> None: ...

    def send(self, text: str) -> bool: ...

    def stats(self) -> MediaStats: ...

    async def close(self) -> None: ...


class WebRtcLeg:
    """Events wait in the :class:`Outbox` until there is a channel. While there is none for long they are dropped."""

    lead_ms = LEAD_MS
    congested = False
    """Audio goes beside the events: a channel that is full does not hold it up."""

    def __init__(self, protocol: RealtimeProtocol, peer: Peer, count: Callable[[str], None]) -> None:
        self._protocol = protocol
        self._peer = peer
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._played_at = 0.0
        self._writable = asyncio.Event()
        self._deaf = False
        self.outbox = Outbox()

    def notify(self, notice: Notice) -> None:
        self._protocol.encode(notice)
        self.flush()

    def play(self, response_id: str, item_id: str, pcm: Pcm16) -> None:
        """The last frame of a segment may be short: silence fills it up."""
        if len(pcm) < FRAME_SAMPLES:
            pcm = np.concatenate((pcm, np.zeros(FRAME_SAMPLES - len(pcm), np.int16)))
        self._played_at = self._loop.time()
        self._peer.play(pcm)

    @property
    def unheard_s(self) -> float:
        """How long what was played last may still take to be heard: it crosses a network, and a jitter buffer."""
        return max(0.0, self._played_at + TAIL_S - self._loop.time())

    def clear(self) -> bool:
        """Nothing waits here: a frame leaves as it is played."""
        self._played_at = 0.0
        self._peer.clear()
        return False

    def control(self, effect: Control) -> None:
        """There is no line here: the agent has no tool that asks for one."""
        raise NotImplementedError

    def flush(self) -> None:
        """Move what the protocol has to send into the outbox."""
        texts = self._protocol.take()
        if not self._deaf:
            self.outbox.put(texts)

    def go_deaf(self) -> None:
        """The client has no channel: what it is told is not kept for it."""
        self._deaf = True
        self.outbox.empty()

    def hear_again(self) -> None:
        """It has one after all: it is told where the session is now."""
        if self._deaf:
            self._deaf = False
            self._protocol.open()
            self.flush()

    def writable(self) -> None:
        self._writable.set()

    async def send(self, text: str) -> None:
        """Returns when the channel took it. What a peer does not take even with nothing before it is too long for it
        (``a=max-message-size``), and left out."""
        while self._peer.buffered_bytes > CONGESTED_BYTES or not self._peer.send(text):
            if not self._peer.buffered_bytes:
                self._count("event_too_long")
                return
            self._writable.clear()
            await self._writable.wait()
