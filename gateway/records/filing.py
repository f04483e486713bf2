"""What a call's record is told: the transcript, as notices say that it changed."""

from __future__ import annotations

from collections.abc import Callable

from gateway.records.call_record import CallRecord
from streaming.conversation import Conversation, Item
from streaming.notices import (
    InputCleared,
    ItemAdded,
    ItemDeleted,
    ItemTruncated,
    Notice,
    OutputEnded,
    OutputStarted,
    OutputTextDelta,
    OutputTranscriptDelta,
    TranscriptCompleted,
    TranscriptDelta,
    TranscriptFailed,
)

NEWEST_ITEMS = 24
"""Older ones change only by what a client truncates, which is told."""


class Filing:
    """``now_ms``: since the call began."""

    def __init__(self, record: CallRecord, conversation: Conversation, now_ms: Callable[[], float]) -> None:
        self._record = record
        self._conversation = conversation
        self._now_ms = now_ms

    def told(self, notice: Notice) -> None:
        """File what a notice says, before the far end gets it."""
        match notice:
            case TranscriptDelta(item_id=item_id, delta=delta):
                self._record.partly(item_id, "user", delta, at_ms=self._now_ms())
            case OutputTranscriptDelta(item_id=item_id, delta=delta) | OutputTextDelta(item_id=item_id, delta=delta):
                self._record.partly(item_id, "assistant", delta, at_ms=self._now_ms())
            case ItemAdded() | OutputStarted():
                self.newest()
            case TranscriptCompleted() | TranscriptFailed():
                self.newest()
                self._record.settle(notice.item_id)
            case OutputEnded(item=item):
                self.newest()
                self._record.settle(item.id)
            case InputCleared():
                self._record.settle_all("user")
            case ItemTruncated():
                self._file(self._conversation.get(notice.item_id))
            case ItemDeleted():
                self._record.forget(notice.item_id)

    def newest(self) -> None:
        """Copy the newest items into the record."""
        for item in self._conversation.items[-NEWEST_ITEMS:]:
            self._file(item)

    def _file(self, item: Item) -> None:
        if not item.spoken:
            return
        if item.text:
            self._record.say(item.id, item.role, item.text, cut=item.cut, at_ms=self._now_ms())
        else:
            self._record.forget(item.id)
