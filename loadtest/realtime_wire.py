"""What calls over the Realtime protocol have in common: the session's set-up, and the events that come."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

import msgspec

from loadtest.call import CALL_RATE_HZ, CallOver, EndCause
from loadtest.script import Patience
from loadtest.wire import EventError, ServerEvent, WireLog, decode_event, describe_error


async def session_created(receive: Callable[[], Awaitable[str | bytes]], within_s: float) -> ServerEvent:
    """Waits for the event that a session begins with. Raises :class:`CallOver` if another comes, or none."""
    try:
        async with asyncio.timeout(within_s):
            first = decode_event(await receive())
    except (TimeoutError, msgspec.MsgspecError) as error:
        raise CallOver(EndCause.NO_SESSION, "the server did not begin with session.created") from error
    if first.type == "error":
        raise _no_session(first.error or EventError())
    if first.type != "session.created":
        raise CallOver(EndCause.NO_SESSION, f"the server began with {first.type}, not with session.created")
    return first


def _no_session(error: EventError) -> CallOver:
    """Where the key is good and the place is not, a server may let a client in to tell it so."""
    is_full = any("rate_limit" in word for word in (error.code, error.type) if word)
    said = f"the server began no session: {describe_error(error)}"
    return CallOver(EndCause.BUSY if is_full else EndCause.NO_SESSION, said)


class RealtimeWire(abc.ABC):
    """The half of :class:`loadtest.call.Wire` that is events; how they and the frames travel is a subclass's."""

    rate_hz = CALL_RATE_HZ
    patience = Patience()
    formats: ClassVar[Mapping[str, Any]] = {}
    """What ``session.update`` must say of each direction's audio."""

    def __init__(self, created: ServerEvent) -> None:
        self.log = WireLog()
        self.log.note(created, -1)
        self._turn: Callable[[], int] = lambda: -1

    @abc.abstractmethod
    def send_event(self, event: Mapping[str, object]) -> None:
        """Raises :class:`~loadtest.call.CallOver`."""

    def on_event(self, event: ServerEvent) -> None:  # noqa: B027 (a wire may need nothing)
        """What an event means for the sound, after the log has noted it."""

    def begin(self) -> None:
        self.send_event(_session_update(self.formats))

    def skip(self, slots: int) -> None:  # noqa: B027
        """Frames have no times."""

    def hold(self, held: bool) -> None:  # noqa: B027
        """There is no word for it."""

    def on_message(self, message: str | bytes) -> None:
        try:
            event = decode_event(message)
        except msgspec.MsgspecError as error:
            self.log.note_malformed(f"malformed event: {error}")
            return
        self.log.note(event, self._turn())
        self.on_event(event)


def _session_update(formats: Mapping[str, Any]) -> dict[str, object]:
    audio = {direction: dict(formats.get(direction, {})) for direction in ("input", "output")}
    audio["input"]["transcription"] = {"model": "whisper-1"}
    return {"type": "session.update", "session": {"type": "realtime", "audio": {k: v for k, v in audio.items() if v}}}
