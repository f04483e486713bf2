"""A browser's call from its answer to its end, with every cause, in virtual time."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from engines.llm.scripted import ScriptedLlm
from engines.tts.scripted import ScriptedTts
from gateway.settings import Settings
from gateway.transports.outbox import SEND_S
from gateway.transports.webrtc.call_task import CHANNEL_S, MAX_INBOX_MESSAGES, SETUP_S
from gateway.transports.webrtc.peer import LostCause, MediaPolicy
from streaming.notices import CommandFailed
from tests.gateway.call_rig import Engines
from tests.gateway.transports.webrtc.browser_rig import ANNA, CALLS, browser_rig, hang_up
from tests.loop_turns import others
from tests.virtual_time import virtual


@virtual
async def test_a_turn_by_media_and_channel() -> None:
    engines = Engines(llm=ScriptedLlm(lambda messages: "Nine to five."), tts=ScriptedTts(200))
    async with browser_rig(engines) as rig:
        browser = await rig.dial("?agent=anna")
        browser.come()
        await browser.expect("output_audio_buffer.stopped")
        assert browser.heard_ms == 2 * 200
        await browser.speak(800)
        await browser.hush(1_500)
        await browser.expect("output_audio_buffer.stopped", 2)
        assert browser.heard_ms == 5 * 200
        assert not browser.of("response.output_audio.delta")
        browser.say("output_audio_buffer.clear")
        await asyncio.sleep(1)
        browser.checker.finish()
        await hang_up(rig, browser)
        assert rig.causes == ["caller_hung_up"]
        (record,) = rig.gateway.recent
        assert (record.transport, record.agent) == ("webrtc", "anna")
        assert record.id.startswith("rtc_")


@virtual
async def test_frames_leave_on_the_clock_and_a_cut_in_stops_them() -> None:
    engines = Engines(llm=ScriptedLlm(lambda messages: "One two three four five six seven eight nine."))
    async with browser_rig(engines) as rig:
        browser = await rig.dial("?agent=anna")
        browser.come()
        await browser.expect("output_audio_buffer.stopped")
        times = [at for at, _ in browser.frames]
        # Two frames ahead, then one each 20 ms.
        assert times[1] - times[0] == pytest.approx(0, abs=1e-6)
        assert [b - a for a, b in itertools.pairwise(times[1:])] == pytest.approx([0.02] * (len(times) - 2))
        browser.say("response.create")
        await browser.expect("output_audio_buffer.started", 2)
        await browser.speak(900)
        await browser.hush(300)
        assert browser.clears
        stopped = browser.frames[-1][0]
        assert browser.now() - stopped > 0.3
        await hang_up(rig, browser)


@virtual
async def test_session_created_is_the_first_thing_the_channel_carries() -> None:
    async with browser_rig() as rig:
        browser = await rig.dial("?model=gpt-realtime")
        browser.connect()
        await asyncio.sleep(0.5)
        assert browser.events == []
        browser.open_channel()
        created = await browser.expect("session.created")
        assert browser.types == ["session.created"]
        assert created["session"]["model"] == "gpt-realtime"
        assert created["session"]["id"].startswith("rtc_")
        await hang_up(rig, browser)


@virtual
async def test_the_greeting_waits_for_the_channel_but_not_for_long() -> None:
    async with browser_rig() as rig:
        browser = await rig.dial("?agent=anna")
        browser.connect()
        begun = browser.now()
        await asyncio.sleep(CHANNEL_S - 0.1)
        assert not browser.frames
        await asyncio.sleep(1)
        assert browser.frames[0][0] - begun == pytest.approx(CHANNEL_S, abs=0.02)
        await asyncio.sleep(5)
        assert browser.events == []
        browser.open_channel()  # late, and told where things are; what went before is not kept
        await browser.expect("session.created")
        assert browser.types == ["session.created"]
        await hang_up(rig, browser)


@virtual
async def test_a_browser_that_never_connects_gives_its_place_back() -> None:
    async with browser_rig(settings=Settings(preset="null", max_calls=1, agents={"anna": ANNA})) as rig:
        browser = await rig.dial("?agent=anna")
        begun = browser.now()
        assert (await rig.offer()).status_code == 503
        await browser.gone()
        assert browser.now() - begun == pytest.approx(SETUP_S)
        assert rig.causes == ["media_not_connected"]
        other = await rig.dial()
        other.lose("never_connected")
        await other.gone()
        assert rig.causes == ["media_not_connected"] * 2
        assert not browser.frames


@pytest.mark.parametrize(
    ("lost", "cause"),
    [
        ("peer_closed", "caller_hung_up"),
        ("media_timeout", "media_timeout"),
        ("connection_lost", "connection_lost"),
        ("protocol_error", "protocol_error"),
    ],
)
@virtual
async def test_a_peer_that_is_lost_ends_its_call_at_once(lost: LostCause, cause: str) -> None:
    async with browser_rig() as rig:
        browser = await rig.dial("?agent=anna")
        browser.come()
        await browser.expect("output_audio_buffer.started")
        begun = browser.now()
        browser.lose(lost)
        await browser.gone()
        assert browser.now() == begun
        assert rig.causes == [cause]


@virtual
async def test_hanging_up_over_http_closes_the_peer_and_says_why_to_who_asked_for_it() -> None:
    async with browser_rig() as rig:
        value = await rig.secret(agent="anna", session={"type": "realtime", "include": ["offhook"]})
        told = await rig.dial(authorization=f"Bearer {value}")
        plain = await rig.dial("?agent=anna")
        for browser in (told, plain):
            browser.come()
            await browser.expect("response.done")
        for record in list(rig.gateway.switchboard.calls()):
            assert (await rig.client.post(f"{CALLS}/{record.id}/hangup")).status_code == 200
        for browser in (told, plain):
            await browser.gone()
        assert told.events[-1]["type"] == "offhook.call_ended"
        assert told.events[-1]["cause"] == "caller_hung_up"
        assert "offhook.call_ended" not in plain.types
        assert rig.causes == ["caller_hung_up"] * 2


@virtual
async def test_the_farewell_is_heard_to_its_end() -> None:
    async with browser_rig() as rig:
        browser = await rig.dial("?agent=anna")
        browser.come()
        await browser.expect("output_audio_buffer.stopped")
        before = browser.heard_ms
        await rig.gateway.switchboard.drain(0.0)
        await browser.gone()
        assert rig.causes == ["server_drain"]
        assert browser.heard_ms > before + 500
        assert browser.closed_at is not None
        assert browser.closed_at - browser.frames[-1][0] > 0.2, "what was sent last has to cross the network"
        assert (await rig.offer()).json()["error"]["code"] == "draining"


@virtual
async def test_a_call_that_is_up_when_the_gateway_closes_is_ended() -> None:
    async with browser_rig() as rig:
        browser = await rig.dial("?agent=anna")
        browser.come()
        await browser.expect("session.created")
        await rig.gateway.desk.close()
        assert browser.closed_at is not None
        assert rig.causes == ["server_stop"]


@virtual
async def test_a_channel_that_is_not_read_ends_the_call() -> None:
    async with browser_rig() as rig:
        browser = await rig.dial("?agent=anna")
        browser.come()
        await browser.expect("session.created")
        browser.reading = False
        leg = browser.listener.leg
        for number in range(20):
            leg.notify(CommandFailed("scripted", "x" * 60_000, None, str(number)))
        begun = browser.now()
        await browser.gone()
        assert browser.now() - begun == pytest.approx(SEND_S)
        assert rig.causes == ["peer_not_reading"]
        assert browser.frames, "events that wait do not hold up the voice"


@virtual
async def test_a_channel_that_drains_goes_on() -> None:
    async with browser_rig() as rig:
        browser = await rig.dial()
        browser.come()
        await browser.expect("session.created")
        browser.reading = False
        for number in range(20):
            browser.listener.leg.notify(CommandFailed("scripted", "x" * 60_000, None, str(number)))
        await asyncio.sleep(SEND_S - 1)
        assert len(browser.of("error")) < 10
        browser.reading, browser.buffered_bytes = True, 0
        browser.listener.writable()
        await browser.expect("error", 20)
        assert [event["error"]["event_id"] for event in browser.of("error")] == [str(n) for n in range(20)]
        await hang_up(rig, browser)


@virtual
async def test_an_event_too_long_for_the_peer_is_left_out_and_counted() -> None:
    async with browser_rig() as rig:
        browser = await rig.dial()
        browser.come()
        await browser.expect("session.created")
        browser.takes_chars = 10_000
        for size in (20_000, 10):
            browser.listener.leg.notify(CommandFailed("scripted", "x" * size, None, str(size)))
        assert (await browser.expect("error"))["error"]["event_id"] == "10"
        assert rig.counted("event_too_long") == 1
        await hang_up(rig, browser)


@virtual
async def test_who_floods_the_channel_is_hung_up() -> None:
    async with browser_rig() as rig:
        for text, times in (("{}", MAX_INBOX_MESSAGES + 1), ("x" * 1_000_000, 5)):
            browser = await rig.dial()
            browser.come()
            await browser.expect("session.created")
            for _ in range(times):
                browser.listener.message(text)
            await browser.gone()
        assert rig.causes == ["peer_flooding"] * 2


@virtual
async def test_others_have_their_turn_between_the_keys_of_one_event() -> None:
    """Each ``#`` is an entry and a turn of its own: 32 of them at once would hold up every other call."""
    async with browser_rig() as rig:
        browser = await rig.dial()
        browser.come()
        await browser.expect("session.created")
        async with others() as other:
            browser.say("offhook.dtmf", digits="#" * 32)
            await browser.expect("input_audio_buffer.dtmf_event_received", 32)
        assert other.turns >= 31
        await hang_up(rig, browser)


