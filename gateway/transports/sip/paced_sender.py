"""The agent's voice as RTP to a phone: a packet every 20 ms, whether the agent speaks or not (RFC 3550).

PBXs take a stream that stops for a dead one (RTP timeouts of 30 to 60 s, NAT bindings) and some stop playing at once,
so silence is sent like speech. Timestamps follow the grid of the clock and do not drift. After a short stall of the
loop the voice catches up: what was due leaves at once, with the timestamps it was due at, and the far end's jitter
buffer makes it whole. Left out, a hole of 20 ms would be heard inside a word.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from engines.api import Pcm16
from gateway.transports.rtp.packet import write_rtp
from gateway.transports.sip.telephone_event import KeyPacket
from streaming.audio.fade import falling_silent

MAX_QUEUED = 10
"""Frames; the pacer above sends two ahead. What is over is dropped, the oldest first."""


MAX_OWED = 3
"""Frames of voice that are sent after their time. What was missed beyond that is a pause: no jitter buffer waits so
long, and many at once hold up other calls."""


class Encoding(Protocol):
    """One stream of one codec, 20 ms a packet."""

    @property
    def clock_hz(self) -> int: ...

    @property
    def encode_hz(self) -> int:
        """Of the audio that goes in."""

    @property
    def tail_frames(self) -> int:
        """How many frames of silence are coded after the voice; the last one is sent for all that follow."""

    def encode(self, pcm: Pcm16) -> bytes: ...


class PacedSender:
    """``send`` takes RTP packets that are not encrypted yet; it must not raise."""

    def __init__(self, send: Callable[[bytes], None], rng: random.Random) -> None:
        self._send = send
        self.ssrc = rng.getrandbits(32)
        self._sequence = rng.getrandbits(15)  # no early wraparound for SRTP (RFC 3711, section 3.3.1)
        self._base = rng.getrandbits(32)
        self._payload_type = 0
        self._encoding: Encoding | None = None
        self._frame_ticks = 160
        self._frame_samples = 160
        self._queue: deque[Pcm16] = deque()
        self._keys: Iterator[KeyPacket | None] | None = None
        self._keys_type = 0
        self._key_began = 0
        self._began: int | None = None
        """The frame number that timestamps count from."""
        self._ticks_before = 0
        self._now = 0, 0.0
        self._last_sample = 0
        self._begins = True
        """The next frame of voice begins a talk spurt."""
        self._owed_from = 0
        """In a talk spurt: the number of the next frame of voice."""
        self._silent_frames = 0
        """Sent since the voice ended; 0: the last frame was voice."""
        self._silence = b""
        self.packets = 0
        self.octets = 0
        self.dropped = 0
        """Frames that were played faster than they could be sent."""

    @property
    def queued(self) -> bool:
        return bool(self._queue)

    def use(self, payload_type: int, encoding: Encoding) -> None:
        """Send this from now on; timestamps go on at its clock."""
        if self._encoding is not None and self._encoding.clock_hz != encoding.clock_hz and self._began is not None:
            self._ticks_before += (self._now[0] - self._began) * self._frame_ticks
            self._began = self._now[0]
        if encoding is not self._encoding:
            self._queue.clear()
            self._silent_frames = self._last_sample = 0
            self._begins = True
        self._payload_type, self._encoding = payload_type, encoding
        self._frame_ticks, self._frame_samples = encoding.clock_hz // 50, encoding.encode_hz // 50

    def play(self, pcm: Pcm16) -> None:
        """20 ms a frame at the encoding's rate; what is left over is filled up with silence."""
        for at in range(0, len(pcm), self._frame_samples):
            frame = pcm[at : at + self._frame_samples]
            if len(frame) < self._frame_samples:
                frame = np.pad(frame, (0, self._frame_samples - len(frame)))
            self._queue.append(frame)
        while len(self._queue) > MAX_QUEUED:
            self._queue.popleft()
            self.dropped += 1

    def clear(self) -> bool:
        """What has not left is dropped. Returns whether there was any."""
        had = bool(self._queue)
        self._queue.clear()
        return had

    def press(self, payload_type: int, keys: Iterator[KeyPacket | None]) -> None:
        """Send these in the place of audio, one a frame; None: a frame of silence between keys."""
        self._keys_type, self._keys = payload_type, keys

    def release(self) -> None:
        """No more keys."""
        self._keys = None

    @property
    def pressing(self) -> bool:
        return self._keys is not None

    def tick(self, number: int, now_s: float) -> None:
        """The time of one frame has come."""
        if self._began is None:
            self._began = number
        stalled = number - self._now[0] > 1
        self._now = number, now_s
        if self._keys is not None and self._press(number):
            return
        if self._queue:
            self._speak(number)
        elif self._begins or not stalled:  # else what plays the voice was stalled as well, and comes next
            self._be_silent(number)

    def _speak(self, number: int) -> None:
        assert self._encoding is not None
        if self._begins or number - self._owed_from > MAX_OWED:
            self._owed_from = number
        while self._queue and self._owed_from <= number:
            frame = self._queue.popleft()
            self._last_sample = int(frame[-1])
            marker, self._begins = self._begins, False
            self._silent_frames = 0
            self._put(self._payload_type, self._encoding.encode(frame), self._timestamp(self._owed_from), marker)
            self._owed_from += 1

    def _be_silent(self, number: int) -> None:
        encoding = self._encoding
        assert encoding is not None
        if self._silent_frames < encoding.tail_frames:
            self._silence = encoding.encode(self._fading())
            self._silent_frames += 1
        self._begins = True
        self._put(self._payload_type, self._silence, self._timestamp(number), marker=False)

    def timestamp_at(self, now_s: float) -> int:
        """The RTP timestamp of a moment, for sender reports."""
        number, then_s = self._now
        return (self._timestamp(number) + int((now_s - then_s) * self._frame_ticks * 50)) & 0xFFFFFFFF

    def _timestamp(self, number: int) -> int:
        return (self._base + self._ticks_before + (number - (self._began or 0)) * self._frame_ticks) & 0xFFFFFFFF

    def _fading(self) -> Pcm16:
        """Silence. A voice that was cut falls to it."""
        last = 0 if self._silent_frames else self._last_sample
        return falling_silent(last, self._frame_samples, self._frame_samples * 50)

    def _press(self, number: int) -> bool:
        assert self._keys is not None
        packet = next(self._keys, ...)
        if packet is ...:
            self._keys = None
            return False
        if packet is None:
            return False
        if packet.first:
            self._key_began = self._timestamp(number)
            self._begins = True
        self._put(self._keys_type, packet.payload, self._key_began, marker=packet.first)
        return True

    def _put(self, payload_type: int, payload: bytes, timestamp: int, marker: bool) -> None:
        packet = write_rtp(payload_type, marker, self._sequence, timestamp, self.ssrc, payload)
        self._sequence = (self._sequence + 1) & 0xFFFF
        self.packets += 1
        self.octets += len(payload)
        self._send(packet)
