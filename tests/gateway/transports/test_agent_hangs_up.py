"""An agent that ends its call by itself, on every way in that has no line: the goodbye first, and only if it stands."""

from __future__ import annotations

import asyncio
import base64

import pytest

from engines.llm.scripted import ScriptedLlm
from engines.stt.scripted import ScriptedStt
from engines.tts.scripted import ScriptedTts
from gateway.phone_settings import PhoneSettings
from gateway.settings import AgentSettings, Settings
from gateway.transports.phone.line import Ability
from streaming.reply import HANG_UP_S
from tests.e2e.wire import dialled
from tests.gateway.call_rig import Engines
from tests.gateway.transports.fake_peer import Peer, causes, gateway_with
from tests.gateway.transports.phone.fake_line import FakeLine, phoned
from tests.gateway.transports.webrtc.browser_rig import browser_rig
from tests.serving import served
from tests.virtual_time import virtual

BEN = AgentSettings(
    instructions="Be brief.",
    apology="",
    silence_ms=300,
    tools=("end_call", "transfer", "hold"),
    transfer_targets={"sales": "+15550009"},
)
SETTINGS = Settings(preset="null", max_calls=4, agents={"ben": BEN})
GOODBYE_MS = 6 * 250
"""``You said: that is all goodbye.``"""


def leaving(*lines: str) -> Engines:
    """The caller says goodbye, which the scripted model answers by hanging up, and then perhaps something else."""
    stt = ScriptedStt(("that is all goodbye", *lines), partial_every_ms=200)
    return Engines(stt=stt, llm=ScriptedLlm(), tts=ScriptedTts(250))


@virtual
async def test_a_websocket_call_ends_once_the_goodbye_was_heard() -> None:
    engines = leaving()
    async with gateway_with(engines, SETTINGS) as (app, gateway):
        peer = Peer(app, "agent=ben", onset_cancels=False)
        await peer.update(include=["offhook"])
        await peer.speak(600)
        await peer.hush(1_500)
        ended = await peer.expect("offhook.call_ended")
        await peer.ended()
        assert ended["cause"] == "agent_hung_up"
        assert len(peer.audio()) == GOODBYE_MS * 48, "all of it was sent"
        deltas = [
            at for event, at in zip(peer.events, peer.times, strict=True) if "output_audio.delta" in event["type"]
        ]
        ended_at = peer.times[peer.types.index("offhook.call_ended")]
        assert ended_at >= deltas[0] + GOODBYE_MS / 1000 + HANG_UP_S - 0.001, "and had the time to be heard"
        assert peer.closed == (1000, "agent_hung_up")
        assert causes(gateway) == ["agent_hung_up"]
        assert [tool.name for tool in engines.llm.requests[0].tools] == ["end_call"], "there is no line to transfer"


@virtual
async def test_a_caller_with_one_more_question_keeps_a_websocket_call() -> None:
    engines = leaving("one more question please")
    async with gateway_with(engines, SETTINGS) as (app, gateway):
        peer = Peer(app, "agent=ben", onset_cancels=False)
        await peer.speak(600)
        await peer.hush(1_800)
        assert peer.of("response.output_audio.delta")
        await peer.speak(800)
        await peer.hush(20_000)
        assert peer.closed is None
        assert [event["response"]["status"] for event in peer.of("response.done")] == ["cancelled", "completed"]
        (result,) = (message.content for message in engines.llm.requests[-1].messages if message.role == "tool")
        assert "interrupted" in result
        peer.hang_up()
        await peer.ended()
        assert causes(gateway) == ["caller_hung_up"]


@pytest.mark.parametrize("interrupted", [False, True])
@virtual
async def test_a_browser_s_call(interrupted: bool) -> None:
    async with browser_rig(leaving("one more question please"), SETTINGS) as rig:
        browser = await rig.dial("?agent=ben")
        browser.come()
        await browser.speak(600)
        if interrupted:
            await browser.hush(1_500)
            await browser.speak(800)
            await browser.hush(20_000)
            assert browser.closed_at is None
            browser.lose("peer_closed")
        else:
            await browser.hush(6_000)
            last = max(at for at, pcm in browser.frames if pcm.any())
            assert browser.heard_ms == GOODBYE_MS
            assert browser.closed_at is not None
            assert browser.closed_at >= last + HANG_UP_S
            assert rig.causes == ["agent_hung_up"]
        await asyncio.sleep(1)


@virtual
async def test_a_caller_with_one_more_question_keeps_a_phone_call() -> None:
    engines = leaving("one more question please")
    settings = SETTINGS.model_copy(update={"phone": PhoneSettings(agent="ben")})
    async with gateway_with(engines, settings) as (_, gateway):
        line = FakeLine(abilities=frozenset(Ability), latency_s=0.1, slow_s=0.3)
        async with phoned(gateway, line) as call:
            await line.speak(600)
            await line.hush(1_800)
            await line.speak(800)
            await line.hush(20_000)
            assert not call.call.finished.is_set()
            assert not line.names("hang_up")
            assert sum(1 for _, pcm in line.heard if pcm.any()) * 20 > GOODBYE_MS, "it is answered"
            (result,) = (message.content for message in engines.llm.requests[-1].messages if message.role == "tool")
            assert "interrupted" in result
            assert [tool.name for tool in engines.llm.requests[0].tools] == ["end_call", "transfer", "hold"]


async def until_closed(url: str) -> tuple[list[str], int, tuple[int | None, str | None]]:
    async with dialled(f"{url}?agent=ben", onset_cancels=False) as wire:
        await wire.expect("session.created")
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "please hang up"}]}
        await wire.send("conversation.item.create", item=item)
        await wire.send("response.create")
        closed = await wire.closed()
        audio = sum(len(base64.b64decode(event["delta"])) for event in wire.of("response.output_audio.delta"))
        return [event["type"] for event in wire.events], audio, closed


async def test_on_a_real_server_the_whole_goodbye_comes_before_the_close() -> None:
    async with served(settings=SETTINGS) as here:
        kinds, audio, closed = await until_closed(here.ws)
        assert closed == (1000, "agent_hung_up")
        assert audio == 5 * 250 * 48, "You said: please hang up."
        assert kinds.index("response.done") > max(at for at, kind in enumerate(kinds) if kind.endswith("audio.delta"))
        assert [record.cause for record in here.gateway.recent] == ["agent_hung_up"]
        (record,) = here.gateway.recent
        assert [entry.text for entry in record.transcript] == ["please hang up", "You said: please hang up."]
