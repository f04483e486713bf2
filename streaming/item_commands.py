"""What a client does to the message list: Realtime's ``conversation.item`` events."""

from __future__ import annotations

from collections.abc import Callable

from streaming.answering import Answering
from streaming.conversation import Conversation, ItemError, PartKind
from streaming.events import CreateItem, DeleteItem, RetrieveItem, TruncateItem
from streaming.listening import Listening
from streaming.notices import CommandFailed, ItemAdded, ItemDeleted, ItemRetrieved, Notice
from streaming.truncating import Truncating


class ItemCommands:
    """Each is answered by its notice, or by one ``CommandFailed``."""

    def __init__(
        self, conversation: Conversation, answering: Answering, listening: Listening, notify: Callable[[Notice], None]
    ) -> None:
        self._conversation = conversation
        self._listening = listening
        self._answering = answering
        self._truncating = Truncating(answering)
        self._notify = notify

    def create(self, event: CreateItem, now: float) -> None:
        try:
            if self._listening.knows(event.item.id):
                raise ItemError("item_already_exists", "this id is that of what the caller is saying", "item.id")
            previous = self._conversation.add(event.item, event.previous_item_id)
        except ItemError as error:
            self._refuse(error, event.event_id)
            return
        self._answering.version += 1
        self._notify(ItemAdded(event.item, previous, done=True))

    def retrieve(self, event: RetrieveItem, now: float) -> None:
        try:
            self._notify(ItemRetrieved(self._conversation.get(event.item_id)))
        except ItemError as error:
            self._refuse(error, event.event_id)

    def delete(self, event: DeleteItem, now: float) -> None:
        try:
            self._conversation.delete(event.item_id)
        except ItemError as error:
            self._refuse(error, event.event_id)
            return
        self._answering.version += 1
        self._notify(ItemDeleted(event.item_id))

    def truncate(self, event: TruncateItem, now: float) -> None:
        try:
            item = self._conversation.get(event.item_id)
            if item.kind is not PartKind.OUTPUT_AUDIO or event.content_index != 0:
                raise ItemError(
                    "invalid_truncate", "only the audio of an assistant message can be truncated", "item_id"
                )
            if not self._truncating.truncate(event.item_id, event.audio_end_ms, now):
                raise ItemError("invalid_truncate", "its audio is shorter than that, or long forgotten", "audio_end_ms")
        except ItemError as error:
            self._refuse(error, event.event_id)

    def _refuse(self, error: ItemError, event_id: str | None) -> None:
        self._notify(CommandFailed(error.code, str(error), error.param, event_id))
