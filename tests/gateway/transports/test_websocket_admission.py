"""How calls come in over the Realtime WebSocket, and how they are refused, in virtual time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import structlog
from pydantic import SecretStr

from gateway.settings import Settings
from gateway.switchboard import _Stage
from gateway.transports.websocket import FIRST_WORD_S
from tests.gateway.call_rig import Engines
from tests.gateway.transports.fake_peer import ANNA, Peer, causes, finish, gateway_with
from tests.virtual_time import virtual


@virtual
async def test_an_agent_nobody_knows_is_told_before_the_upgrade() -> None:
    async with gateway_with() as (app, _):
        peer = Peer(app, "agent=nobody")
        await peer.ended()
        assert (peer.denied, peer.accepted) == (404, None)
        assert json.loads(peer.denial)["error"]["code"] == "unknown_agent"


@virtual
async def test_above_the_cap_the_answer_is_busy_at_once() -> None:
    async with gateway_with(settings=Settings(preset="null", max_calls=3)) as (app, gateway):
        peers = [Peer(app) for _ in range(3)]
        for peer in peers:
            await peer.expect("session.created")
        begun = asyncio.get_running_loop().time()
        surplus = [Peer(app) for _ in range(20)]
        await asyncio.gather(*(peer.ended() for peer in surplus))
        assert asyncio.get_running_loop().time() == begun
        assert {peer.closed for peer in surplus} == {(1013, "busy")}
        assert not any(peer.events for peer in surplus)
        peers[0].hang_up()
        await peers[0].ended()
        last = Peer(app)
        await last.expect("session.created")
        for peer in (*peers[1:], last):
            await finish(peer)
        assert gateway.switchboard.live == 0


@virtual
async def test_a_peer_that_leaves_before_it_is_refused_or_taken() -> None:
    async with gateway_with(settings=Settings(preset="null", max_calls=1)) as (app, gateway):
        early = Peer(app)
        early.gone = True
        await early.ended()
        assert causes(gateway) == ["connection_lost"]
        taken = Peer(app)
        await taken.expect("session.created")
        surplus = Peer(app)
        surplus.gone = True
        await surplus.ended()
        await finish(taken)


@virtual
async def test_a_browser_offers_its_key_and_gets_the_plain_subprotocol() -> None:
    settings = Settings(preset="null", max_calls=1, key=SecretStr("sesame"))
    async with gateway_with(settings=settings) as (app, _):
        for headers, status in [
            ({}, 401),
            ({"authorization": "Bearer wrong"}, 401),
            ({"sec-websocket-protocol": "realtime, openai-insecure-api-key.wrong"}, 401),
            ({"authorization": "Bearer sesame", "origin": "https://evil.example"}, 403),
        ]:
            refused = Peer(app, headers=headers)
            await refused.ended()
            assert (refused.denied, refused.accepted) == (status, None)
        offered = {"sec-websocket-protocol": "realtime, openai-insecure-api-key.sesame"}
        peer = Peer(app, headers={**offered, "origin": "http://127.0.0.1"})
        await peer.expect("session.created")
        assert peer.accepted is not None
        assert peer.accepted["subprotocol"] == "realtime"
        await finish(peer)
        plain = Peer(app, headers={"authorization": "Bearer sesame"})
        await plain.expect("session.created")
        assert plain.accepted is not None
        assert plain.accepted["subprotocol"] is None
        await finish(plain)


@virtual
async def test_a_client_that_names_no_agent_gets_none_of_our_defaults() -> None:
    async with gateway_with(settings=ANNA) as (app, _):
        plain, anna = Peer(app, "model=gpt-realtime"), Peer(app, "agent=anna", onset_cancels=False)
        session = (await plain.expect("session.created"))["session"]
        assert session["model"] == "gpt-realtime"
        assert session["audio"]["input"]["transcription"] is None
        assert session["audio"]["input"]["turn_detection"]["type"] == "server_vad"
        session = (await anna.expect("session.created"))["session"]
        assert session["instructions"] == "Be brief."
        assert session["audio"]["input"]["turn_detection"]["type"] == "semantic_vad"
        await finish(plain)
        await finish(anna)
        assert plain.types == ["session.created"]
        assert anna.of("response.output_audio_transcript.done")[0]["transcript"] == "Hello there."


@pytest.mark.parametrize("delay_s", [0.0, 0.2])
@virtual
async def test_a_client_may_say_how_it_wants_to_be_greeted(delay_s: float) -> None:
    async with gateway_with(settings=ANNA) as (app, _):
        peer = Peer(app, "agent=anna", onset_cancels=False)
        await peer.expect("session.created")
        await asyncio.sleep(delay_s)
        await peer.update(audio={"output": {"format": {"type": "audio/pcmu"}, "speed": 1.2}})
        await peer.expect("response.done")
        assert peer.errors == []
        assert len(peer.audio()) == 2 * 250 * 8
        await finish(peer)


@virtual
async def test_one_that_says_nothing_is_greeted_all_the_same() -> None:
    async with gateway_with(settings=ANNA) as (app, _):
        peer = Peer(app, "agent=anna", onset_cancels=False)
        await peer.expect("session.created")
        begun = asyncio.get_running_loop().time()
        await peer.expect("response.output_audio.delta")
        assert asyncio.get_running_loop().time() - begun == pytest.approx(FIRST_WORD_S)
        await finish(peer)


@virtual
async def test_an_engine_that_takes_no_call_is_told_before_the_upgrade() -> None:
    engines = Engines()

    def raises(deliver: Any) -> Any:
        raise ZeroDivisionError("an engine that breaks down")

    async with gateway_with(engines) as (app, gateway):
        opens, engines.vad.open = engines.vad.open, raises
        with structlog.testing.capture_logs():
            peer = Peer(app)
            await peer.ended()
        assert (peer.denied, peer.accepted) == (503, None)
        assert json.loads(peer.denial)["error"]["code"] == "engine_failed"
        engines.vad.open = opens
        assert gateway.switchboard.live == 0


@virtual
async def test_a_call_that_an_engine_did_not_take_leaves_its_client_secret_usable() -> None:
    engines = Engines()

    def raises(deliver: Any) -> Any:
        raise ZeroDivisionError("an engine that breaks down")

    async with gateway_with(engines) as (app, _):
        value, _ = app.state.guard.secrets.mint(600)
        bearer = {"authorization": f"Bearer {value}"}
        opens, engines.vad.open = engines.vad.open, raises
        with structlog.testing.capture_logs():
            refused = Peer(app, headers=bearer)
            await refused.ended()
        engines.vad.open = opens
        taken = Peer(app, headers=bearer)
        await taken.expect("session.created")
        again = Peer(app, headers=bearer)
        await again.ended()
        assert (refused.denied, taken.denied, again.denied) == (503, None, 401)
        await finish(taken)


@virtual
async def test_a_call_that_comes_in_as_the_server_says_goodbye_hears_it_in_order() -> None:
    async with gateway_with() as (app, gateway):
        board = gateway.switchboard
        admit = board.admit

        async def late(kind: str = "call", *, unconnected_from: str | None = None) -> Any:
            admission = await admit(kind, unconnected_from=unconnected_from)
            board._stage = _Stage.FAREWELL
            return admission

        board.admit = late  # type: ignore[method-assign]
        peer = Peer(app)
        await peer.ended()
        assert peer.types[0] == "session.created"
        assert peer.of("response.output_audio_transcript.done")[0]["transcript"] == gateway.settings.farewell
        peer.checker.finish()
        assert peer.closed == (1000, "server_drain")
