"""``idle_timeout_ms``: the caller has said nothing for too long; commit the silence and speak."""

from __future__ import annotations

from collections.abc import Callable

from streaming.answering import Answering
from streaming.caller_items import CallerItems
from streaming.config import ResponseOptions
from streaming.keypad_turns import KeypadTurns
from streaming.listening import Listening
from streaming.notices import IdleTimeout, Notice
from streaming.vad import samples_to_ms

MAX_IDLE_FACTOR = 8


class IdlePrompts:
    """Each prompt that gets no answer doubles the time to the next, up to :data:`MAX_IDLE_FACTOR`."""

    def __init__(
        self,
        items: CallerItems,
        answering: Answering,
        listening: Listening,
        keypad: KeypadTurns,
        notify: Callable[[Notice], None],
    ) -> None:
        self._items = items
        self._answering = answering
        self._listening = listening
        self._keypad = keypad
        self._notify = notify
        self._unanswered = 0

    def answered(self) -> None:
        """The caller spoke, or pressed a key."""
        self._unanswered = 0

    def deadline(self) -> float | None:
        """When :meth:`on_time` wants to be called at the latest."""
        since, timeout_ms = self._answering.idle_since, self._answering.config.turn.idle_timeout_ms
        busy = self._answering.busy or self._listening.newest is not None or self._keypad.open
        busy = busy or self._answering.on_hold
        if busy or since is None or timeout_ms is None:
            return None
        return since + timeout_ms / 1000 * min(1 << self._unanswered, MAX_IDLE_FACTOR)

    def on_time(self, now: float) -> None:
        due = self.deadline()
        if due is None or now < due:
            return
        self._unanswered += 1
        item = self._items.new_silence()
        end_ms = samples_to_ms(self._listening.seen_samples)
        start_ms = max(0, end_ms - (self._answering.config.turn.idle_timeout_ms or 0))
        self._notify(IdleTimeout(item.id, start_ms, end_ms))
        self._items.admit_silence(item, end_ms - start_ms)
        self._answering.start(ResponseOptions(), None, now)
