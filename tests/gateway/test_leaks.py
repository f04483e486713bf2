"""What calls leave behind in a gateway that goes on: nothing. A second load as large as the first adds no object."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np
import pytest
from starlette.applications import Starlette

from gateway.app import create_app
from gateway.settings import Settings
from gateway.state import Gateway
from gateway.switchboard import Refused
from gateway.telemetry.history import MAX_POINTS
from gateway.transports.phone.line import PlayoutOwner
from tests.gateway.transports.fake_peer import Peer
from tests.gateway.transports.phone.fake_line import FakeLine, phoned
from tests.virtual_time import virtual

KEPT = 5
"""Records of calls that ended, so that even the first load fills what there is for them."""
CALLS = 24
OURS = ("gateway.", "streaming.", "engines.", "tests.", "asyncio", "_asyncio", "starlette.", "websockets.")
LARGE_SAMPLES = 8_000

Load = Callable[[Starlette, Gateway], Awaitable[None]]


@contextlib.asynccontextmanager
async def null_gateway() -> AsyncIterator[tuple[Starlette, Gateway]]:
    """With the preset's own engines: what they keep counts."""
    app = create_app(Settings(preset="null", max_calls=CALLS, recent_calls=KEPT), strict=True)
    async with app.router.lifespan_context(app):
        await app.state.startup.settled.wait()
        yield app, app.state.gateway


def census() -> Counter[str]:
    """Objects by type: ours, those of the event loop, and large arrays."""
    gc.collect()
    objects: Counter[str] = Counter()
    for known in gc.get_objects():
        kind = type(known)
        if str(kind.__module__).startswith(OURS):
            objects[f"{kind.__module__}.{kind.__qualname__}"] += 1
        elif issubclass(kind, np.ndarray) and known.size >= LARGE_SAMPLES:  # isinstance() would ask the object
            objects["array"] += 1
    return objects


async def leaves_nothing(load: Load) -> None:
    async with null_gateway() as (app, gateway):
        await load(app, gateway)
        await asyncio.sleep(MAX_POINTS + 60)
        before, tasks = census(), len(asyncio.all_tasks())
        for _ in range(2):
            await load(app, gateway)
        await asyncio.sleep(60)
        assert gateway.switchboard.live == 0
        assert gateway.switchboard.ended == 3 * CALLS
        assert len(asyncio.all_tasks()) == tasks
        assert dict(census() - before) == {}


async def by_websocket(app: Starlette, _: Gateway) -> None:
    """Talk, interrupt, vanish, hang up in the middle; and as many again are refused meanwhile."""

    async def one(number: int) -> None:
        peer = Peer(app, "agent=default" if number % 2 else "", onset_cancels=False)
        await asyncio.sleep(number * 0.13)
        await peer.speak(400)
        await peer.hush(600)
        if number % 3 == 0:
            await peer.speak(300)
        if number % 2:
            peer.vanish()
        else:
            peer.hang_up()
        await peer.ended()

    async def surplus() -> None:
        peer = Peer(app)
        await peer.ended()
        assert peer.closed == (1013, "busy")

    calls = [asyncio.create_task(one(number)) for number in range(CALLS)]
    await asyncio.sleep(0.01)
    await asyncio.gather(*(surplus() for _ in range(CALLS)))
    await asyncio.gather(*calls)


async def by_phone(_: Starlette, gateway: Gateway) -> None:
    async def one(number: int) -> None:
        line = FakeLine(list(PlayoutOwner)[number % 2], latency_s=0.03)
        async with phoned(gateway, line) as call:
            await line.speak(400)
            await line.hush(500 + 70 * number)
            call.dtmf("5")
            await line.speak(200)
            if number % 2:
                call.call.hang_up("operator_hung_up")

    await asyncio.gather(*(one(number) for number in range(CALLS)))


async def given_up_before_they_began(_: Starlette, gateway: Gateway) -> None:
    async def one() -> None:
        with contextlib.suppress(Refused), await gateway.switchboard.admit("rtc", unconnected_from="192.0.2.7"):
            await asyncio.sleep(1)

    coming = [asyncio.create_task(one()) for _ in range(2 * CALLS)]
    await asyncio.sleep(0)
    for task in coming[::2]:
        task.cancel()
    await asyncio.gather(*coming, return_exceptions=True)
    while gateway.switchboard.ended % CALLS:
        with await gateway.switchboard.admit():
            pass


@virtual
async def test_calls_by_websocket_leave_nothing() -> None:
    await leaves_nothing(by_websocket)


@virtual
async def test_calls_by_phone_leave_nothing() -> None:
    await leaves_nothing(by_phone)


@virtual
async def test_calls_that_are_given_up_leave_nothing() -> None:
    await leaves_nothing(given_up_before_they_began)


def test_the_census_asks_nothing_of_what_other_tests_left() -> None:
    """Another test's torch leaves objects that warn when anybody reads their `__class__`."""

    def asked(_: object) -> type:
        raise AssertionError("asked")

    left = type("Lazy", (), {"__class__": property(asked), "__module__": "elsewhere"})()
    with pytest.raises(AssertionError, match="asked"):
        isinstance(left, np.ndarray)
    census()