@virtual
async def test_what_a_client_gets_wrong_is_an_error_and_no_end() -> None:
    async with browser_rig() as rig:
        browser = await rig.dial()
        browser.come()
        await browser.expect("session.created")
        browser.listener.message("{" * 100_000)
        browser.listener.binary()
        browser.say("input_audio_buffer.append", audio="AAAA", event_id="mine")
        await browser.expect("error", 3)
        assert [event["error"]["code"] for event in browser.of("error")] == [
            "invalid_json",
            "unexpected_binary_frame",
            "not_supported_on_this_transport",
        ]
        await hang_up(rig, browser)


@virtual
async def test_silence_of_the_media_is_counted() -> None:
    async with browser_rig() as rig:
        browser = await rig.dial()
        browser.come()
        browser.listener.suspect(True)
        browser.listener.suspect(False)
        assert rig.counted("media_suspect") == 1
        await hang_up(rig, browser)


@virtual
async def test_nothing_is_told_to_a_call_that_is_not_there() -> None:
    async with browser_rig() as rig:
        browser = await rig.dial()
        browser.come()
        await browser.expect("session.created")
        await hang_up(rig, browser)
        listener = browser.listener
        for tell in (listener.connected, listener.channel_open, listener.binary, listener.writable):
            tell()
        listener.message("{}")
        listener.lost("media_timeout")
        await browser.speak(40)
        assert rig.causes == ["caller_hung_up"]


def test_how_long_a_browser_may_be_silent() -> None:
    policy = MediaPolicy()
    assert (policy.suspect_after_s, policy.lost_after_s, SETUP_S) == (3.0, 10.0, 15.0)
