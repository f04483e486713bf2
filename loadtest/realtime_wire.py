"""What calls over the Realtime protocol have in common: the session's set-up, and the events that come."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec

from loadtest.call import CALL_RATE_HZ
from loadtest.script import Patience
from loadtest.wire import ServerEvent, WireLog, decode_event


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
