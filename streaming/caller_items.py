"""How what the caller did enters the conversation, and how the wire is told."""

from __future__ import annotations

from collections.abc import Callable

from streaming.answering import Answering
from streaming.conversation import KEYPAD, Conversation, Item, PartKind
from streaming.listening import Utterance
from streaming.notices import (
    InputCommitted,
    ItemAdded,
    Notice,
    TranscriptCompleted,
    TranscriptDelta,
    TranscriptFailed,
)
from streaming.vad import samples_to_ms


class CallerItems:
    """User items of speech, of silence and of keys. ``new_id`` makes a fresh id of a kind."""

    def __init__(
        self,
        conversation: Conversation,
        answering: Answering,
        notify: Callable[[Notice], None],
        new_id: Callable[[str], str],
    ) -> None:
        self._conversation = conversation
        self._answering = answering
        self._notify = notify
        self._new_id = new_id

    def announce(self, utterance: Utterance) -> None:
        """Give the utterance its place in the conversation before its words are known."""
        if not utterance.announced:
            utterance.announced = True
            self._commit(Item(utterance.item_id, "user", PartKind.INPUT_AUDIO, None))

    def admit(self, utterance: Utterance) -> None:
        """The utterance's words enter the conversation."""
        item = Item(utterance.item_id, "user", PartKind.INPUT_AUDIO, utterance.text)
        if utterance.announced:
            self._answering.change(item)
        else:
            self._answering.version += 1
            self._commit(item)
        self.tell_transcript(utterance)

    def tell_transcript(self, utterance: Utterance) -> None:
        if utterance.error is not None and not utterance.text:
            self._notify(TranscriptFailed(utterance.item_id, *utterance.error))
            return
        if utterance.text:
            self._notify(TranscriptDelta(utterance.item_id, utterance.text))
        audio_ms = samples_to_ms(utterance.voiced_end_samples - utterance.start_samples)
        self._notify(TranscriptCompleted(utterance.item_id, utterance.text, audio_ms))

    def new_silence(self) -> Item:
        """An item for a time in which the caller said nothing, to be added by :meth:`admit_silence`."""
        return Item(self._new_id("item"), "user", PartKind.INPUT_AUDIO, "")

    def admit_silence(self, item: Item, ms: int) -> None:
        self._commit(item)
        self._notify(TranscriptCompleted(item.id, "", ms))

    def admit_keys(self, keys: str) -> None:
        """An entry on the keypad is a message."""
        item = Item(self._new_id("item"), "user", PartKind.INPUT_TEXT, f"(keypad: {keys})", name=KEYPAD)
        previous = self._conversation.add(item)
        self._answering.version += 1
        self._notify(ItemAdded(item, previous, done=True))

    def _commit(self, item: Item) -> None:
        previous = self._conversation.add(item)
        self._notify(InputCommitted(item.id, previous))
        self._notify(ItemAdded(item, previous, done=True))
