"""What is heard of a reply, told to the wire where the output buffer is ours: one end for every beginning."""

from __future__ import annotations

from collections.abc import Callable

from streaming.conversation import Conversation, Item
from streaming.effects import Effect, Notify
from streaming.notices import ItemTruncated, PlaybackCleared, PlaybackStarted, PlaybackStopped
from streaming.reply import Reply


class Playback:
    """At most one reply sounds at a time. It may outlive the response that it is of: what was sent is still heard.

    ``change`` puts a new state of an item into ``conversation``.
    """

    def __init__(
        self, conversation: Conversation, change: Callable[[Item], None], emit: Callable[[Effect], None]
    ) -> None:
        self._conversation = conversation
        self._change = change
        self._emit = emit
        self.sounding: Reply | None = None
        self.tail: Reply | None = None
        """A reply that was sent to its end, and is still being heard."""

    def sent(self, reply: Reply) -> None:
        """A frame of it left: its first one begins its playback, and ends that of the reply before it."""
        if reply.config.owns_playout and reply is not self.sounding:
            self._stop()
            self.sounding = reply
            self._emit(Notify(PlaybackStarted(reply.response_id)))

    def cut_tail(self, now: float) -> Reply | None:
        """Silence the tail: the context keeps what was heard. Returns what is to be told of (:meth:`tell_cut`)."""
        tail, self.tail = self.tail, None
        if tail is None or tail.heard_samples(now) >= tail.ledger.samples:
            return None
        self._change(tail.cut(now))
        return tail

    def tell_cut(self, reply: Reply | None, now: float) -> None:
        """It was silenced: where the output buffer is ours nobody else knows what was heard."""
        if reply is None or reply is not self.sounding:
            return
        self.clear()
        if reply.item_id in self._conversation:
            heard_ms = reply.heard_samples(now) * 1000 // reply.config.output_rate_hz
            self.tell_truncated(reply.item_id, heard_ms)

    def tell_truncated(self, item_id: str, audio_end_ms: int) -> None:
        """Of an item that is in the conversation: what it keeps."""
        self._emit(Notify(ItemTruncated(item_id, 0, audio_end_ms, self._conversation.get(item_id).text)))

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
