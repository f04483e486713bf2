"""A real phone (baresip) and as much signalling as its media needs: what is proven here is the media."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import numpy as np

from engines.api import Pcm16
from gateway.transports.sip.media import RtpMedia
from streaming.audio.resample import Resampler
from streaming.audio.wav import encode_wav, read_wav
from tests.e2e.ports import free_port

LOOPBACK = "127.0.0.1"
WAIT_S = 10.0
MODULES = {"pcmu": "g711", "pcma": "g711", "g722": "g722", "opus": "opus"}
ACCOUNT_CODECS = {"pcmu": "PCMU", "pcma": "PCMA", "g722": "G722/16000/1", "opus": "opus"}
RATES_HZ = {"pcmu": 8000, "pcma": 8000, "g722": 16_000, "opus": 48_000}


class Signalling(asyncio.DatagramProtocol):
    """One dialog over UDP, either way: every offer is answered by ``media``, nothing is repeated."""

    def __init__(self, media: RtpMedia) -> None:
        self._media = media
        self._transport: asyncio.DatagramTransport
        self.port = 0
        self.established, self.ended = asyncio.Event(), asyncio.Event()
        self.offers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)  # uvloop's is none by its class
        self.port = transport.get_extra_info("sockname")[1]

    def invite(self, port: int) -> None:
        """Call the phone at ``port``."""
        sdp = self._media.offer()
        self._request("INVITE", port, sdp, to="")

    def _request(self, method: str, port: int, sdp: str, to: str) -> None:
        kind = ["Content-Type: application/sdp"] if sdp else []
        self._send(
            (LOOPBACK, port),
            f"{method} sip:bob@{LOOPBACK}:{port} SIP/2.0",
            f"Via: SIP/2.0/UDP {LOOPBACK}:{self.port};branch=z9hG4bK{method};rport",
            f"From: <sip:us@{LOOPBACK}:{self.port}>;tag=us",
            to or f"To: <sip:bob@{LOOPBACK}:{port}>",
            "Call-ID: media@us",
            f"CSeq: 1 {method}",
            "Max-Forwards: 70",
            *self._rest([*kind], sdp),
        )

    def _rest(self, headers: list[str], sdp: str) -> list[str]:
        return [f"Contact: <sip:us@{LOOPBACK}:{self.port}>", *headers, f"Content-Length: {len(sdp)}", "", sdp]

    def _send(self, where: tuple[str, int], *lines: str) -> None:
        self._transport.sendto("\r\n".join(lines).encode(), where)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        head, _, body = data.decode().partition("\r\n\r\n")
        first, *headers = head.split("\r\n")
        method = first.split()[0]
        to = next(line for line in headers if re.match(r"(?i)(to|t)\s*:", line))
        if first.startswith("SIP/2.0 200") and "INVITE" in head:
            self._media.accept(body)
            self._request("ACK", addr[1], "", to)
            self.established.set()
        elif method == "ACK":
            self.established.set()
        elif not first.startswith("SIP/2.0"):
            sdp = self._media.answer(body) if method == "INVITE" else ""
            self.offers += bool(sdp)
            kept = [line for line in headers if re.match(r"(?i)(via|v|from|f|call-id|i|cseq)\s*:", line)]
            tagged = to if "tag=" in to else f"{to};tag=us"
            kind = ["Content-Type: application/sdp"] if sdp else []
            self._send(addr, "SIP/2.0 200 OK", *kept, tagged, *self._rest(kind, sdp))
            if method == "BYE":
                self.ended.set()


@contextlib.asynccontextmanager
async def signalling(media: RtpMedia) -> AsyncIterator[Signalling]:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(lambda: Signalling(media), local_addr=(LOOPBACK, 0))
    try:
        yield protocol
    finally:
        transport.close()
        await asyncio.sleep(0)


class Phone:
    """baresip, by its control port."""

    def __init__(self, folder: Path, port: int, writer: asyncio.StreamWriter) -> None:
        self._folder, self.port, self._writer = folder, port, writer

    async def do(self, command: str, what: str = "") -> None:
        """``dial``, ``sndcode``, ``hold``, ``resume``, ``hangup``."""
        message = json.dumps({"command": command, "params": what})
        self._writer.write(f"{len(message)}:{message},".encode())
        await self._writer.drain()

    def heard(self) -> Pcm16:
        """What it heard, at 8 kHz, of the longest stretch between two holds."""
        path = max(self._folder.glob("dump-*-dec.wav"), key=lambda path: path.stat().st_size)
        pcm, rate_hz = read_wav(path.read_bytes())
        return at_8_khz(pcm, rate_hz)


@contextlib.asynccontextmanager
async def phone(folder: Path, said: Pcm16, codec: str, secure: str = "") -> AsyncIterator[Phone]:
    """It says ``said`` (at 8 kHz) over and over, and writes down what it hears. ``secure``: its ``mediaenc``."""
    port, control = free_port(), free_port()
    rate_hz = RATES_HZ[codec]
    up = Resampler(8000, rate_hz)
    (folder / "said.wav").write_bytes(encode_wav([np.concatenate((up.process(said), up.flush()))], rate_hz))
    modules = (MODULES[codec], "aufile", "sndfile", "aubridge", "srtp", "ctrl_tcp")
    lines = ["module_path /usr/lib/baresip/modules", *(f"module {name}.so" for name in modules)]
    lines += ["module_tmp account.so", "module_app menu.so", f"sip_listen {LOOPBACK}:{port}"]
    lines += [f"ctrl_tcp_listen {LOOPBACK}:{control}", f"net_interface {LOOPBACK}", f"snd_path {folder}"]
    lines += [f"audio_source aufile,{folder}/said.wav", "audio_player aubridge,nil", "audio_channels 1-1"]
    lines += ["opus_stereo no", "opus_sprop_stereo no", "audio_alert aufile,/dev/null"]
    (folder / "config").write_text("\n".join(lines) + "\n")
    account = f"<sip:bob@{LOOPBACK}:{port}>;regint=0;answermode=auto;audio_codecs={ACCOUNT_CODECS[codec]}"
    (folder / "accounts").write_text(account + (f";mediaenc={secure}" if secure else "") + "\n")
    (folder / "contacts").write_text("")
    process = await asyncio.create_subprocess_exec(
        "baresip",
        *("-f", str(folder)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    writer = None
    try:
        async with asyncio.timeout(WAIT_S):
            while writer is None:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection(LOOPBACK, control)
                await asyncio.sleep(0.02)
        yield Phone(folder, port, writer)
    finally:
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        process.terminate()
        await process.wait()


def at_8_khz(pcm: Pcm16, rate_hz: int) -> Pcm16:
    down = Resampler(rate_hz, 8000)
    return np.concatenate((down.process(np.ascontiguousarray(pcm)), down.flush()))
