"""Phones that are called: sipp with a scenario of a few steps, and baresip."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np

from engines.api import Pcm16
from streaming.audio.wav import encode_wav, read_wav

RECEIVED = "[last_Via:]\n[last_From:]\n[last_To:]{tag}\n[last_Call-ID:]\n[last_CSeq:]\n"
SDP = (
    "v=0\no=peer 1 1 IN IP4 [local_ip]\ns=-\nc=IN IP4 [media_ip]\nt=0 0\n"
    "m=audio [media_port] RTP/AVP 0\na=rtpmap:0 PCMU/8000\n"
)


def recv(method: str, *, header: str = "", holds: str = "") -> str:
    """Wait for a request; ``holds`` is a regular expression that its ``header`` (or all of it) must match."""
    if not holds:
        return f'<recv request="{method}"/>'
    where = f'search_in="hdr" header="{header}"' if header else 'search_in="msg"'
    check = f'<ereg regexp="{holds}" {where} check_it="true" assign_to="1"/><log message="[$1]"/>'
    return f'<recv request="{method}"><action>{check}</action></recv>'


def send(status: str, *headers: str, sdp: bool = False, tag: bool = True) -> str:
    """Answer the last request."""
    head = RECEIVED.format(tag=";tag=peer[call_number]" if tag else "")
    fields = "".join(f"{header}\n" for header in headers)
    contact = "Contact: <sip:peer@[local_ip]:[local_port]>\n"
    body = f"Content-Type: application/sdp\nContent-Length: [len]\n\n{SDP}" if sdp else "Content-Length: 0\n\n"
    return f"<send><![CDATA[\nSIP/2.0 {status}\n{head}{contact}{fields}{body}]]></send>"


def bye() -> str:
    """Hang up; to be sent after an ACK."""
    return dedent("""\
        <send><![CDATA[
        BYE [next_url] SIP/2.0
        Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
        From: [$to];tag=peer[call_number]
        To: [$from]
        [last_Call-ID:]
        CSeq: 1 BYE
        Max-Forwards: 70
        Content-Length: 0

        ]]></send>
        <recv response="200"/>""")


def remember_parties() -> str:
    """Of the INVITE, for :func:`bye`."""
    return dedent("""\
        <recv request="INVITE" rrs="true"><action>
        <ereg regexp="&lt;.*" search_in="hdr" header="From:" assign_to="from"/>
        <ereg regexp="&lt;.*" search_in="hdr" header="To:" assign_to="to"/>
        </action></recv>""")


def pause(ms: int) -> str:
    return f'<pause milliseconds="{ms}"/>'


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def sipp(folder: Path, *steps: str, within_s: int = 20) -> AsyncIterator[int]:
    """Take one call as the steps say; yields the port. Fails at the end unless all of them were gone through."""
    port = free_port()
    scenario = folder / "scenario.xml"
    scenario.write_text('<?xml version="1.0"?>\n<scenario name="callee">\n' + "\n".join(steps) + "\n</scenario>\n")
    arguments = ["-sf", str(scenario), "-i", "127.0.0.1", "-p", str(port), "-mi", "127.0.0.1"]
    arguments += ["-mp", str(free_port()), "-m", "1", "-nostdin", "-timeout", f"{within_s}s", "-trace_err"]
    process = await asyncio.create_subprocess_exec(
        "sipp", *arguments, cwd=folder, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        await _bound(port)
        yield port
        _, errors = await asyncio.wait_for(process.communicate(), within_s)
        assert process.returncode == 0, (process.returncode, errors.decode(), _errors_in(folder))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _errors_in(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*errors.log"))


async def _bound(port: int) -> None:
    """Wait until somebody listens there."""
    async with asyncio.timeout(10):
        while not _is_bound(port):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def _is_bound(port: int) -> bool:
    return f":{port:04X} " in Path("/proc/net/udp").read_text()


class Baresip:
    """A phone that picks up by itself, says ``said``, and writes down what it hears."""

    def __init__(self, folder: Path, port: int, control: int) -> None:
        self._folder = folder
        self._control = control
        self.port = port

    async def hang_up(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._control)
        message = json.dumps({"command": "hangup", "token": "1"})
        writer.write(f"{len(message)}:{message},".encode())
        await writer.drain()
        await reader.read(64)
        writer.close()
        await writer.wait_closed()

    def heard(self) -> Pcm16:
        """8 kHz; all of what it got."""
        (path,) = self._folder.glob("dump-*-dec.wav")
        heard, rate_hz = read_wav(path.read_bytes())
        assert rate_hz == 8_000
        return heard


@contextlib.asynccontextmanager
async def baresip(folder: Path, said: Pcm16) -> AsyncIterator[Baresip]:
    port, control = free_port(), free_port()
    (folder / "said.wav").write_bytes(encode_wav([said], 8_000))
    modules = ("stdio", "g711", "aufile", "sndfile", "ctrl_tcp")
    options: dict[str, Any] = {
        "poll_method": "epoll",
        "sip_listen": f"127.0.0.1:{port}",
        "net_interface": "127.0.0.1",
        "module_path": "/usr/lib/baresip/modules",
        "ctrl_tcp_listen": f"127.0.0.1:{control}",
        "audio_source": f"aufile,{folder / 'said.wav'}",
        "audio_player": f"aufile,{folder / 'played.wav'}",
    }
    lines = [f"{name} {value}" for name, value in options.items()]
    lines += [*(f"module {name}.so" for name in modules), "module_tmp account.so", "module_app menu.so"]
    (folder / "config").write_text("\n".join(lines) + "\n")
    (folder / "accounts").write_text(f"<sip:bob@127.0.0.1:{port}>;regint=0;answermode=auto\n")
    process = await asyncio.create_subprocess_exec(
        "baresip", "-f", str(folder), cwd=folder, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        await _bound(port)
        yield Baresip(folder, port, control)
    finally:
        process.terminate()
        await process.wait()


def loudness(pcm: Pcm16) -> float:
    """RMS of the loudest 100 ms at 8 kHz."""
    blocks = pcm[: len(pcm) - len(pcm) % 800].astype(np.float64).reshape(-1, 800)
    return float(np.sqrt((blocks**2).mean(axis=1)).max()) if len(blocks) else 0.0
