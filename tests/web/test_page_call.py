"""A whole call from the page: what it asks for, what it shows, and that nothing of it is left."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.web.page_rig import Rig, needs_chromium
from tests.web.server_events import (
    answer_began,
    answer_ended,
    answered,
    call_ended,
    heard,
    heard_partly,
    said,
    speech_started,
    turn,
)

pytestmark = [pytest.mark.e2e, needs_chromium]

WATCH_WHAT_IS_OPENED = """
window.opened = { tracks: [], contexts: [], peers: [], timers: new Set(), frames: 0 };
const { tracks, contexts, peers, timers } = window.opened;
const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
navigator.mediaDevices.getUserMedia = async (wanted) => {
  window.wanted = wanted;
  const stream = await ask(wanted);
  tracks.push(...stream.getTracks());
  return stream;
};
for (const [name, list] of [["AudioContext", contexts], ["RTCPeerConnection", peers]]) {
  window[name] = class extends window[name] { constructor(...given) { super(...given); list.push(this); } };
}
const [start, stop] = [window.setInterval, window.clearInterval];
window.setInterval = (...given) => { const timer = start(...given); timers.add(timer); return timer; };
window.clearInterval = (timer) => { timers.delete(timer); stop(timer); };
const frame = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (then) => frame((at) => { window.opened.frames += 1; then(at); });
"""

LEFT_OPEN = """() => ({
  tracks: opened.tracks.filter((track) => track.readyState === "live").length,
  contexts: opened.contexts.filter((context) => context.state !== "closed").length,
  peers: opened.peers.filter((peer) => peer.connectionState !== "closed").length,
  timers: opened.timers.size,
  voice: document.getElementById("voice").srcObject !== null,
})"""

NOTHING = {"tracks": 0, "contexts": 0, "peers": 0, "timers": 0, "voice": False}


def nothing_is_left(page: Page) -> None:
    """What was opened is closed, within a moment: an audio context takes one."""
    page.wait_for_function(f"(nothing) => JSON.stringify(({LEFT_OPEN})()) === JSON.stringify(nothing)", arg=NOTHING)


def state(page: Page) -> str | None:
    return page.get_attribute("#stage", "data-state")


def test_one_button_makes_a_call_and_one_ends_it(rig: Rig) -> None:
    page = rig.call()
    assert rig.gateway.paths() == [
        "GET /v1/agents",
        "POST /v1/realtime/client_secrets",
        "POST /v1/realtime/calls",
    ]
    secret = rig.gateway.of("/v1/realtime/client_secrets")
    assert secret.json == {"agent": "bakery", "session": {"type": "realtime", "include": ["offhook"]}}
    assert "authorization" not in secret.headers  # no key was asked for
    call = rig.gateway.of("/v1/realtime/calls")
    assert call.headers["authorization"] == "Bearer ek_one"
    assert call.headers["content-type"] == "application/sdp"
    assert "m=audio" in (call.body or "")
    assert "m=application" in (call.body or "")
    assert "a=candidate:" in (call.body or "")  # the offer is whole: there is no trickling
    page.get_by_role("button", name="Hang up").click()
    assert state(page) == "ended"
    expect(page.locator("#status")).to_have_text("Call ended. You hung up.")
    expect(page.get_by_role("button", name="Call again")).to_be_focused()
    hang_up = rig.gateway.wait_for("/v1/realtime/calls/rtc_one/hangup")
    assert (hang_up.method, hang_up.json) == ("POST", {"client_secret": "ek_one"})


def test_nothing_is_left_running_after_a_call_and_the_next_one_works(rig: Rig) -> None:
    rig.page.add_init_script(WATCH_WHAT_IS_OPENED)
    page = rig.call()
    page.wait_for_function("() => opened.frames > 3")
    assert page.evaluate(LEFT_OPEN) == {"tracks": 1, "contexts": 1, "peers": 1, "timers": 2, "voice": True}
    page.click("#hang-up")
    nothing_is_left(page)
    frames = page.evaluate("opened.frames")
    page.wait_for_timeout(150)
    assert page.evaluate("opened.frames") == frames
    page.click("#call")
    page.wait_for_selector('#stage[data-state="in-call"]')
    page.click("#hang-up")
    nothing_is_left(page)


def test_a_call_can_be_cancelled_before_the_microphone_is_allowed(rig: Rig) -> None:
    rig.page.add_init_script(WATCH_WHAT_IS_OPENED)
    rig.page.add_init_script("""
        const soon = navigator.mediaDevices.getUserMedia;
        navigator.mediaDevices.getUserMedia = async (wanted) => {
          await new Promise((allow) => { window.allow = allow; });
          return soon(wanted);
        };
    """)
    page = rig.open()
    page.click("#call")
    expect(page.locator("#status")).to_have_text("Asking for the microphone…")
    page.get_by_role("button", name="Cancel").click()
    assert state(page) == "ended"
    page.evaluate("allow()")
    page.wait_for_function("() => opened.tracks.length === 1")
    nothing_is_left(page)
    assert rig.gateway.paths() == ["GET /v1/agents"]


def test_the_conversation_shows_what_was_heard_and_what_was_cut(rig: Rig) -> None:
    page = rig.call()
    turns = page.locator("#turns > .turn")
    rig.gateway.send(*answered("r0", "i0", "Hello, this is Blue Door Bakery."))
    rig.gateway.send(speech_started("u1"), heard_partly("u1", "When are"))
    expect(turns.nth(1)).to_contain_text("When are")
    rig.gateway.send(*heard("u1", "When are you open?"))
    rig.gateway.send(*answer_began("r1", "i1", "We are open from eight. On Sunday we rest."))
    expect(page.locator("#phase")).to_have_text("Speaking")
    said, heard_of_it = "We are open from eight. On Sunday we rest.", "We are open from eight."
    rig.gateway.send(speech_started("u2"), *answer_ended("r1", "i1", said, heard=heard_of_it))
    expect(turns).to_have_count(4)
    expect(turns.locator(".who")).to_have_text(["Bakery", "You", "Bakery", "You"])
    expect(turns.nth(2).locator("s")).to_have_text("On Sunday we rest.")
    expect(turns.nth(2)).to_contain_text("You cut in here")
    expect(page.locator("#phase")).to_have_text("Hearing you")
    rig.gateway.send({"type": "input_audio_buffer.cleared"})  # it was a cough
    expect(turns).to_have_count(3)
    expect(page.locator("#spoken > p").last).to_have_text("Bakery: We are open from eight. (you cut in)")


def test_a_cut_after_the_response_was_done_is_shown_too(rig: Rig) -> None:
    page = rig.call()
    rig.gateway.send(*answer_began("r1", "i1", "One two three four."), *answer_ended("r1", "i1", "One two three four."))
    truncated = {"type": "conversation.item.truncated", "item_id": "i1", "audio_end_ms": 400, "transcript": "One two"}
    rig.gateway.send(speech_started("u1"), truncated)
    expect(page.locator("#turns s")).to_have_text("three four.")


def test_each_turn_has_its_waterfall(rig: Rig) -> None:
    page = rig.call()
    rig.gateway.send(turn("r0", utterance=0))  # a greeting answers nobody
    rig.gateway.send(turn("r1"), turn("r2", 2, first_audio_ms=900.0, first_sent_ms=940.0, cut_to_silence_ms=64.0))
    rows = page.locator("#waterfall > li")
    expect(rows).to_have_count(2)
    expect(page.locator("#latency-summary")).to_have_text("median 690 ms")
    assert rows.first.inner_text().split("\n")[0] == "Turn 2"
    expect(rows.first.locator(".note")).to_contain_text("silent 64 ms after you cut in")
    expect(rows.first.locator(".stages")).to_be_visible()
    expect(rows.last.locator(".stages")).to_be_hidden()
    rows.last.locator("summary").press("Enter")
    expect(rows.last.locator(".stages")).to_be_visible()
    rig.gateway.send(turn("r3", 3))
    expect(rows).to_have_count(3)
    expect(rows.last.locator(".stages")).to_be_visible()  # as the reader left it
    expect(rows.last.locator("summary")).to_be_focused()


@pytest.mark.parametrize(
    ("cause", "says"),
    [
        ("server_drain", "The gateway is restarting."),
        ("max_duration", "It reached the longest time a call may last."),
        ("caller_hung_up", "The gateway ended the call."),
        (None, "The gateway ended the call."),
        ("internal_error", "Something went wrong in the gateway."),
    ],
)
def test_an_end_by_the_gateway_has_its_cause(rig: Rig, cause: str | None, says: str) -> None:
    page = rig.call()
    if cause is not None:
        rig.gateway.send(call_ended(cause))
    rig.gateway.hang_up()
    page.wait_for_selector('#stage[data-state="ended"]')
    expect(page.locator("#phone")).to_contain_text(says)
    assert not any(path.endswith("/hangup") for path in rig.gateway.paths())


def test_leaving_the_page_hangs_up(rig: Rig) -> None:
    # What a page sends as it goes cannot be caught on its way: note what it hands to the browser.
    rig.page.add_init_script("""
        navigator.sendBeacon = (url, body) => {
          sessionStorage.setItem("beacon", `${url} ${body.type} ${body.size}`);
          return true;
        };
    """)
    page = rig.call()
    page.goto("https://offhook.test/far")
    size = len('{"client_secret":"ek_one"}')
    beacon = page.evaluate("sessionStorage.getItem('beacon')")
    assert beacon == f"/v1/realtime/calls/rtc_one/hangup application/json {size}"


def test_the_agent_is_chosen_and_remembered(rig: Rig) -> None:
    page = rig.open()
    page.get_by_label("Who to call").select_option("night-desk")
    expect(page.get_by_role("heading", level=1)).to_have_text("Night desk")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Night desk")
    page = rig.open("?agent=bakery")
    expect(page.get_by_role("heading", level=1)).to_have_text("Bakery")


def test_where_there_is_one_agent_there_is_nothing_to_choose(rig: Rig) -> None:
    rig.gateway.agents = [{"name": "default", "greeting": "Hello.", "language": "en"}]
    page = rig.open()
    expect(page.get_by_role("heading", level=1)).to_have_text("Default agent")
    expect(page.locator("#greeting")).to_have_text("Hello.")
    expect(page.get_by_label("Who to call")).to_be_hidden()


@pytest.mark.parametrize(("query", "processed"), [("", True), ("?raw=1", False)])
def test_the_browser_cleans_the_sound_unless_told_not_to(rig: Rig, query: str, processed: bool) -> None:
    rig.page.add_init_script(WATCH_WHAT_IS_OPENED)
    page = rig.open(query)
    page.click("#call")
    page.wait_for_selector('#stage[data-state="in-call"]')
    wanted = page.evaluate("wanted.audio")
    assert wanted == {"echoCancellation": processed, "noiseSuppression": processed, "autoGainControl": processed}


def test_a_long_conversation_keeps_its_end_in_sight(rig: Rig) -> None:
    page = rig.call()
    for number in range(12):
        rig.gateway.send(*said(f"u{number}", f"question {number}"), *answered(f"r{number}", f"i{number}", "Yes. " * 12))
    expect(page.locator("#turns > .turn")).to_have_count(24)
    expect(page.locator("#turns > .turn").last).to_be_in_viewport()
    page.locator("#scroller").evaluate("(scroller) => scroller.scrollTo(0, 0)")
    page.wait_for_timeout(50)
    rig.gateway.send(*said("u99", "another one"))
    expect(page.locator("#turns > .turn")).to_have_count(25)
    expect(page.locator("#turns > .turn").first).to_be_in_viewport()  # who reads on is left in peace
