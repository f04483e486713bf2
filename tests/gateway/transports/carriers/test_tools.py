"""What the model may do with a carrier's call: end it, hand it over, press keys. In virtual time."""

from __future__ import annotations

import httpx
import pytest

from gateway.settings import AgentSettings, Settings
from tests.gateway.transports.carriers.fake_carrier import FakeCarrier
from tests.gateway.transports.carriers.rig import Rig
from tests.gateway.transports.carriers.vendors import VENDORS, Vendor
from tests.virtual_time import virtual

EVERY = pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
CLERK = AgentSettings(
    greeting="Hello there.",
    silence_ms=300,
    goodbye="Goodbye to you my friend.",
    tools=("end_call", "transfer", "send_dtmf"),
    transfer_targets={"billing": "+15557777"},
    keypad_pause_ms=500,
)


def clerk(vendor: Vendor) -> Settings:
    return vendor.settings.model_copy(update={"agents": {"anna": CLERK}})


async def press(fake: FakeCarrier, keys: str) -> None:
    await fake.hush(2_000)
    for key in keys:
        fake.press(key)
        await fake.hush(100)
    await fake.hush(600)


async def until_asked(rig: Rig, fake: FakeCarrier) -> httpx.Request:
    await fake.until(lambda: rig.rest.requests)
    return rig.rest.requests[0]


@EVERY
@virtual
async def test_the_goodbye_is_heard_before_the_carrier_is_told_to_hang_up(vendor: Vendor) -> None:
    async with vendor.called(tables=clerk(vendor)) as (rig, fake):
        await press(fake, "*0")
        heard: list[float] = []

        async def hangs_up(request: httpx.Request) -> None:
            heard.append(fake.heard_ms)

        rig.rest.then = hangs_up
        await fake.until(lambda: fake.closed is not None)
        assert len(rig.rest.requests) == 1
        assert heard == [fake.heard_ms], "all that was said was heard by then"
        assert fake.heard_ms == rig.record.view()["quality"]["frames_out"] * 20 >= 1_500
    assert rig.causes == ["agent_hung_up"]


@EVERY
@virtual
async def test_a_caller_is_handed_over_and_not_hung_up(vendor: Vendor) -> None:
    async with vendor.called(tables=clerk(vendor)) as (rig, fake):
        await press(fake, "*1")
        await until_asked(rig, fake)
        await fake.until(lambda: fake.closed is not None)
        assert len(rig.rest.requests) == 1
    assert rig.causes == ["transferred"]


@EVERY
@virtual
async def test_a_handover_that_fails_is_told_to_the_caller_and_the_call_goes_on(vendor: Vendor) -> None:
    async with vendor.called(tables=clerk(vendor)) as (rig, fake):
        rig.rest.statuses = [400]
        await press(fake, "*1")
        await until_asked(rig, fake)
        heard = fake.heard_ms
        await fake.hush(5_000)
        assert fake.heard_ms > heard + 300, "the model says what became of it"
        assert rig.record.cause is None
    assert rig.causes == ["caller_hung_up"]


@EVERY
@virtual
async def test_keys_are_pressed(vendor: Vendor) -> None:
    async with vendor.called(tables=clerk(vendor)) as (rig, fake):
        await press(fake, "*234")
        await fake.hush(4_000)
        if vendor.name == "telnyx":
            assert rig.rest.requests[0].content == b'{"digits":"34"}'
        elif vendor.name == "plivo":
            assert fake.dtmf == ["34"]  # type: ignore[attr-defined]
        else:
            assert not rig.rest.requests
            assert max(int(abs(pcm).max()) for _, pcm in fake.heard) > 12_000, "two tones at once"
        assert rig.record.cause is None


@virtual
async def test_what_a_line_cannot_do_is_not_offered() -> None:
    telnyx = next(vendor for vendor in VENDORS if vendor.name == "telnyx")
    tables = clerk(telnyx).model_copy(update={"telnyx": telnyx.settings.telnyx.model_copy(update={"api_key": None})})
    async with telnyx.called(tables=tables) as (rig, fake):
        await press(fake, "*1")
        await fake.hush(2_000)
        assert rig.record.cause is None
        await press(fake, "*0")
        await fake.until(lambda: fake.closed is not None)
        assert not rig.rest.requests
    assert rig.causes == ["agent_hung_up"]
