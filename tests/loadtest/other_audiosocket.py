"""An AudioSocket server that is none of ours: Asterisk's protocol as its documentation has it (signed linear at 8 kHz,
a type, a length, a payload), and no more.

It is unlike ours where the protocol lets it be: it reads and writes with blocking sockets in threads, sends frames of
whatever length it likes, is silent between replies, and takes nothing but what the first Asterisk sent.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

HANG_UP, ID, KEY, AUDIO, ERROR = 0x00, 0x01, 0x03, 0x10, 0xFF
RATE_HZ = 8_000
LOUD = 300.0
ONSET_MS, SILENCE_MS = 100, 300


@dataclass
class Manner:
    """What it does to callers. ``frame_bytes`` are taken in turn, for one message each."""

    reply_ms: int = 900
    frame_bytes: tuple[int, ...] = (66, 1_000, 2, 640)
    room: int = 100
    """More callers at once are hung up on, which is all the protocol knows of a refusal."""
    politely: bool = True
    """With a message, or by closing the connection alone."""
    breaks: Literal["error", "reset"] | None = None
    """Tells of an error, or resets the connection,"""
    breaks_after: int = 1
    """after so many replies."""


@dataclass
class Seen:
    calls: list[uuid.UUID] = field(default_factory=list)
    keys: str = ""
    strange: list[tuple[int, int]] = field(default_factory=list)
    """Messages that the first Asterisk would not have sent: type and length."""


class _Call:
    def __init__(self, connection: socket.socket, manner: Manner, seen: Seen) -> None:
        self._connection, self._manner, self._seen = connection, manner, seen
        self._loud_ms = self._quiet_ms = 0
        self._speaking = False
        self._replies = 0

    def run(self) -> None:
        manner = self._manner
        kind, payload = self._receive()
        if (kind, len(payload)) != (ID, 16):
            self._seen.strange.append((kind, len(payload)))
            return
        self._seen.calls.append(uuid.UUID(bytes=payload))
        if len(self._seen.calls) > manner.room:
            if manner.politely:
                self._send(HANG_UP)
            return
        while True:
            kind, payload = self._receive()
            if manner.breaks is not None and self._replies >= manner.breaks_after:
                if manner.breaks == "error":
                    self._send(ERROR, b"\x02")
                    return
                self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            if kind == HANG_UP:
                return
            if kind == KEY:
                self._seen.keys += payload.decode()
            elif (kind, len(payload)) == (AUDIO, 320):
                self._hear(np.frombuffer(payload, "<i2"))
            else:
                self._seen.strange.append((kind, len(payload)))

    def _hear(self, pcm: np.ndarray[tuple[int], np.dtype[np.int16]]) -> None:
        is_loud = float(np.abs(pcm.astype(np.float32)).mean()) > LOUD
        self._loud_ms, self._quiet_ms = (self._loud_ms + 20, 0) if is_loud else (0, self._quiet_ms + 20)
        self._speaking = self._speaking or self._loud_ms >= ONSET_MS
        if self._speaking and self._quiet_ms >= SILENCE_MS:
            self._speaking = False
            threading.Thread(target=self._reply, name="reply").start()

    def _reply(self) -> None:
        """In its own time, so far ahead as Asterisk has room for."""
        samples = RATE_HZ * self._manner.reply_ms // 1000
        wave = (6_000 * np.sin(2 * np.pi * 300 * np.arange(samples) / RATE_HZ)).astype("<i2").tobytes()
        began_s, at, turn = time.monotonic(), 0, 0
        with contextlib.suppress(OSError):
            while at < len(wave):
                length = self._manner.frame_bytes[turn % len(self._manner.frame_bytes)]
                self._send(AUDIO, wave[at : at + length])
                at, turn = at + length, turn + 1
                time.sleep(max(0.0, began_s + at / 2 / RATE_HZ - 0.2 - time.monotonic()))
        self._replies += 1

    def _send(self, kind: int, payload: bytes = b"") -> None:
        self._connection.sendall(struct.pack(">BH", kind, len(payload)) + payload)

    def _receive(self) -> tuple[int, bytes]:
        kind, length = struct.unpack(">BH", self._exactly(3))
        return kind, self._exactly(length)

    def _exactly(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            part = self._connection.recv(length - len(data))
            if not part:
                raise ConnectionError("it closed")
            data += part
        return data


@contextmanager
def other_audiosocket(manner: Manner) -> Iterator[tuple[str, Seen]]:
    """Yields the address and what callers did."""
    seen = Seen()

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(10)
            _Call(connection, manner, seen).run()

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=serve, args=(connection,), name="call")
            threads.append(thread)
            thread.start()

    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept, name="accept")
        accepting.start()
        try:
            yield f"audiosocket://127.0.0.1:{listener.getsockname()[1]}", seen
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(5)
            for thread in threads:
                thread.join(5)
