"""Cuts a TCP or TLS stream into SIP messages (RFC 3261, 18.3): headers, then as much as Content-Length says."""

from __future__ import annotations

import re

from gateway.transports.sip.message import MAX_HEAD_BYTES, MAX_MESSAGE_BYTES, Malformed, content_length, unfold

_PINGS = re.compile(rb"(?:\r\n\r\n)++")


class Framer:
    """Bytes in, whole messages out. After :class:`Malformed` the stream cannot be followed any more: close it.

    Between messages a peer may send CRLF CRLF to keep the connection open (RFC 5626, 3.5.1): each is a ping, to be
    answered with one CRLF."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._whole: int | None = None
        self._searched = 0
        self.pings = 0
        """How many have come so far."""

    @property
    def partial(self) -> bool:
        """Whether part of a message waits for the rest; an answer to a ping, which is half a ping, is none."""
        return bool(self._buffer.strip(b"\r\n"))

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete now. Raises :class:`Malformed`: those before the fault are lost with it."""
        self._buffer += data
        found: list[bytes] = []
        while (message := self._next()) is not None:
            found.append(message)
        return found

    def _next(self) -> bytes | None:
        if self._whole is None:
            self._skip_blank()
            end = self._buffer.find(b"\r\n\r\n", max(0, self._searched - 3))
            self._searched = len(self._buffer)
            if end < 0 and len(self._buffer) > MAX_HEAD_BYTES:
                raise Malformed("head too long", 513)
            if end < 0:
                return None
            self._whole = end + 4 + _declared(bytes(self._buffer[:end]))
            if self._whole > MAX_MESSAGE_BYTES:
                raise Malformed("size", 513)
        if len(self._buffer) < self._whole:
            return None
        message = bytes(self._buffer[: self._whole])
        del self._buffer[: self._whole]
        self._whole, self._searched = None, 0
        return message

    def _skip_blank(self) -> None:
        found = _PINGS.match(self._buffer)
        if found is not None:  # all at once: there may be thousands
            self.pings += found.end() // 4
            del self._buffer[: found.end()]
            self._searched = 0
        # One alone may be half a ping, or stand before a message.
        if len(self._buffer) > 2 and self._buffer.startswith(b"\r\n") and self._buffer[2] != 0x0D:
            del self._buffer[:2]
            self._searched = 0


def _declared(head: bytes) -> int:
    lengths = {
        value.strip(" \t")
        for name, _, value in (line.partition(":") for line in unfold(head.decode("utf-8", "surrogateescape"))[1:])
        if name.rstrip(" \t").lower() in {"content-length", "l"}
    }
    if len(lengths) != 1:
        raise Malformed("content-length")
    return content_length(lengths.pop())
