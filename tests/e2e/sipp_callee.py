"""A phone that is called: sipp, with a scenario of a few steps."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from textwrap import dedent

from tests.e2e.ports import bound, free_port

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


def reinvite(sdp: str = SDP) -> str:
    """Offer other media; to be sent after an ACK. The answer has to be an audio."""
    head = dedent("""\
        {method} [next_url] SIP/2.0
        Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
        From: [$to];tag=peer[call_number]
        To: [$from]
        [last_Call-ID:]
        CSeq: 1 {method}
        Contact: <sip:peer@[local_ip]:[local_port]>
        Max-Forwards: 70
        """)
    invite = f"{head.format(method='INVITE')}Content-Type: application/sdp\nContent-Length: [len]\n\n{sdp}"
    check = '<ereg regexp="m=audio" search_in="body" check_it="true" assign_to="1"/><log message="[$1]"/>'
    answered = f'<recv response="200"><action>{check}</action></recv>'
    ack = f"{head.format(method='ACK')}Content-Length: 0\n\n"
    return f"<send><![CDATA[\n{invite}]]></send>\n{answered}\n<send><![CDATA[\n{ack}]]></send>"


def play(recording: Path) -> str:
    """Send a recording of RTP, and go on meanwhile."""
    return f'<nop><action><exec play_pcap_audio="{recording}"/></action></nop>'


def remember_parties() -> str:
    """Of the INVITE, for :func:`bye` and :func:`reinvite`."""
    return dedent("""\
        <recv request="INVITE" rrs="true"><action>
        <ereg regexp="&lt;.*" search_in="hdr" header="From:" assign_to="from"/>
        <ereg regexp="&lt;.*" search_in="hdr" header="To:" assign_to="to"/>
        </action></recv>""")


def pause(ms: int) -> str:
    return f'<pause milliseconds="{ms}"/>'


@contextlib.asynccontextmanager
async def sipp(folder: Path, *steps: str, within_s: int = 20, echoes: bool = False) -> AsyncIterator[int]:
    """Take one call as the steps say; yields the port. Fails at the end unless all of them were gone through.
    ``echoes``: it sends back what it hears."""
    port = free_port()
    scenario = folder / "scenario.xml"
    scenario.write_text('<?xml version="1.0"?>\n<scenario name="callee">\n' + "\n".join(steps) + "\n</scenario>\n")
    arguments = ["-sf", str(scenario), "-i", "127.0.0.1", "-p", str(port), "-mi", "127.0.0.1"]
    arguments += ["-mp", str(free_port()), "-m", "1", "-nostdin", "-timeout", f"{within_s}s", "-trace_err"]
    arguments += ["-rtp_echo"] if echoes else []
    process = await asyncio.create_subprocess_exec(
        "sipp", *arguments, cwd=folder, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        await bound(port)
        yield port
        _, errors = await asyncio.wait_for(process.communicate(), within_s)
        assert process.returncode == 0, (process.returncode, errors.decode(), _errors_in(folder))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _errors_in(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*errors.log"))
