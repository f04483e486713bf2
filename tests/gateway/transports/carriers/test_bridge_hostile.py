"""Messages that no exchange sends, and peers that vanish: the call stays up, or ends with a cause."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.gateway.transports.carriers import test_freeswitch
from tests.gateway.transports.carriers.bridges import JAMBONZ, VONAGE
from tests.gateway.transports.carriers.fake_carrier import FakeCarrier
from tests.gateway.transports.carriers.links import AsgiLink, Message
from tests.gateway.transports.carriers.rig import Rig
from tests.virtual_time import virtual

EVERY = pytest.mark.parametrize("name", ["vonage", "jambonz", "freeswitch"])
HOSTILE: tuple[Message, ...] = (
    b"",
    b"\x01",
    "",
    "null",
    "[]",
    "{",
    "[" * 20_000,
    '{"event":' + "[" * 5_000 + "]" * 5_000 + "}",
    '{"event":null,"type":5}',
    '{"event":{"a":1}}',
    '{"event":"dtmf","dtmf":{"digit":"1"},"digit":"12"}',
    '{"event":"websocket:dtmf","digit":"\\ud800"}',
    '{"event":"websocket:notify","payload":"m"}',
    '{"event":"websocket:notify","payload":{"mark":"unknown"}}',
    '{"event":"websocket:cleared"}',
    '{"event":"websocket:connected","content-type":"audio/l16;rate=8000"}',
    '{"type":"mark","data":{"name":"' + "m" * 1_000 + '"}}',
    '{"type":"mark","data":{"name":"unknown","event":"cleared"}}',
    '{"type":"mark","data":[]}',
    '{"event":"new thing","x":"' + "y" * 10_000 + '"}',
    "x" * 300_000,
    b"x" * 300_000,
)


@contextlib.asynccontextmanager
async def called(name: str) -> AsyncIterator[tuple[Rig, FakeCarrier]]:
    if name == "freeswitch":
        async with test_freeswitch.called() as (rig, fake):
            yield rig, fake
        return
    async with (VONAGE if name == "vonage" else JAMBONZ).called() as (rig, one):
        yield rig, one


@EVERY
def test_a_call_survives_them_all(name: str) -> None:
    @virtual
    async def call() -> None:
        async with called(name) as (rig, fake):
            await fake.hush(2_000)
            for message in HOSTILE:
                fake.send(message)
            await fake.hush(200)
            assert rig.counted("carrier_message_too_large") == 2
            assert rig.counted("carrier_bad_json") >= 4
            assert rig.counted("carrier_unknown_event") >= 3
            await fake.speak(800)
            await fake.until(lambda: rig.turns == 2)
        assert rig.causes == ["caller_hung_up"]

    call()


@EVERY
def test_a_peer_that_vanishes_ends_its_call(name: str) -> None:
    @virtual
    async def call() -> None:
        async with called(name) as (rig, fake):
            await fake.hush(1_000)
            assert isinstance(fake._link, AsgiLink)
            fake.stopped = True
            await fake._link.vanish()
            await fake.until(lambda: rig.causes)
            fake._ended.set()
            assert rig.causes == ["connection_lost"]

    call()


@EVERY
def test_a_peer_that_says_nothing_more_ends_its_call(name: str) -> None:
    @virtual
    async def call() -> None:
        async with called(name) as (_, fake):
            await fake.hush(1_000)
            closed = await fake.over(60)
            assert (closed.code, closed.reason) == (1000, "media_timeout")

    call()
