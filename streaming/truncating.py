"""What a client played of a reply, when it played less than it was sent: the context keeps the words of that."""

from __future__ import annotations

from streaming.answering import Answering
from streaming.reply import Reply


class Truncating:
    """Of the live reply, and of those before it that are still known."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._playback = answering.playback

    def truncate(self, item_id: str, audio_end_ms: int, now: float) -> bool:
        """The client played only this much of a reply, and is told so; where the output buffer is ours a reply that is
        not over ends with it. False: no reply that is still known, or it has no such position."""
        answering = self._answering
        replies = (answering.reply, *reversed(answering.past))
        reply = next((r for r in replies if r is not None and r.item_id == item_id), None)
        played = reply.played(audio_end_ms) if reply is not None else None
        if reply is None or played is None:
            return False
        if reply.config.owns_playout and reply in (answering.reply, self._playback.tail):
            self._stop_at(reply, played, now)
            return True
        if reply is answering.reply and answering.held:
            answering.holding.move(reply, played)  # it may yet go on, from where the client really stopped
        else:
            if self._playback.tail is reply:
                self._playback.tail = None
            answering.change(reply.truncate(played, now))
        self._playback.tell_truncated(item_id, audio_end_ms)
        return True

    def _stop_at(self, reply: Reply, samples: int, now: float) -> None:
        """Silence a reply of which the client heard no more than this, nor more than was played."""
        answering = self._answering
        heard = min(samples, reply.heard_samples(now))
        answering.change(reply.truncate(heard, now))
        sounded = self._playback.sounding is reply
        if reply is answering.reply:
            answering.drop_speculation()
            answering.interrupt_reply("client_cancelled", None, now)
        else:
            answering.interrupt_tail(now)
        if not sounded or self._playback.sounding is reply:  # else that it was silenced has been told, and where
            self._playback.tell_truncated(reply.item_id, heard * 1000 // reply.config.output_rate_hz)
