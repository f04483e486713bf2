"""What a caller can do during a call: mute, keys, other devices; by mouse and by keyboard."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.web.page_rig import Rig, needs_chromium
from tests.web.server_events import answered, turn

pytestmark = [pytest.mark.e2e, needs_chromium]

LOUD = """async () => {
  const report = await far.getStats();
  for (const stat of report.values()) {
    if (stat.type === "inbound-rtp" && stat.kind === "audio") return [stat.totalAudioEnergy, stat.packetsReceived];
  }
}"""
"""What the far end has heard so far: energy, packets."""


def pressed(page: Page, name: str) -> str | None:
    return page.get_by_role("button", name=name, exact=True).get_attribute("aria-pressed")


def test_mute_silences_what_is_sent_and_says_so(rig: Rig) -> None:
    page = rig.call()
    rig.gateway.far.wait_for_function(f"async () => (await ({LOUD})())?.[0] > 0")
    page.get_by_role("button", name="Mute", exact=True).click()
    assert pressed(page, "Mute") == "true"
    expect(page.locator("#muted")).to_be_visible()
    page.wait_for_timeout(400)
    energy, packets = rig.gateway.far.evaluate(LOUD)
    page.wait_for_timeout(400)
    later, more = rig.gateway.far.evaluate(LOUD)
    assert more > packets  # the line stays up
    assert later - energy < 1e-6
    page.keyboard.press("m")
    assert pressed(page, "Mute") == "false"
    expect(page.locator("#muted")).to_be_hidden()


def test_keys_are_sent_as_events_from_the_pad_and_from_the_keyboard(rig: Rig) -> None:
    page = rig.call()
    page.keyboard.press("7")  # also while the pad is closed
    page.get_by_role("button", name="Keypad").click()
    for name in ("5 JKL", "pound", "star"):
        page.get_by_role("button", name=name, exact=True).click()
    page.keyboard.press("0")
    expect(page.locator("#dialled")).to_have_text("75#*0")
    rig.gateway.far.wait_for_function("() => received.length === 5")
    assert rig.gateway.received() == [{"type": "offhook.dtmf", "digits": key} for key in "75#*0"]
    page.keyboard.press("Escape")
    expect(page.locator("#keypad")).to_be_hidden()
    expect(page.get_by_role("button", name="Keypad")).to_be_focused()
    assert page.get_attribute("#stage", "data-state") == "in-call"


def test_keys_of_the_keyboard_can_be_switched_off_and_stay_so(rig: Rig) -> None:
    page = rig.call()
    page.locator("#settings > summary").click()
    page.get_by_label("Keys on the keyboard dial").uncheck()
    page.keyboard.press("5")
    page.keyboard.press("m")
    assert pressed(page, "Mute") == "false"
    assert rig.gateway.received() == []
    page.reload()
    assert not page.get_by_label("Keys on the keyboard dial").is_checked()


def test_a_whole_call_by_keyboard_alone(rig: Rig) -> None:
    page = rig.open()
    call = page.get_by_role("button", name="Call", exact=True)
    expect(call).to_be_visible()
    for _ in range(10):
        page.keyboard.press("Tab")
        if call.evaluate("(button) => button === document.activeElement"):
            break
    page.keyboard.press("Enter")
    page.wait_for_selector('#stage[data-state="in-call"]')
    expect(page.get_by_role("button", name="Hang up")).to_be_focused()
    page.keyboard.press("Space")
    page.wait_for_selector('#stage[data-state="ended"]')
    expect(page.get_by_role("button", name="Call again")).to_be_focused()


def test_a_key_held_down_does_not_hang_up_again(rig: Rig) -> None:
    page = rig.open()
    page.locator("#call").focus()
    page.keyboard.down("Enter")
    page.wait_for_selector('#stage[data-state="in-call"]')
    page.keyboard.down("Enter")  # it repeats
    page.wait_for_timeout(100)
    assert page.get_attribute("#stage", "data-state") == "in-call"


def test_another_microphone_can_be_taken_during_a_call(rig: Rig) -> None:
    page = rig.call()
    page.locator("#settings > summary").click()
    choice = page.get_by_label("Microphone")
    names = choice.locator("option").all_inner_texts()
    assert names[0] == "Default microphone"
    assert len(names) > 2
    before = rig.gateway.far.evaluate(LOUD)[1]
    choice.select_option(index=2)
    page.wait_for_timeout(400)
    assert rig.gateway.far.evaluate(LOUD)[1] > before
    chosen = choice.input_value()
    page.reload()
    page.wait_for_function("(chosen) => document.getElementById('microphone').value === chosen", arg=chosen)


def test_meters_move_are_told_in_words_and_rest_while_nobody_looks(rig: Rig) -> None:
    rig.page.add_init_script("""
        window.frames_drawn = 0;
        const frame = window.requestAnimationFrame.bind(window);
        window.requestAnimationFrame = (then) => frame((at) => { window.frames_drawn += 1; then(at); });
    """)
    page = rig.call()
    meter = page.get_by_role("meter", name="Agent")
    page.wait_for_function("() => document.getElementById('meter-agent').getAttribute('aria-valuenow') > 40")
    expect(meter).to_have_attribute("aria-valuetext", "speaking")
    page.evaluate("""() => {
        Object.defineProperty(document, "hidden", { value: true, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }""")
    drawn = page.evaluate("frames_drawn")
    page.wait_for_timeout(200)
    assert page.evaluate("frames_drawn") - drawn <= 1
    page.evaluate("""() => {
        Object.defineProperty(document, "hidden", { value: false, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }""")
    page.wait_for_function("(drawn) => frames_drawn > drawn + 3", arg=drawn)


def test_the_connection_is_judged_and_its_numbers_can_be_read(rig: Rig) -> None:
    page = rig.call()
    expect(page.locator("#quality-word")).to_have_text("Good")
    page.locator("#quality > summary").click()
    expect(page.locator('[data-reading="codec"]')).to_have_text("opus, 48 kHz")
    expect(page.locator('[data-reading="lossIn"]')).to_have_text("0.0 %")
    expect(page.locator('[data-reading="path"]')).to_contain_text("direct")


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_screen(rig: Rig, width: int) -> None:
    page = rig.page
    page.set_viewport_size({"width": width, "height": 740})
    rig.call()
    rig.gateway.send(*answered("r1", "i1", "Donaudampfschifffahrtsgesellschaftskapitän" * 4), turn("r1"))
    page.keyboard.press("m")
    page.locator("#settings > summary").click()
    page.locator("#quality > summary").click()
    page.locator("#keypad-button").click()
    expect(page.locator("#turns > .turn")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    expect(page.locator("#hang-up")).to_be_in_viewport()
    too_wide = page.evaluate("""(width) => [...document.querySelectorAll("main *")]
        .filter((node) => node.checkVisibility() && node.getBoundingClientRect().right > width)
        .map((node) => node.id || node.className)""", width)  # fmt: skip
    assert too_wide == []
