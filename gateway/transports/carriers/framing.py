"""Audio in whole frames, for wires that lose what is none."""

from __future__ import annotations


class Framer:
    """Keeps what does not fill a frame until more comes. ``hush``: a sample of silence as the wire has it."""

    def __init__(self, frame_bytes: int, hush: bytes) -> None:
        self.frame_bytes = frame_bytes
        self._hush = hush
        self._rest = b""

    def add(self, data: bytes) -> bytes:
        """As many whole frames as there are now."""
        data = self._rest + data
        whole = len(data) - len(data) % self.frame_bytes
        self._rest = data[whole:]
        return data[:whole]

    def fill(self) -> bytes:
        """What is left, made a whole frame with silence; empty if nothing is."""
        if not self._rest:
            return b""
        data, self._rest = self._rest, b""
        return data + self._hush * ((self.frame_bytes - len(data)) // len(self._hush))

    def drop(self) -> None:
        self._rest = b""
