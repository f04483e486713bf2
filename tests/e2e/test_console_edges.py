"""The console where something is odd: the address, the key, a gateway that is gone for a moment, a list that grows."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from playwright.async_api import expect
from pydantic import SecretStr

from gateway.records.call_record import CallRecord
from gateway.settings import Settings
from gateway.state import Gateway
from tests.e2e.test_console_chromium import opened
from tests.gateway.console_rig import calling
from tests.web.page_rig import needs_chromium

pytestmark = [pytest.mark.e2e, needs_chromium]


def ended(gateway: Gateway, number: int) -> str:
    record = CallRecord(id=f"call_0_{number:03}", transport="webrtc", agent="bakery", started_at=datetime.now(UTC))
    record.ended("caller_hung_up", 1_000.0)
    gateway.recent.add(record)
    return record.id


@pytest.mark.parametrize("address", ["%E0%A4%A", "live", "%"])
async def test_an_address_that_names_no_call_opens_none(address: str) -> None:
    async with opened() as console, calling(console.here.gateway) as call:
        await console.page.goto(f"{console.here.url}/console#{address}")
        await expect(console.row(call)).to_be_visible()
        await expect(console.page.locator("#link")).to_have_text("Live")
        await expect(console.page.locator("#notices > *")).to_have_count(1)  # that engines are fakes, nothing else
        await expect(console.page.locator("#detail")).to_be_hidden()

        await console.page.evaluate("(id) => { location.hash = id; }", call.id)
        await expect(console.page.locator("#detail")).to_contain_text(call.id)


async def test_a_defect_in_what_is_shown_does_not_end_the_stream() -> None:
    async with opened() as console, calling(console.here.gateway) as call:
        page = console.page
        await page.goto(f"{console.here.url}/console")
        await expect(console.row(call)).to_be_visible()
        await page.evaluate("() => { Element.prototype.insertBefore = () => { throw new Error('a defect'); }; }")
        async with calling(console.here.gateway):
            await page.wait_for_event("pageerror")
        await expect(page.locator("#link")).to_have_text("Live")
        assert set(console.faults) == {"a defect"}
        console.faults.clear()


async def test_keys_beyond_ascii_open_both_pages() -> None:
    keys = {"key": "schlüssel", "page_key": "ключ", "console_key": "🔑 ключ"}
    locked = Settings(preset="null", **{name: SecretStr(key) for name, key in keys.items()})  # type: ignore[arg-type]
    async with opened(locked) as console:
        page = console.page
        await page.goto(f"{console.here.url}/console")
        await page.get_by_label("Console key").fill("🔑 замок")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert").filter(visible=True)).to_have_text("That key is not accepted.")
        await page.get_by_label("Console key").fill(keys["console_key"])
        await page.keyboard.press("Enter")
        await expect(page.locator("#server-state")).to_have_text("Taking calls")
        for key in (keys["page_key"], keys["key"]):
            await page.goto(f"{console.here.url}/call")
            await page.evaluate("sessionStorage.removeItem('offhook.key')")
            await page.reload()
            await page.get_by_label("Access key").fill(key)
            await page.keyboard.press("Enter")
            await expect(page.locator("#call")).to_be_visible()
        console.faults.clear()  # the browser notes each 401


async def test_older_calls_that_were_asked_for_stay_while_others_end() -> None:
    async with opened() as console:
        page, gateway = console.page, console.here.gateway
        for number in range(150):
            ended(gateway, number)
        await page.goto(f"{console.here.url}/console")
        rows = page.locator("#recent-rows > li")
        await expect(rows).to_have_count(100)
        await page.get_by_role("button", name="Show older calls").click()
        await expect(rows).to_have_count(150)
        await expect(page.locator("#more")).to_be_hidden()
        async with calling(gateway) as call:
            await expect(console.row(call)).to_be_visible()
        await expect(page.locator("#recent-rows > li").first).to_contain_text(call.id)
        await expect(rows).to_have_count(151)
        await expect(page.locator("#more")).to_be_hidden()
        await page.fill("#filter", "call_0_149")
        await expect(rows).to_have_count(1)


async def test_a_record_that_cannot_be_read_says_so_and_opens_nothing() -> None:
    async with opened() as console:
        page = console.page
        call_id = ended(console.here.gateway, 1)
        await page.goto(f"{console.here.url}/console")
        line = page.locator(f'[data-call="{call_id}"] .line')
        await page.route("**/console/calls/call_0_001", lambda route: route.abort())
        await line.click()
        await expect(page.locator("#notices")).to_contain_text("This call cannot be read now")
        await expect(line).to_have_attribute("aria-expanded", "false")
        await page.unroute_all()
        await line.click()
        await expect(page.locator("#detail")).to_contain_text(call_id)
        await expect(page.locator("#notices > *")).to_have_count(1)  # that engines are fakes
        console.faults.clear()  # the browser notes the request that failed


async def test_what_a_call_does_has_a_word_and_a_long_name_stays_within_the_page() -> None:
    async with opened(viewport={"width": 360, "height": 740}) as console, calling(console.here.gateway) as call:
        page = console.page
        call.record.agent = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerk" * 4
        await page.goto(f"{console.here.url}/console")
        words = {"held": "Caller cuts in", "thinking": "Thinking", "waiting": "Listening", "hearing": "Caller speaks"}
        for phase, word in words.items():
            call.record.phase = phase
            await expect(console.row(call).locator(".phase")).to_have_text(word)
        await page.get_by_role("button", name=f"Hang up {call.id}").click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert await page.evaluate(
            "(({ scrollWidth, clientWidth }) => scrollWidth <= clientWidth)(document.querySelector('dialog'))"
        )
