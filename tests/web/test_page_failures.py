"""Every way a call fails, and what a person is told of it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.web.page_rig import Answer, Rig, needs_chromium

pytestmark = [pytest.mark.e2e, needs_chromium]

SECRETS = "/v1/realtime/client_secrets"
CALLS = "/v1/realtime/calls"

PEERS = """
window.peers = [];
window.RTCPeerConnection = class extends RTCPeerConnection {
  constructor(...given) { super(...given); peers.push(this); }
};
window.becomes = (state) => {
  const peer = peers.at(-1);
  Object.defineProperty(peer, "connectionState", { get: () => state, configurable: true });
  peer.dispatchEvent(new Event("connectionstatechange"));
};
"""

TRACKS = """
window.tracks = [];
const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
navigator.mediaDevices.getUserMedia = async (wanted) => {
  const stream = await ask(wanted);
  tracks.push(...stream.getTracks());
  return stream;
};
"""


def refuse_microphone(error: str, message: str = "") -> str:
    return (
        "navigator.mediaDevices.getUserMedia = async () => "
        f"{{ throw new DOMException({message or error!r}, {error!r}); }};"
    )


def told(page: Page) -> str:
    """The text of the notice; there is one, and one button to go on by."""
    page.wait_for_selector('#stage[data-state="ended"]')
    expect(page.locator("#notices > .notice")).to_have_count(1)
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    return page.locator("#notices").inner_text()


@pytest.mark.parametrize(
    ("script", "title"),
    [
        ("Object.defineProperty(window, 'isSecureContext', { value: false });", "This page needs a secure address"),
        ("delete window.RTCPeerConnection;", "This browser cannot make calls"),
        (refuse_microphone("NotAllowedError", "Permission denied"), "The microphone is not allowed"),
        (refuse_microphone("NotAllowedError", "Permission dismissed"), "The microphone was not allowed yet"),
        (refuse_microphone("NotFoundError"), "No microphone was found"),
        (refuse_microphone("NotReadableError"), "The microphone cannot be opened"),
    ],
)
def test_without_a_microphone_it_is_said_why(rig: Rig, script: str, title: str) -> None:
    rig.page.add_init_script(script)
    page = rig.open()
    if "DOMException" not in script:  # nothing has to be asked to know
        expect(page.locator("#notices")).to_contain_text(title)
    page.click("#call")
    assert told(page).startswith(title)
    assert rig.gateway.paths() == ["GET /v1/agents"]


REFUSALS = [
    (CALLS, Answer.refusal(503, "busy", **{"Retry-After": "5"}), "All lines are busy"),
    (CALLS, Answer.refusal(503, "draining"), "The line is closing"),
    (CALLS, Answer.refusal(503, "overloaded"), "The line is overloaded"),
    (CALLS, Answer.refusal(503, "engines_down"), "Nobody can answer now"),
    (SECRETS, Answer.refusal(429, "too_many_attempts", **{"Retry-After": "30"}), "Too many attempts"),
    (SECRETS, Answer.refusal(404, "unknown_agent"), "There is no such agent"),
    (SECRETS, Answer.refusal(403, "origin_not_allowed"), "This address may not call"),
    (CALLS, Answer.refusal(400, "no_opus"), "The call failed"),
    (CALLS, Answer(502, "a proxy's page"), "The gateway refused the call"),
]


def test_a_refusal_is_told_in_words(rig: Rig) -> None:
    page = rig.open()
    for path, answer, title in REFUSALS:
        rig.gateway.answers = {path: answer}
        page.click("#call")
        expect(page.locator("#notices strong")).to_have_text(title)
        text = told(page)
        assert ("Try again in 30 seconds." in text) == (answer.status == 429)
    rig.gateway.answers = {SECRETS: Answer.refusal(503, "warming")}
    page.click("#call")
    expect(page.locator("#status")).to_contain_text("The gateway is starting")
    rig.faults.clear()  # the browser notes each refusal by itself


def test_a_gateway_that_does_not_answer_is_told(rig: Rig) -> None:
    page = rig.open()
    rig.page.route(f"**{SECRETS}", lambda route: route.abort())
    page.click("#call")
    assert told(page).startswith("The gateway does not answer")
    rig.faults.clear()


def test_no_way_through_is_told(rig: Rig) -> None:
    rig.page.add_init_script(PEERS)

    def without_candidates(_: object) -> Answer:
        sdp = rig.gateway.far.evaluate("(offer) => window.answer(offer)", rig.gateway.of(CALLS).body)
        kept = [line for line in sdp.split("\r\n") if not line.startswith("a=candidate")]
        rig.gateway.far.evaluate("() => far.close()")
        return Answer(201, "\r\n".join(kept), {"Location": f"{CALLS}/rtc_one"})

    rig.gateway.answers[CALLS] = without_candidates
    page = rig.open()
    page.click("#call")
    page.wait_for_function("() => peers[0]?.remoteDescription")
    page.evaluate("becomes('failed')")
    assert told(page).startswith("No audio path to the gateway")
    rig.gateway.wait_for(f"{CALLS}/rtc_one/hangup")  # it has a call that nobody is in


def test_a_network_that_goes_and_comes_is_told_and_one_that_stays_away_ends_the_call(rig: Rig) -> None:
    rig.page.add_init_script(PEERS)
    page = rig.call()
    page.evaluate("becomes('disconnected')")
    expect(page.locator("#notices")).to_contain_text("The connection is interrupted")
    page.evaluate("becomes('connected')")
    expect(page.locator("#notices")).to_be_empty()
    page.evaluate("becomes('failed')")
    assert told(page).startswith("The connection was lost")


def test_a_connection_that_does_not_come_back_is_given_up(rig: Rig) -> None:
    rig.page.add_init_script(PEERS)
    rig.page.clock.install()
    page = rig.open()
    page.click("#call")
    page.wait_for_selector('#stage[data-state="in-call"]')
    page.evaluate("becomes('disconnected')")
    page.clock.run_for(9_000)
    assert told(page).startswith("The connection was lost")


def test_being_offline_is_told(rig: Rig) -> None:
    page = rig.call()
    page.evaluate("dispatchEvent(new Event('offline'))")
    expect(page.locator("#notices")).to_contain_text("You are offline")
    page.evaluate("dispatchEvent(new Event('online'))")
    expect(page.locator("#notices")).to_be_empty()


def test_a_microphone_the_system_silences_is_told(rig: Rig) -> None:
    rig.page.add_init_script(TRACKS)
    page = rig.call()
    page.evaluate("tracks[0].dispatchEvent(new Event('mute'))")
    expect(page.locator("#notices")).to_contain_text("Your microphone is interrupted")
    page.evaluate("tracks[0].dispatchEvent(new Event('unmute'))")
    expect(page.locator("#notices")).to_be_empty()


def test_a_microphone_that_is_unplugged_is_replaced_or_missed(rig: Rig) -> None:
    rig.page.add_init_script(TRACKS)
    page = rig.call()
    page.evaluate("tracks[0].dispatchEvent(new Event('ended'))")
    expect(page.locator("#notices")).to_contain_text("Another microphone is used now")
    page.evaluate(f"() => {{ {refuse_microphone('NotFoundError')} }}")
    page.evaluate("tracks[1].dispatchEvent(new Event('ended'))")
    expect(page.locator("#notices")).to_contain_text("The microphone was disconnected")
    assert page.get_attribute("#stage", "data-state") == "in-call"  # one can still listen


def test_a_microphone_without_any_sound_is_told(rig: Rig) -> None:
    rig.page.add_init_script("""
        navigator.mediaDevices.getUserMedia = async () => new AudioContext().createMediaStreamDestination().stream;
    """)
    rig.page.clock.install()
    page = rig.open()
    page.click("#call")
    page.wait_for_selector('#stage[data-state="in-call"]')
    page.clock.run_for(9_000)
    expect(page.locator("#notices")).to_contain_text("No sound comes from your microphone")
    page.click("#mute")  # then silence is meant
    expect(page.locator("#notices")).to_be_empty()


def test_sound_that_the_browser_keeps_off_is_told_until_it_plays(rig: Rig) -> None:
    rig.page.add_init_script("""
        window.blocked = true;
        const play = HTMLMediaElement.prototype.play;
        HTMLMediaElement.prototype.play = function () {
          return blocked ? Promise.reject(new DOMException("no", "NotAllowedError")) : play.call(this);
        };
    """)
    page = rig.call()
    expect(page.locator("#notices")).to_contain_text("The browser keeps the sound off")
    page.evaluate("blocked = false")
    page.locator("#agent-name").click()
    expect(page.locator("#notices")).to_be_empty()
