"""Offers whose senders never come hold few places, and give them back at once when they do or say they will not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
from pydantic import SecretStr

from gateway.security.unconnected import PER_SOURCE
from gateway.settings import Settings
from gateway.transports.webrtc.call_task import SETUP_S
from gateway.transports.webrtc.offer import BadOffer
from tests.gateway.transports.webrtc.browser_rig import ANNA, CALLS, OFFER, SDP, Rig, browser_rig, code_of, hang_up
from tests.virtual_time import virtual

SETTINGS = Settings(
    preset="null", max_calls=16, key=SecretStr("full"), page_key=SecretStr("page"), agents={"anna": ANNA}
)
ATTACKER, VISITOR = "203.0.113.9", "198.51.100.1"
REFUSED = (429, "too_many_unconnected")


@contextlib.asynccontextmanager
async def rig_of() -> AsyncIterator[Rig]:
    async with browser_rig(settings=SETTINGS) as rig:
        yield rig
        for browser in rig.browsers:
            if browser.closed_at is None:
                await hang_up(rig, browser)


async def offer(rig: Rig, address: str, secret: str | None = None) -> httpx.Response:
    if secret is None:
        secret = str((await rig.mint("page")).json()["value"])
    transport = httpx.ASGITransport(rig.app, client=(address, 5_000))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
        return await client.post(CALLS, content=OFFER, headers={**SDP, "authorization": f"Bearer {secret}"})


def refusals(rig: Rig) -> int:
    found = rig.gateway.metrics._registry.get_sample_value(
        "offhook_calls_refused_total", {"reason": "too_many_unconnected"}
    )
    return int(found or 0)


@virtual
async def test_one_address_cannot_hold_every_place_with_offers_that_never_connect() -> None:
    async with rig_of() as rig:
        begun = asyncio.get_running_loop().time()
        answers = [await offer(rig, ATTACKER) for _ in range(PER_SOURCE + 3)]
        assert [answer.status_code for answer in answers] == [201] * PER_SOURCE + [429] * 3
        assert (code_of(answers[-1]), answers[-1].headers["retry-after"]) == (REFUSED, "5")
        assert answers[-1].json()["error"]["type"] == "rate_limit_error"
        assert refusals(rig) == 3
        assert rig.gateway.switchboard.live == PER_SOURCE
        assert (await offer(rig, VISITOR)).status_code == 201
        assert asyncio.get_running_loop().time() == begun
        await asyncio.sleep(SETUP_S + 1)
        assert (await offer(rig, ATTACKER)).status_code == 201
        assert rig.causes == ["media_not_connected"] * (PER_SOURCE + 1)


@virtual
async def test_many_addresses_hold_half_of_the_places_and_the_key_still_calls() -> None:
    async with rig_of() as rig:
        answers = [await offer(rig, f"203.0.113.{number}") for number in range(10)]
        assert [answer.status_code for answer in answers] == [201] * 8 + [429] * 2
        placed = [await offer(rig, ATTACKER, "full") for _ in range(9)]
        assert [answer.status_code for answer in placed] == [201] * 8 + [503]


@virtual
async def test_who_connects_or_hangs_up_makes_room_at_once_and_a_refused_secret_is_not_used() -> None:
    async with rig_of() as rig:
        secrets = [str((await rig.mint("page")).json()["value"]) for _ in range(PER_SOURCE + 1)]
        first, second, *_ = [await offer(rig, ATTACKER, secret) for secret in secrets[:PER_SOURCE]]
        waiting = secrets[PER_SOURCE]
        assert code_of(await offer(rig, ATTACKER, waiting)) == REFUSED
        rig.browsers[0].connect()
        assert (await offer(rig, ATTACKER, waiting)).status_code == 201
        assert code_of(await offer(rig, ATTACKER)) == REFUSED
        beacon = {"client_secret": secrets[1]}
        hung_up = await rig.client.post(f"{second.headers['location']}/hangup", json=beacon)
        assert (hung_up.status_code, first.status_code) == (200, 201)
        await asyncio.sleep(0)  # the call's task has its turn; it is not gone yet
        assert rig.browsers[1].closed_at is None
        assert (await offer(rig, ATTACKER)).status_code == 201


@virtual
async def test_an_offer_that_is_refused_is_none_that_waits() -> None:
    async with rig_of() as rig:
        rig.fault = BadOffer("bad_sdp", "no SDP")
        for _ in range(PER_SOURCE + 2):
            assert code_of(await offer(rig, ATTACKER)) == (400, "bad_sdp")
        rig.fault = None
        assert (await offer(rig, ATTACKER)).status_code == 201
