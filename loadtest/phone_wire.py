"""What phone wires have in common: the caller is told of a call by its sound alone, and the call ends when it ends."""

from __future__ import annotations

from collections.abc import Callable

from loadtest.call import CallOver
from loadtest.report import MediaReport
from loadtest.script import Patience
from loadtest.wire import CallLog

PHONE_PATIENCE = Patience(greeting_ms=3_000, pause_ms=1_000)
"""Nobody says that a response has begun, or is over: a caller waits as people, who can't tell a pause from the end."""


class PhoneWire:
    """The half of :class:`loadtest.call.Wire` that follows from that."""

    patience = PHONE_PATIENCE

    def __init__(self, call_id: str) -> None:
        self.log = CallLog(call_id)
        self.over: CallOver | None = None
        self._on_over: Callable[[CallOver], None] | None = None

    def attend(self, turn: Callable[[], int], on_over: Callable[[CallOver], None]) -> None:
        self._on_over = on_over
        if self.over is not None:
            on_over(self.over)

    def end(self, over: CallOver) -> None:
        """The call is over; the first cause stands."""
        if self.over is None:
            self.over = over
            if self._on_over is not None:
                self._on_over(over)

    def check(self) -> None:
        """Raises :class:`CallOver` if the call is over."""
        if self.over is not None:
            raise self.over

    def begin(self) -> None:
        self.check()

    def skip(self, slots: int) -> None:
        """Where frames have times, a subclass lets them pass."""

    def hold(self, held: bool) -> None:
        """Where there is a word for it, a subclass says it."""

    def media(self) -> MediaReport | None:
        return None
