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

    @abc.abstractmethod
    async def send_event(self, event: Mapping[str, object]) -> None: ...

    @abc.abstractmethod
    async def receive(self) -> str | bytes:
        """The next message of the server. Raises :class:`~loadtest.call.CallOver`."""

    async def on_event(self, event: ServerEvent) -> None:  # noqa: B027 (a wire may need nothing)
        """What an event means for the sound, after the log has noted it."""

    async def begin(self) -> None:
        await self.send_event(_session_update(self.formats))

    async def listen(self, turn: Callable[[], int]) -> None:
        while True:
            message = await self.receive()
            try:
                event = decode_event(message)
            except msgspec.MsgspecError as error:
                self.log.note_error(f"malformed event: {error}")
                continue
            self.log.note(event, turn())
            await self.on_event(event)


def _session_update(formats: Mapping[str, Any]) -> dict[str, object]:
    audio = {direction: dict(formats.get(direction, {})) for direction in ("input", "output")}
    audio["input"]["transcription"] = {"model": "whisper-1"}
    return {"type": "session.update", "session": {"type": "realtime", "audio": {k: v for k, v in audio.items() if v}}}
