"""Hosts that do not behave, as one script; run as ``fake_host.py MODE -P -m engines.host --fd N ...``."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from engines.host import protocol as wire
from engines.host.protocol import FrameReader


def main() -> None:
    mode, arguments = sys.argv[1], sys.argv[2:]
    sock = socket.socket(fileno=int(arguments[arguments.index("--fd") + 1]))
    hello = wire.hello_frame(os.getpid())
    if mode == "exits":
        sys.exit(3)
    elif mode == "mute":
        time.sleep(60)
    elif mode == "version":
        sock.sendall(wire.hello_frame(os.getpid(), version=wire.VERSION + 1))
        sock.recv(1 << 16)
        time.sleep(60)
    elif mode == "garbage":
        sock.sendall(hello)
        sock.recv(1 << 16)
        sock.sendall(b"\x00\x00\x00\x05hello")
        time.sleep(60)
    elif mode == "huge":
        sock.sendall(hello)
        sock.recv(1 << 16)
        time.sleep(0.3)
        sock.sendall(b"\xff\xff\xff\xff")
        time.sleep(60)
    elif mode == "half":
        sock.sendall(hello)
        sock.recv(1 << 16)
        sock.sendall(b"\x00\x00\x00\x05he")
    else:
        sock.sendall(hello)
        serve(sock, mode)


def serve(sock: socket.socket, mode: str) -> None:
    """Loads anything, and then: ``deaf`` reads no more, ``stuck`` and ``dead`` have such an MLX thread, ``deathless``
    does not stop; none of them ever unloads."""
    reader = FrameReader()
    reader_began = False
    if mode == "deathless":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while data := sock.recv(1 << 16):
        for body in reader.feed(data):
            if not reader_began:
                reader_began = True
                continue
            for message in wire.read_messages(body, wire.TO_HOST):
                if isinstance(message, wire.Load):
                    answer: wire.FromHost = wire.Loaded(message.engine, 24_000, ("tone",))
                elif isinstance(message, wire.Ping):
                    trouble = "a decode has run for 40.0 s" if mode == "stuck" else ""
                    vitals = wire.Vitals(1, 2, trouble, mode == "dead", overload=3)
                    answer = wire.Pong(message.number, 0, 0, vitals)
                elif isinstance(message, wire.Stop) and mode != "deathless":
                    return
                else:
                    continue
                sock.sendall(wire.frame([wire.packed(answer)]))
                if mode == "deaf" and isinstance(message, wire.Load):
                    time.sleep(60)


if __name__ == "__main__":
    main()
