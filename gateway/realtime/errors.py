"""What a client is told when an event can't be obeyed: one ``error`` event each, never a closed session."""

from __future__ import annotations

from typing import Literal

import msgspec

MAX_MESSAGE_CHARS = 300
"""Validation messages quote the client; longer ones are cut."""


ErrorType = Literal["invalid_request_error", "server_error"]


class ProtocolError(msgspec.Struct, frozen=True):
    """An ``error`` event to be. ``param`` is the dotted path of the offending field, ``event_id`` the client's."""

    code: str
    message: str
    param: str | None = None
    event_id: str | None = None
    type: ErrorType = "invalid_request_error"


class Rejected(Exception):  # noqa: N818 - it is a verdict on the client's event, not a fault of ours
    """Raised where an event is found unacceptable; becomes a :class:`ProtocolError` with the event's id."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    def error(self, event_id: str | None) -> ProtocolError:
        return ProtocolError(self.code, self.message, self.param, event_id)
