"""A call that goes on and on: the page stays as quick as it was, and holds no more than it can show."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.web.page_rig import Rig, needs_chromium
from tests.web.server_events import answer_began, answered, said

pytestmark = [pytest.mark.e2e, needs_chromium]

HELD_FRAMES = """
window.held = [];
window.requestAnimationFrame = (then) => held.push(then);
window.nextFrame = () => held.splice(0).forEach((then) => then(performance.now()));
"""


def test_the_oldest_of_a_long_conversation_goes_from_the_page_too(rig: Rig) -> None:
    page = rig.call()
    for first in range(0, 260, 20):
        for n in range(first, first + 20):
            rig.gateway.send(*said(f"u{n}", "Hi."), *answered(f"r{n}", f"i{n}", "Yes."))
        expect(page.locator(f'[data-item="i{first + 19}"]')).to_have_class("turn agent done")
    expect(page.locator("#turns > li")).to_have_count(500)
    expect(page.locator("#turns > li").first).to_have_attribute("data-item", "u10")
    expect(page.locator("#spoken > p")).to_have_count(5)
    assert page.evaluate("scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 2"), "it follows the end"


def test_what_comes_between_two_frames_is_drawn_once(rig: Rig) -> None:
    rig.page.add_init_script(HELD_FRAMES)
    page = rig.call()
    rig.gateway.send(*said("u1", "Hello?"), *answer_began("r1", "i1", "We are open "))
    rig.gateway.send(*answer_began("r1", "i1", "from eight."))
    expect(page.locator("#phase")).to_have_text("Speaking")
    page.wait_for_function("() => held.length > 1")
    assert page.locator("#turns > li").count() == 0
    page.evaluate("nextFrame()")
    expect(page.locator("#turns .said")).to_have_text(["Hello?", "We are open from eight."])
    rig.gateway.send(*said("u2", "Thank you."))
    page.click("#hang-up")  # what came before the end is not lost
    page.wait_for_function("() => held.length > 0")
    page.evaluate("nextFrame()")
    expect(page.locator("#turns .said").last).to_have_text("Thank you.")


LONG_WORD = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"


@pytest.mark.parametrize("width", [320, 640])
def test_long_words_stay_within_the_page(rig: Rig, width: int) -> None:
    rig.page.set_viewport_size({"width": width, "height": 740})
    rig.gateway.agents = [{"name": f"{LONG_WORD}" * 4, "greeting": f"Hier ist die {LONG_WORD}.", "language": "de"}]
    page = rig.open()
    expect(page.locator("#greeting")).to_contain_text(LONG_WORD)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    expect(page.locator("#call")).to_be_in_viewport(ratio=1)
    page.click("#call")
    page.wait_for_selector('#stage[data-state="in-call"]')
    rig.gateway.send(*said("u1", f"Ist dort die {LONG_WORD}?"), *answered("r1", "i1", f"Ja, die {LONG_WORD}."))
    expect(page.locator("#turns .said")).to_have_count(2)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("scroller.scrollWidth <= scroller.clientWidth")
