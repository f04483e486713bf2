"""A real phone for tests: baresip, driven by its control port, with a file for a microphone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.api import Pcm16
from streaming.audio.resample import Resampler
from streaming.audio.wav import encode_wav, read_wav
from tests.e2e.ports import LOOPBACK, free_port

WAIT_S = 10.0
TRIES = 5
LOG = "baresip.log"
MODULES = {"pcmu": "g711", "pcma": "g711", "g722": "g722", "opus": "opus"}
ACCOUNT_CODECS = {"pcmu": "PCMU", "pcma": "PCMA", "g722": "G722/16000/1", "opus": "opus"}
RATES_HZ = {"pcmu": 8000, "pcma": 8000, "g722": 16_000, "opus": 48_000}

needs_baresip = pytest.mark.skipif(shutil.which("baresip") is None, reason="baresip is not installed")


@dataclass(frozen=True)
class Certificates:
    """Of a TLS server that the phone is to trust, and the phone's own (with its key)."""

    authority: Path
    own: Path


class Phone:
    def __init__(
        self,
        folder: Path,
        port: int,
        process: asyncio.subprocess.Process,
        control: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._folder, self.port, self._process = folder, port, process
        self._reader, self._writer = control
        self.events: list[dict[str, Any]] = []
        """What it told, in order: ``{"type": "CALL_ESTABLISHED", …}``."""
        self._news = asyncio.Event()

    async def do(self, command: str, what: str = "") -> None:
        """``dial``, ``sndcode``, ``hold``, ``resume``, ``hangup``."""
        message = json.dumps({"command": command, "params": what})
        self._writer.write(f"{len(message)}:{message},".encode())
        await self._writer.drain()

    def kill(self) -> None:
        """It is gone at once, and tells nobody."""
        self._process.kill()

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def until(self, kind: str) -> dict[str, Any]:
        """Wait until it tells of this (``CALL_ESTABLISHED``, ``CALL_CLOSED``, …)."""
        async with asyncio.timeout(WAIT_S):
            while not (found := [event for event in self.events if event.get("type") == kind]):
                self._news.clear()
                await self._news.wait()
        return found[0]

    def heard(self) -> Pcm16:
        """What it heard, at 8 kHz, of the longest stretch between two holds."""
        path = max(self._folder.glob("dump-*-dec.wav"), key=lambda path: path.stat().st_size)
        pcm, rate_hz = read_wav(path.read_bytes())
        return at_8_khz(pcm, rate_hz)

    async def listen(self) -> None:
        """Take down its events until it is gone."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                length = int((await self._reader.readuntil(b":"))[:-1])
                message = json.loads(await self._reader.readexactly(length))
                await self._reader.readexactly(1)
                if message.get("event"):
                    self.events.append(message)
                    self._news.set()


@contextlib.asynccontextmanager
async def phone(
    folder: Path,
    said: Pcm16,
    codec: str = "pcmu",
    secure: str = "",
    *,
    certificates: Certificates | None = None,
    password: tuple[str, str] | None = None,
) -> AsyncIterator[Phone]:
    """It says ``said`` (at 8 kHz) over and over, writes down what it hears, and picks up by itself. ``secure``: its
    ``mediaenc``. With ``certificates`` it signals by TLS. ``password``: its user's name and password."""
    rate_hz = RATES_HZ[codec]
    up = Resampler(8000, rate_hz)
    (folder / "said.wav").write_bytes(encode_wav([np.concatenate((up.process(said), up.flush()))], rate_hz))
    made = None
    for _ in range(TRIES):  # a port that was free may be taken by the time that it is wanted
        port, control = signalling_port(), free_port(socket.SOCK_STREAM)
        _configure(folder, port, control, codec, certificates)
        _name(folder, port, codec, secure, by_tls=certificates is not None, password=password)
        made = await _started(folder, port, control)
        if made is not None:
            break
    assert made is not None, (folder / LOG).read_text()
    listening = asyncio.create_task(made.listen(), name="baresip")
    try:
        yield made
    finally:
        await made.stop()
        await listening


def signalling_port() -> int:
    """Free for UDP and TCP, and the one above for TCP: baresip takes all three."""
    while True:
        port = free_port(socket.SOCK_STREAM, above=1)
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind((LOOPBACK, port))
            return port


def _configure(folder: Path, port: int, control: int, codec: str, certificates: Certificates | None) -> None:
    modules = (MODULES[codec], "aufile", "sndfile", "aubridge", "srtp", "ctrl_tcp")
    lines = ["module_path /usr/lib/baresip/modules", *(f"module {name}.so" for name in modules)]
    lines += ["module_tmp account.so", "module_app menu.so", f"sip_listen {LOOPBACK}:{port}"]
    lines += [f"ctrl_tcp_listen {LOOPBACK}:{control}", f"net_interface {LOOPBACK}", f"snd_path {folder}"]
    lines += [f"audio_source aufile,{folder}/said.wav", "audio_player aubridge,nil", "audio_channels 1-1"]
    lines += ["opus_stereo no", "opus_sprop_stereo no", "audio_alert aufile,/dev/null"]
    if certificates is not None:
        lines += [f"sip_certificate {certificates.own}", f"sip_cafile {certificates.authority}"]
    (folder / "config").write_text("\n".join(lines) + "\n")


def _name(folder: Path, port: int, codec: str, secure: str, *, by_tls: bool, password: tuple[str, str] | None) -> None:
    user = password[0] if password is not None else "bob"
    transport = ";transport=tls" if by_tls else ""
    account = [f"<sip:{user}@{LOOPBACK}:{port}{transport}>;regint=0;answermode=auto"]
    account += [f"audio_codecs={ACCOUNT_CODECS[codec]}"]
    account += [f"mediaenc={secure}"] if secure else []
    account += [f"auth_user={password[0]};auth_pass={password[1]}"] if password is not None else []
    (folder / "accounts").write_text(";".join(account) + "\n")
    (folder / "contacts").write_text("")


async def _started(folder: Path, port: int, control: int) -> Phone | None:
    """None: it went down at once."""
    with (folder / LOG).open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "baresip", "-f", str(folder), "-v", stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        async with asyncio.timeout(WAIT_S):
            while process.returncode is None:
                with contextlib.suppress(OSError):
                    return Phone(folder, port, process, await asyncio.open_connection(LOOPBACK, control))
                await asyncio.sleep(0.02)
    except BaseException:
        process.kill()
        await process.wait()
        raise
    return None


def at_8_khz(pcm: Pcm16, rate_hz: int) -> Pcm16:
    down = Resampler(rate_hz, 8000)
    return np.concatenate((down.process(np.ascontiguousarray(pcm)), down.flush()))
