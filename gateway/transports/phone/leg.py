"""The leg of a phone call: a line that plays, with nobody at the other end who reads events."""

from __future__ import annotations

from collections.abc import Callable

from engines.api import Pcm16
from gateway.playout import Wire
from gateway.transports.phone.line import PhoneLine, PlayoutOwner
from streaming.effects import Control
from streaming.notices import Notice

LEAD_MS = {PlayoutOwner.OURS: 40, PlayoutOwner.THEIRS: 300}
"""How far ahead of the caller's ear audio is sent: two frames, or enough for a network's hiccups where a barge-in can
clear it."""


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

    @property
    def wire(self) -> Wire:
        """Frames are whole; where the far end buffers, its marks say what was heard."""
        theirs = self._line.owner is PlayoutOwner.THEIRS
        return Wire(whole_frames=True, mark=self._line.mark if theirs else None)

    @property
    def congested(self) -> bool:
        return self.held or self._line.congested

    def play(self, response_id: str, item_id: str, pcm: Pcm16) -> None:
        self._line.play(pcm)

    def clear(self) -> bool:
        return self._line.clear()
