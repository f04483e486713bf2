"""Calls that the gateway places, to phones that are not ours: sipp and baresip, over loopback."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from gateway.outbound_client import Dialling, gateway_client
from gateway.settings import Settings
from gateway.transports.sip.server import SipServer
from tests.e2e.baresip_peer import needs_baresip, phone
from tests.e2e.ports import free_port
from tests.e2e.sipp_callee import bye, pause, recv, remember_parties, send, sipp
from tests.e2e.sipp_peer import needs_sipp
from tests.serving import Served, eventually, served

pytestmark = [pytest.mark.e2e, needs_sipp]

RINGS = (recv("INVITE"), send("100 Trying", tag=False), send("180 Ringing"))
ANSWERS = (*RINGS, send("200 OK", sdp=True), recv("ACK"))
HUNG_UP = (recv("BYE"), send("200 OK", tag=False))
CANCELLED = (
    recv("CANCEL"),
    send("200 OK", tag=False),
    # The final answer is the INVITE's: its CSeq is the one of the CANCEL, but for the method.
    send("487 Request Terminated").replace("[last_CSeq:]", "CSeq: [cseq] INVITE"),
    recv("ACK"),
)
CHALLENGE = 'Proxy-Authenticate: Digest realm="carrier", nonce="n1", algorithm=MD5, qop="auth"'


@dataclass
class Rig:
    here: Served
    client: httpx.AsyncClient

    async def dial(self, to: str, **body: Any) -> str:
        response = await self.client.post("/v1/calls", json={"to": to, **body})
        assert response.status_code == 201, response.text
        call_id: str = response.json()["id"]
        return call_id

    async def reaches(self, call_id: str, state: str) -> dict[str, Any]:
        """Wait until the call is there, and show it."""
        shown: list[dict[str, Any]] = []

        def there() -> bool:
            live = self.here.gateway.switchboard.find(call_id)
            record = live.record if live is not None else self.here.gateway.recent.find(call_id)
            assert record is not None
            shown.append(record.view())
            return bool(record.state == state) and (state != "ended" or live is None)

        await eventually(there)
        return shown[-1]

    async def hang_up(self, call_id: str) -> None:
        assert (await self.client.delete(f"/v1/calls/{call_id}")).status_code == 200

    @property
    def sip(self) -> SipServer:
        server = self.here.gateway.wires.sip
        assert server is not None
        return server


@contextlib.asynccontextmanager
async def rig(*hosts: str, settles: bool = True, **sip: Any) -> AsyncIterator[Rig]:
    """Without ``settles`` a request may still wait for its answer at the end."""
    settings = Settings.model_validate(
        {
            "preset": "null",
            "key": "sesame",
            "max_calls": 4,
            "sip": {"enabled": True, "port": 0, **sip},
            "outbound": {"enabled": True, "allow": ["+1", "127.0.0.1:9", *hosts], "callers": ["+15550001111"]},
        }
    )
    headers = {"Authorization": "Bearer sesame"}
    async with served(settings=settings) as here, httpx.AsyncClient(base_url=here.url, headers=headers) as client:
        yield Rig(here, client)
        if settles:
            await eventually(lambda: here.gateway.wires.sip is not None and here.gateway.wires.sip.idle)


async def test_a_phone_is_rung_answers_and_is_hung_up(tmp_path: Path) -> None:
    async with sipp(tmp_path, *ANSWERS, *HUNG_UP) as port, rig(f"127.0.0.1:{port}") as here:
        call_id = await here.dial(f"sip:bob@127.0.0.1:{port}")
        shown = await here.reaches(call_id, "answered")
        assert (shown["direction"], shown["caller"], shown["dialled"]) == ("outbound", "+15550001111", "bob")
        await here.hang_up(call_id)
        assert (await here.reaches(call_id, "ended"))["cause"] == "operator_hung_up"


async def test_the_other_side_hangs_up(tmp_path: Path) -> None:
    steps = (remember_parties(), *ANSWERS[1:], pause(200), bye())
    async with sipp(tmp_path, *steps) as port, rig(f"127.0.0.1:{port}") as here:
        call_id = await here.dial(f"sip:bob@127.0.0.1:{port}")
        assert (await here.reaches(call_id, "ended"))["cause"] == "caller_hung_up"


async def test_the_command_line_tells_of_it(tmp_path: Path) -> None:
    steps = (remember_parties(), *ANSWERS[1:-2], pause(700), *ANSWERS[-2:], pause(200), bye())
    said: list[str] = []
    async with sipp(tmp_path, *steps) as port, rig(f"127.0.0.1:{port}") as here:

        def dial() -> dict[str, Any]:
            with gateway_client(here.here.url, "sesame") as client:
                dialling = Dialling(client, said.append)
                return dialling.watch(dialling.place({"to": f"sip:bob@127.0.0.1:{port}"}))

        call = await asyncio.to_thread(dial)
    assert said[:2] == [f"dialling ({call['id']})", "ringing"]
    assert said[-1] == "ended: the other side hung up"
    assert call["answered_ms"] is not None


async def test_it_is_cancelled_while_it_rings(tmp_path: Path) -> None:
    async with sipp(tmp_path, *RINGS, *CANCELLED) as port, rig(f"127.0.0.1:{port}") as here:
        call_id = await here.dial(f"sip:bob@127.0.0.1:{port}")
        await here.reaches(call_id, "ringing")
        await here.hang_up(call_id)
        shown = await here.reaches(call_id, "ended")
        assert (shown["cause"], shown["answered_ms"]) == ("operator_hung_up", None)


async def test_nobody_answers_for_as_long_as_it_may_ring(tmp_path: Path) -> None:
    async with sipp(tmp_path, *RINGS, *CANCELLED) as port, rig(f"127.0.0.1:{port}") as here:
        call_id = await here.dial(f"sip:bob@127.0.0.1:{port}", ring_s=1)
        assert (await here.reaches(call_id, "ended"))["cause"] == "no_answer"


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        ("486 Busy Here", "busy"),
        ("603 Decline", "declined"),
        ("404 Not Found", "not_found"),
        ("403 Forbidden", "forbidden"),
        ("503 Service Unavailable", "unreachable"),
        ("488 Not Acceptable Here", "failed"),
    ],
)
async def test_why_it_was_not_answered(tmp_path: Path, status: str, cause: str) -> None:
    async with sipp(tmp_path, recv("INVITE"), send(status), recv("ACK")) as port, rig(f"127.0.0.1:{port}") as here:
        call_id = await here.dial(f"sip:bob@127.0.0.1:{port}")
        assert (await here.reaches(call_id, "ended"))["cause"] == cause


@pytest.mark.parametrize("transport", ["udp", "tcp"])
async def test_a_phone_that_is_not_there(transport: str) -> None:
    async with rig(f"127.0.0.1:{(port := free_port())}", settles=False) as here:
        call_id = await here.dial(f"sip:bob@127.0.0.1:{port};transport={transport}", ring_s=1)
        assert (await here.reaches(call_id, "ended"))["cause"] == "unreachable"


async def test_a_number_goes_by_the_trunk_which_asks_who_we_are(tmp_path: Path) -> None:
    steps = (
        recv("INVITE", holds="INVITE sip:.15551234567@carrier.example SIP/2.0"),
        send("407 Proxy Authentication Required", CHALLENGE),
        recv("ACK"),
        recv("INVITE", header="Proxy-Authorization:", holds="username=.us., *realm=.carrier."),
        *ANSWERS[1:],
        *HUNG_UP,
    )
    trunk = {"domain": "carrier.example", "user": "us", "password": "hush", "register": False}
    async with sipp(tmp_path, *steps) as port:
        trunks = {"carrier": {"server": f"127.0.0.1:{port}", **trunk}}
        async with rig(trunks=trunks) as here:
            call_id = await here.dial("+1 (555) 123-4567")
            await here.reaches(call_id, "answered")
            await here.hang_up(call_id)
            await here.reaches(call_id, "ended")


@needs_baresip
@pytest.mark.parametrize("who", ["we", "they"])
async def test_baresip_picks_up_hears_the_greeting_and_the_call_ends_from_either_side(tmp_path: Path, who: str) -> None:
    silence = np.zeros(8_000 * 10, np.int16)
    async with phone(tmp_path, silence) as bob, rig(f"127.0.0.1:{bob.port}") as here:
        call_id = await here.dial(f"sip:bob@127.0.0.1:{bob.port}")
        await here.reaches(call_id, "answered")

        def greeted() -> bool:
            live = here.here.gateway.switchboard.find(call_id)
            assert live is not None
            return any(entry.role == "assistant" for entry in live.record.transcript)

        await eventually(greeted)
        if who == "we":
            await here.hang_up(call_id)
        else:
            await bob.do("hangup")
        shown = await here.reaches(call_id, "ended")
        assert shown["cause"] == ("operator_hung_up" if who == "we" else "caller_hung_up")
        assert shown["quality"]["frames_out"] > 25
        assert np.abs(bob.heard()).max() > 1_000
