"""The agent's voice as RTP: coded where it stands, and only while there is some (RFC 3550, RFC 7587).

Between talk spurts timestamps go on by the clock and next to nothing is sent: a fifth of a second of silence, from
which the far end learns that it need not stretch the last syllable, and how quiet it is behind the voice (browsers fill
the pause with noise of the level that they know); then a packet of one byte that says "not coded" (DTX), and one more
each :data:`KEEPALIVE_S`, so that watchdogs and NATs know that the call lives.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from struct import pack

import numpy as np

from engines.api import Pcm16
from streaming.audio.opus import ENCODER_HZ, FRAME_TICKS, OpusEncoder, silence_packet

KEEPALIVE_S = 0.4
"""What browsers send when they do DTX (RFC 7587, section 3.1.3)."""
SPURT_END_S = 0.06
"""No frame for this long: the agent has paused. With 40 ms sent ahead the far end has just run dry."""
TAIL_FRAMES = 10
FRAME_S = 0.02
FRAME_SAMPLES = ENCODER_HZ * FRAME_TICKS // 48_000
_GAP_TICKS = 3 * FRAME_TICKS
_SILENCE = np.zeros(FRAME_SAMPLES, dtype=np.int16)
_FIRST_SILENCE = b"\x48"
"""Not coded, in the mode of wide-band speech: for a call in which nothing was said yet."""


class RtpSender:
    """``send`` takes RTP packets that are not encrypted yet; it must not raise."""

    def __init__(self, payload_type: int, send: Callable[[bytes], None], clock: Callable[[], float]) -> None:
        self._payload_type = payload_type
        self._send = send
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._encoder = OpusEncoder()
        self.ssrc = random.getrandbits(32)
        self._sequence = random.getrandbits(
            15
        )  # the lower half: no early wraparound for SRTP (RFC 3711, section 3.3.1)
        self._timestamp_base = random.getrandbits(32)
        self._began_s = clock()
        self._ticks = 0
        """Where the next packet begins, from the base."""
        self._played_s = 0.0
        self._silence = _FIRST_SILENCE
        self._speaking = False
        """Frames go out, those of silence behind the last word too."""
        self._tail = 0
        """Frames of silence that are still to follow."""
        self._cut = False
        """What comes next does not belong to what was said before."""
        self._timer: asyncio.TimerHandle | None = None
        self.packets = 0
        self.octets = 0

    def start(self) -> None:
        """The connection is up: let the far end hear that something comes."""
        self._keep_alive()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def play(self, pcm: Pcm16) -> None:
        """Code and send, 20 ms a packet; what is left over is filled up with silence."""
        for at in range(0, len(pcm), FRAME_SAMPLES):
            frame = pcm[at : at + FRAME_SAMPLES]
            if len(frame) < FRAME_SAMPLES:
                frame = np.pad(frame, (0, FRAME_SAMPLES - len(frame)))
            now_s = self._clock()
            begins = not self._speaking or self._cut or self.ticks_at(now_s) - self._ticks > _GAP_TICKS
            if begins:
                self._catch_up(now_s)
            self._put(self._encoder.encode(frame), marker=begins)
            self._played_s = now_s
            self._tail = TAIL_FRAMES
            self._cut = False
            if not self._speaking:
                self._speaking = True
                self._wake_in(SPURT_END_S)

    def clear(self) -> None:
        """What was being said is cut: no trace of it in what comes next, and silence at once."""
        self._encoder.reset()
        if self._speaking and not self._cut:
            self._cut = True
            self._played_s = self._clock() - SPURT_END_S
            self._on_timer()

    def timestamp_at(self, now_s: float) -> int:
        """The RTP timestamp of a moment, for sender reports."""
        return (self._timestamp_base + self.ticks_at(now_s)) & 0xFFFFFFFF

    def ticks_at(self, now_s: float) -> int:
        return int((now_s - self._began_s) * 48_000)

    def _catch_up(self, now_s: float) -> None:
        """After a pause timestamps are where the clock is, in whole frames, and never back."""
        self._ticks = max(self._ticks, self.ticks_at(now_s) // FRAME_TICKS * FRAME_TICKS)

    def _wake_in(self, seconds: float) -> None:
        self.close()
        self._timer = self._loop.call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        left_s = self._played_s + SPURT_END_S - self._clock()
        if not self._speaking:
            self._keep_alive()
        elif left_s > 0.001:
            self._wake_in(left_s)
        elif self._tail > 0:
            self._tail -= 1
            packet = self._encoder.encode(_SILENCE)
            self._silence = silence_packet(packet)
            self._put(packet)
            self._wake_in(FRAME_S)
        else:
            self._speaking = False
            self._keep_alive()

    def _keep_alive(self) -> None:
        self._catch_up(self._clock())
        self._put(self._silence)
        self._wake_in(KEEPALIVE_S)

    def _put(self, payload: bytes, *, marker: bool = False) -> None:
        timestamp = (self._timestamp_base + self._ticks) & 0xFFFFFFFF
        second = self._payload_type | (0x80 if marker else 0)
        header = pack("!BBHLL", 0x80, second, self._sequence, timestamp, self.ssrc)
        self._sequence = (self._sequence + 1) & 0xFFFF
        self._ticks += FRAME_TICKS
        self.packets += 1
        self.octets += len(payload)
        self._send(header + payload)
