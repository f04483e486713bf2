"""What phone wires have in common: the caller is told of a call by its sound alone, and the call ends when it ends."""

from __future__ import annotations

from collections.abc import Callable

from loadtest.call import CallOver, EndCause
from loadtest.report import MediaReport, SetupReport
from loadtest.script import Patience
from loadtest.ticker import running_clock
from loadtest.wire import CallLog

PHONE_PATIENCE = Patience(greeting_ms=3_000, pause_ms=1_000)
"""Nobody says that a response has begun, or is over: a caller waits as people, who can't tell a pause from the end."""

AT_ONCE_S = 2.0
"""A stream that its server ends so soon, without a sound before, was not taken."""


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


def not_taken(over: CallOver) -> CallOver:
    """The end of a stream that its server ended at once."""
    if over.cause is not EndCause.AGENT_HANGUP:
        return over
    return CallOver(EndCause.BUSY, over.problem or "it ended the stream at once, without a sound")


class StreamWire(PhoneWire):
    """A phone's sound as a stream that the caller's side opens and begins to send, so that no word says that the call
    was taken, nor that it was refused: a server says no by ending it at once."""

    def __init__(self, call_id: str, began_s: float) -> None:
        super().__init__(call_id)
        self.setup_ms: float | None = None
        self._clock = running_clock()
        self._began_s = began_s
        self._connected_s = began_s
        self._first_s: float | None = None

    def connected(self) -> None:
        self._connected_s = self._clock()

    def begun(self) -> None:
        """What the stream begins with was said."""
        self.setup_ms = (self._clock() - self._began_s) * 1000

    def sounded(self) -> None:
        """Sound came."""
        if self._first_s is None:
            self._first_s = self._clock()

    def ended(self, over: CallOver) -> None:
        """By the server, or the network."""
        if self.over is None and self._first_s is None and self._clock() - self._connected_s <= AT_ONCE_S:
            self.setup_ms = None
            over = not_taken(over)
        self.end(over)

    def setup(self) -> SetupReport:
        first_ms = None if self._first_s is None else round((self._first_s - self._began_s) * 1000, 1)
        return SetupReport(round((self._connected_s - self._began_s) * 1000, 1), None, None, first_ms)
