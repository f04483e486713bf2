"""Coming in: with a key where the gateway asks for one, and waiting for a gateway that starts."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.web.page_rig import Answer, Asked, Rig, needs_chromium

pytestmark = [pytest.mark.e2e, needs_chromium]

AGENTS = "/v1/agents"
SECRETS = "/v1/realtime/client_secrets"
DOOR_KEY = "open sesame"


class Door:
    """Asks for :data:`DOOR_KEY` as the gateway does."""

    def __init__(self, rig: Rig) -> None:
        self.key = DOOR_KEY
        self._rig = rig
        for path in (AGENTS, SECRETS):
            rig.gateway.answers[path] = self._answer

    def _answer(self, asked: Asked) -> Answer:
        presented = asked.headers.get("authorization")
        if presented == f"Bearer {self.key}":
            return self._rig.gateway._good_answer(asked)
        return Answer.refusal(401, "missing_api_key" if presented is None else "invalid_api_key")


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("Access key").fill(key)
    page.keyboard.press("Enter")


def test_a_gateway_without_a_key_asks_for_none(rig: Rig) -> None:
    page = rig.open()
    expect(page.locator("#call")).to_be_visible()
    expect(page.locator("#login")).to_be_hidden()
    expect(page.locator("#sign-out")).to_be_hidden()


def test_a_caller_is_told_of_fake_engines(rig: Rig) -> None:
    page = rig.open()
    expect(page.locator("#call")).to_be_visible()
    expect(page.locator("#gateway-notice")).to_be_hidden()
    rig.gateway.notice = "FAKE engines (stt, llm, tts): no figure tells of a model"
    page.reload()
    expect(page.locator("#gateway-notice")).to_have_text(rig.gateway.notice)


def test_the_key_opens_the_page_and_each_call(rig: Rig) -> None:
    Door(rig)
    page = rig.open()
    expect(page.get_by_label("Access key")).to_be_focused()
    sign_in(page, "wrong")
    expect(page.get_by_role("alert")).to_have_text("That key is not accepted. Check it and try again.")
    sign_in(page, f" {DOOR_KEY} ")
    expect(page.locator("#login")).to_be_hidden()
    page.click("#call")
    page.wait_for_selector('#stage[data-state="in-call"]')
    assert rig.gateway.of(SECRETS).headers["authorization"] == f"Bearer {DOOR_KEY}"
    assert rig.gateway.of("/v1/realtime/calls").headers["authorization"] == "Bearer ek_one"
    rig.faults.clear()


def test_the_key_stays_in_this_tab_and_out_of_every_address(rig: Rig) -> None:
    Door(rig)
    page = rig.open()
    sign_in(page, DOOR_KEY)
    expect(page.locator("#call")).to_be_visible()
    page.reload()
    expect(page.locator("#call")).to_be_visible()
    assert page.evaluate("Object.values(sessionStorage)") == [DOOR_KEY]
    assert DOOR_KEY not in page.evaluate("JSON.stringify(localStorage) + document.cookie + location.href")
    assert not any("sesame" in path for path in rig.gateway.paths())
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("#login")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0
    rig.faults.clear()


def test_a_key_that_was_changed_is_asked_for_again(rig: Rig) -> None:
    door = Door(rig)
    page = rig.open()
    sign_in(page, DOOR_KEY)
    expect(page.locator("#call")).to_be_visible()
    door.key = "another"
    page.click("#call")
    expect(page.locator("#login")).to_be_visible()
    expect(page.get_by_role("alert").and_(page.locator("#login-problem"))).to_contain_text("was not accepted")
    sign_in(page, "another")
    page.click("#call")
    page.wait_for_selector('#stage[data-state="in-call"]')
    rig.faults.clear()


def test_too_many_wrong_keys_are_told_with_the_wait(rig: Rig) -> None:
    rig.gateway.answers[AGENTS] = lambda asked: (
        Answer.refusal(429, "too_many_attempts", **{"Retry-After": "120"})
        if "authorization" in asked.headers
        else Answer.refusal(401, "missing_api_key")
    )
    page = rig.open()
    sign_in(page, "guess")
    expect(page.get_by_role("alert")).to_contain_text("Too many attempts")
    expect(page.get_by_role("alert")).to_contain_text("Try again in 2 minutes.")
    rig.faults.clear()


def test_a_gateway_that_will_not_have_this_address_is_not_asked_again(rig: Rig) -> None:
    rig.gateway.answers[AGENTS] = Answer.refusal(421, "host_not_allowed")
    page = rig.open()
    expect(page.get_by_role("status").filter(has_text="This host name is not known")).to_be_visible()
    expect(page.locator("#spinner")).to_be_hidden()
    rig.faults.clear()


def test_a_gateway_that_starts_is_waited_for(rig: Rig) -> None:
    rig.page.clock.install()
    rig.gateway.answers[AGENTS] = Answer.refusal(503, "warming", **{"Retry-After": "1"})
    page = rig.open()
    expect(page.get_by_role("status").filter(has_text="The gateway is starting")).to_be_visible()
    del rig.gateway.answers[AGENTS]
    page.clock.run_for(3_500)
    expect(page.locator("#call")).to_be_visible()
    expect(page.locator("#waiting")).to_be_hidden()
    rig.faults.clear()


@pytest.mark.parametrize("body", ["<html>Welcome to our hotel</html>", "null"])
def test_what_answers_in_the_gateways_place_is_no_gateway(rig: Rig, body: str) -> None:
    rig.gateway.answers[AGENTS] = Answer(200, body)
    page = rig.open()
    expect(page.locator("#waiting")).to_contain_text("The gateway does not answer")
    rig.gateway.answers.clear()
    expect(page.locator("#call")).to_be_visible()  # it asks again by itself
    rig.gateway.answers[SECRETS] = Answer(200, body)
    page.click("#call")
    expect(page.locator("#notices")).to_contain_text("The gateway does not answer")


def test_nothing_of_the_phone_stays_while_the_gateway_is_waited_for(rig: Rig) -> None:
    rig.page.add_init_script("sessionStorage.setItem('offhook.key', 'a key')")
    page = rig.open()
    expect(page.locator("#sign-out")).to_be_visible()
    rig.gateway.answers[AGENTS] = Answer.refusal(503, "warming")
    page.click("#sign-out")
    expect(page.locator("#waiting")).to_contain_text("The gateway is starting")
    for part in ("#phone", "#extras", "#sign-out", "#login"):
        expect(page.locator(part)).to_be_hidden()
    rig.gateway.answers.clear()
    expect(page.locator("#call")).to_be_visible()
    expect(page.locator("#waiting")).to_be_hidden()
    rig.faults.clear()
