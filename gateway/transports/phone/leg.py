"""The leg of a phone call: a line that plays, with nobody at the other end who reads events."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engines.api import Pcm16
from gateway.playout import Wire
from gateway.transports.phone.line import PhoneLine, PlayoutOwner
from streaming.effects import Control
from streaming.notices import Notice

LEAD_MS = {PlayoutOwner.OURS: 40, PlayoutOwner.THEIRS: 300}
"""How far ahead of the caller's ear audio is sent: two frames, or enough for a network's hiccups where a barge-in can
clear it."""


SEAM_MS = 5
"""What a reply that was silenced fades out in, and one that goes on fades in: a step from a loud sample is a click."""


class PhoneLeg:
    """``control`` begins what the session asks of the line, ``notified`` sees what a client would be told."""

    def __init__(
        self, line: PhoneLine, *, control: Callable[[Control], None], notified: Callable[[Notice], None]
    ) -> None:
        self.lead_ms = LEAD_MS[line.owner]
        self.held = False
        """The far end has put us on hold: audio waits."""
        self.control = control
        self.notify = notified
        self._line = line
        self._frame_samples = line.rate_hz * 20 // 1000
        self._fade = np.linspace(0.0, 1.0, line.rate_hz * SEAM_MS // 1000, endpoint=False)
        self._last_sample = 0
        self._cut = False
        """The next frame follows on nothing that was heard."""

    @property
    def wire(self) -> Wire:
        """Frames are whole; where the far end buffers, its marks say what was heard, and elsewhere the line's own clock
        sends them."""
        theirs = self._line.owner is PlayoutOwner.THEIRS
        return Wire(whole_frames=True, mark=self._line.mark if theirs else None, clocked=not theirs)

    @property
    def congested(self) -> bool:
        return self.held or self._line.congested

    def play(self, response_id: str, item_id: str, pcm: Pcm16) -> None:
        if self._cut:
            self._cut = False
            pcm = pcm.copy()
            begun = pcm[: len(self._fade)]
            begun[:] = begun * self._fade
        self._last_sample = int(pcm[-1])
        self._line.play(pcm)

    def clear(self) -> bool:
        """Where a frame is heard as it is sent, what was cut off fades out in one more. Not where frames waited: the
        last one that was heard is known to the line only, which sees to its end."""
        dropped = self._line.clear()
        last, self._last_sample = self._last_sample, 0
        if not dropped and not self._cut and last and self._line.owner is PlayoutOwner.OURS and not self.congested:
            frame = np.zeros(self._frame_samples, np.int16)
            frame[: len(self._fade)] = last * (1.0 - self._fade)
            self._line.play(frame)
        self._cut = True
        return dropped
