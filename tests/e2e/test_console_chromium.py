"""The console in a real browser, before a real server with quiet calls."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.async_api import Page, async_playwright, expect
from pydantic import SecretStr

from gateway.settings import Settings
from streaming.turn_times import TurnTimes
from tests.gateway.console_rig import QuietCall, calling
from tests.serving import NULL, Served, eventually, served
from tests.web.page_rig import CHROMIUM, FLAGS, needs_chromium

pytestmark = [pytest.mark.e2e, needs_chromium]

HOSTILE = "<img src=x onerror=\"document.title='caught'\"><script>document.title='caught'</script>"
LOCKED = Settings(preset="null", key=SecretStr("full"), page_key=SecretStr("page"), console_key=SecretStr("console"))


@dataclass
class Opened:
    here: Served
    page: Page
    faults: list[str] = field(default_factory=list)
    """What the browser called an error. A test that means one clears it."""

    def row(self, call: QuietCall) -> Any:
        return self.page.locator(f'[data-call="{call.id}"]')


@contextlib.asynccontextmanager
async def opened(settings: Settings = NULL, **context: Any) -> AsyncIterator[Opened]:
    async with served(settings=settings) as here, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            page = await (await browser.new_context(**context)).new_page()
            console = Opened(here, page)
            page.on("pageerror", lambda error: console.faults.append(str(error)))
            page.on("console", lambda said: console.faults.append(said.text) if said.type == "error" else None)
            yield console
        finally:
            await browser.close()
        await eventually(lambda: here.gateway.consoles.open == 0)
        assert console.faults == []


@pytest.mark.parametrize("width", [390, 1440])
async def test_a_call_is_followed_and_its_words_are_only_words(width: int) -> None:
    async with opened(viewport={"width": width, "height": 900}) as console, calling(console.here.gateway) as call:
        page, record = console.page, call.record
        record.phase = "speaking"
        record.say("i1", "user", HOSTILE, at_ms=900.0)
        await page.goto(f"{console.here.url}/console")
        await expect(page.locator("#server-state")).to_have_text("Taking calls")
        await expect(console.row(call)).to_contain_text("Agent speaks")
        await expect(console.row(call)).to_contain_text(HOSTILE)
        await console.row(call).locator(".line").click()
        detail = page.locator("#detail")
        await expect(detail).to_contain_text(HOSTILE)
        await expect(detail.locator("h2")).to_be_focused()

        record.partly("i2", "assistant", f"We sell bread. {HOSTILE}", at_ms=1_500.0)
        await expect(detail.locator("li.partial")).to_contain_text("We sell bread.")
        record.say("i2", "assistant", "We sell bread.", cut=True, at_ms=2_000.0)
        record.settle("i2")
        await expect(detail.locator("li.assistant s")).to_contain_text(HOSTILE)
        await expect(detail.locator("li.assistant")).to_contain_text("the caller cut in")
        times: dict[str, Any] = {
            "decision_ms": 300.0,
            "final_ms": 380.0,
            "first_token_ms": 450.0,
            "first_audio_ms": 600.0,
        }
        record.turn(TurnTimes("r1", 1, False, first_sent_ms=612.0, cut_to_silence_ms=60.0, **times))
        await expect(detail.locator(".turns summary")).to_contain_text("612 ms")
        await expect(detail.locator(".turns .bar-of")).to_have_count(5)

        assert await page.title() == "Offhook · Console"
        assert await page.locator("#board img, #board script").count() == 0
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await page.keyboard.press("Escape")
        await expect(detail).to_be_hidden()
        await expect(console.row(call).locator(".line")).to_be_focused()


async def test_an_operator_hangs_up_after_having_been_asked() -> None:
    async with opened() as console, calling(console.here.gateway) as call:
        page = console.page
        await page.goto(f"{console.here.url}/console")
        await page.get_by_role("button", name=f"Hang up {call.id}").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("Hang up the call with bakery?")
        await dialog.get_by_role("button", name="Cancel").click()
        await expect(dialog).to_be_hidden()
        assert call.record.state == "answered"
        await page.get_by_role("button", name=f"Hang up {call.id}").click()
        await dialog.get_by_role("button", name="Hang up").click()
        await eventually(lambda: call.record.cause == "operator_hung_up")
        await expect(page.locator("#recent-rows")).to_contain_text("Hung up by an operator")
        await expect(page.locator("#live-empty")).to_be_visible()

        await page.keyboard.press("/")
        await page.keyboard.type("nothing like it")
        await expect(page.locator("#recent-empty")).to_have_text("No ended call has “nothing like it” in it.")
        await page.fill("#filter", "operator")
        await page.locator("#recent-rows .line").click()
        await expect(page.locator("#detail")).to_contain_text("Hung up by an operator")
        assert page.url.endswith(f"#{call.id}")


async def test_the_key_is_asked_for_and_a_drain_is_seen_to_its_end() -> None:
    async with opened(LOCKED) as console, calling(console.here.gateway) as call:
        page = console.page
        await page.goto(f"{console.here.url}/console")
        for key, answer in (("wrong", "That key is not accepted."), ("page", "That key opens calls, not the console.")):
            await page.get_by_label("Console key").fill(key)
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.get_by_role("alert").filter(visible=True)).to_have_text(answer)
        await page.get_by_label("Console key").fill("console")
        await page.get_by_role("button", name="Sign in").click()
        await expect(console.row(call)).to_be_visible()
        await page.reload()
        await expect(console.row(call)).to_be_visible()
        assert "console" not in page.url.replace("/console", "")

        await page.get_by_role("button", name="Drain…").click()
        await expect(page.get_by_role("dialog")).to_contain_text("may go on for 30 s")
        await page.get_by_role("dialog").get_by_role("button", name="Drain", exact=True).click()
        await expect(page.locator("#server-state")).to_have_text("Draining")
        call.hang_up("hung_up")
        await expect(page.locator("#notices")).to_contain_text("The server has drained")
        await expect(page.locator("#link")).to_have_text(re.compile("Reconnecting|Live"))

        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_label("Console key")).to_be_visible()
        assert await page.evaluate("sessionStorage.length") == 0
        assert console.here.gateway.recent.find(call.id) is not None
        assert await page.locator(".rows li, .said li").count() == 0, "nothing of a call is left in the page"
        console.faults.clear()  # the browser notes each 401 and 403
