"""What is heard of a reply, told to the wire where the output buffer is ours: one end for every beginning."""

from __future__ import annotations

from collections.abc import Callable

from streaming.effects import Effect, Notify
from streaming.notices import PlaybackCleared, PlaybackStarted, PlaybackStopped
from streaming.reply import Reply


class Playback:
    """At most one reply sounds at a time. It may outlive the response that it is of: what was sent is still heard."""

    def __init__(self, emit: Callable[[Effect], None]) -> None:
        self._emit = emit
        self.sounding: Reply | None = None

    def sent(self, reply: Reply) -> None:
        """A frame of it left: its first one begins its playback, and ends that of the reply before it."""
        if reply.config.owns_playout and reply is not self.sounding:
            self._stop()
            self.sounding = reply
            self._emit(Notify(PlaybackStarted(reply.response_id)))

    def cut(self, reply: Reply) -> bool:
        """It was silenced. Returns whether it sounded."""
        if reply is not self.sounding:
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Silence, whoever sounded."""
        if self.sounding is not None:
            self._emit(Notify(PlaybackCleared(self.sounding.response_id)))
            self.sounding = None

    def deadline(self, live: Reply | None, now: float) -> float | None:
        """When what an ended response has sent will have been heard."""
        if self.sounding is None or self.sounding is live:
            return None
        return self.sounding.clock.dry_at(now)

    def advance(self, live: Reply | None, now: float) -> None:
        heard_at = self.deadline(live, now)
        if heard_at is not None and now >= heard_at:
            self._stop()

    def _stop(self) -> None:
        if self.sounding is not None:
            self._emit(Notify(PlaybackStopped(self.sounding.response_id)))
            self.sounding = None
