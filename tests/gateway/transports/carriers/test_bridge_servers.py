"""Vonage, jambonz and FreeSWITCH over the real server and real sockets: one turn each, with the null preset."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.gateway.transports.carriers import fake_freeswitch, fake_jambonz, fake_vonage
from tests.gateway.transports.carriers.bridges import JAMBONZ, JAMBONZ_TABLE, VONAGE, VONAGE_TABLE, JsonVendor
from tests.gateway.transports.carriers.fake_carrier import FakeCarrier
from tests.gateway.transports.carriers.links import SocketLink
from tests.gateway.transports.carriers.rig import settings
from tests.serving import Served, served

TABLES = settings(
    vonage=VONAGE_TABLE | {"private_key": None},
    jambonz=JAMBONZ_TABLE | {"api_key": None},
    freeswitch={"enabled": True, "stream_token": fake_freeswitch.TOKEN},
)


async def stream_url(here: Served, vendor: JsonVendor) -> str:
    """From the answer to the call's webhook."""
    body = json.dumps(vendor.form).encode()
    async with httpx.AsyncClient() as client:
        url = f"{here.url}/v1/carriers/{vendor.name}/call"
        answer = await client.post(url, content=body, headers=vendor.sign_body(body))
    found = re.search(r'"(ws://[^"]+)"', answer.text)
    assert found is not None, answer.text
    return found[1]


@contextlib.asynccontextmanager
async def called(here: Served, name: str) -> AsyncIterator[FakeCarrier]:
    if name == "freeswitch":
        url = here.url.replace("http", "ws", 1) + "/v1/carriers/freeswitch/stream"
        headers = {"Authorization": f"Bearer {fake_freeswitch.TOKEN}"}
        async with connect(url, additional_headers=headers, compression=None) as socket:
            metadata = {"agent": "anna", "uuid": fake_freeswitch.CALL}
            async with fake_freeswitch.FakeFreeswitch(SocketLink(socket), metadata=metadata).connected() as fake:
                yield fake
        return
    vendor = VONAGE if name == "vonage" else JAMBONZ
    protocols = ["audio.jambonz.org"] if name == "jambonz" else None
    url = await stream_url(here, vendor)
    async with connect(url, subprotocols=protocols, compression=None) as socket:  # type: ignore[arg-type]
        assert socket.subprotocol == (protocols[0] if protocols else None)
        link = SocketLink(socket)
        one = fake_vonage.FakeVonage(link) if name == "vonage" else fake_jambonz.FakeJambonz(link)
        async with one.connected():
            yield one


@pytest.mark.parametrize("name", ["vonage", "jambonz", "freeswitch"])
async def test_a_turn_and_a_hang_up_by_us(name: str) -> None:
    async with served(settings=TABLES) as here:
        async with called(here, name) as fake:
            await fake.until(lambda: fake.heard_ms > 200)
            (record,) = here.gateway.switchboard.calls()
            assert record.transport == name
            await fake.hush(1_500)
            await fake.speak(1_000)
            await fake.until(lambda: len(record.turns) == 2)
            assert [entry.role for entry in record.transcript] == ["assistant", "user", "assistant"]
            call = here.gateway.switchboard.find(record.id)
            assert call is not None
            call.hang_up("max_duration")
            closed = await fake.over()
            assert (closed.code, closed.reason) == (1000, "max_duration")
            if isinstance(fake, fake_jambonz.FakeJambonz):
                assert fake.disconnected
        await here.empty()


async def test_a_ticket_opens_one_stream() -> None:
    async with served(settings=TABLES) as here:
        url = await stream_url(here, VONAGE)
        async with connect(url):
            pass
        with pytest.raises(InvalidStatus) as refused:
            await connect(url)
        assert refused.value.response.status_code == 403
        here.faults.clear()
