"""What the caller enters on the keypad, as turns of the conversation."""

from __future__ import annotations

from collections.abc import Callable

from streaming.answering import Answering
from streaming.caller_items import CallerItems
from streaming.config import BargeIn
from streaming.events import Dtmf
from streaming.keypad import Keypad
from streaming.listening import Listening
from streaming.notices import DtmfReceived, Notice


class KeypadTurns:
    """A whole entry is a turn of the caller's; it waits for what is being said or spoken to end."""

    def __init__(
        self, items: CallerItems, answering: Answering, listening: Listening, notify: Callable[[Notice], None]
    ) -> None:
        self._keypad = Keypad()
        self._items = items
        self._answering = answering
        self._listening = listening
        self._notify = notify

    @property
    def open(self) -> bool:
        """Whether an entry has begun and not ended."""
        return self._keypad.open

    def pressed(self, event: Dtmf, now: float) -> None:
        """A key is meant, as a sound may not be: the first of an entry ends what the agent says."""
        self._notify(DtmfReceived(event.digit))
        barge_in = self._answering.config.turn.barge_in
        interrupts = barge_in is not BargeIn.IGNORE and not self._listening.manual
        if interrupts and not self._keypad.open and not self._answering.says_farewell:
            self._answering.interrupt("turn_detected", None, now)
        if not self._keypad.open:
            self._keypad.rules = self._answering.config.keypad
        self._entered(self._keypad.press(event.digit, now), now)

    def deadline(self) -> float | None:
        """When :meth:`on_time` wants to be called at the latest."""
        return self._keypad.deadline()

    def on_time(self, now: float) -> None:
        self._entered(self._keypad.on_time(now), now)

    def clear(self) -> None:
        self._keypad.clear()

    def _entered(self, keys: str | None, now: float) -> None:
        if keys is None:
            return
        self._items.admit_keys(keys)
        self._answering.restart_idle(now)
        self._answering.owed = self._answering.config.turn.create_response and not self._listening.manual
