"""The Realtime WebSocket under peers that do not read, leave, or meet a defect, in virtual time."""

from __future__ import annotations

import asyncio
import base64
import gc
from typing import Any

import pytest
import structlog

from gateway.state import Gateway
from gateway.transports.outbox import CONGESTED_BYTES, SEND_S, UNANSWERED_BYTES
from streaming.notices import CommandFailed
from tests.gateway.transports.fake_peer import ANNA, LONG, Peer, causes, finish, gateway_with, message, replying
from tests.loop_turns import others
from tests.virtual_time import virtual


def leg_of(gateway: Gateway) -> Any:
    record = next(iter(gateway.switchboard.calls()))
    call: Any = gateway.switchboard.find(record.id)
    return call._leg


@virtual
async def test_a_peer_that_stops_reading_is_hung_up_and_costs_nothing_meanwhile() -> None:
    async with gateway_with(replying(LONG + " " + LONG)) as (app, gateway):
        peer = Peer(app)
        peer.send("response.create")
        await peer.expect("response.output_audio.delta", 100)
        leg = leg_of(gateway)
        stopped = asyncio.get_running_loop().time()
        peer.reading.clear()
        await peer.hush(int(SEND_S - 1) * 1000)
        assert leg.congested
        assert leg.outbox.size < CONGESTED_BYTES + 20_000
        await peer.ended()
        assert asyncio.get_running_loop().time() - stopped <= SEND_S + 5
        assert causes(gateway) == ["peer_not_reading"]
        assert (leg.outbox.size, len(leg.outbox.frames)) == (0, 0)


@virtual
async def test_a_slow_peer_gets_it_all_in_order_and_late() -> None:
    """One event every 100 ms, where audio alone makes 50 a second."""
    async with gateway_with(replying(LONG + " " + LONG + " " + LONG)) as (app, gateway):
        peer = Peer(app)
        await peer.expect("session.created")
        peer.read_delay_s = 0.1
        peer.send("response.create")
        leg = leg_of(gateway)
        deepest = 0
        while not peer.of("response.done"):
            await asyncio.sleep(0.05)
            deepest = max(deepest, leg.outbox.size)
        assert CONGESTED_BYTES < deepest < CONGESTED_BYTES + 20_000
        assert len(peer.audio()) == 3 * 16 * 250 * 48
        await finish(peer)


@virtual
async def test_a_peer_that_asks_and_never_reads_costs_no_more_than_the_bound() -> None:
    async with gateway_with() as (app, gateway):
        peer = Peer(app)
        peer.send("conversation.item.create", item=message("x" * 60_000, "big"))
        await peer.expect("conversation.item.done")
        leg = leg_of(gateway)
        peer.reading.clear()
        for _ in range(500):
            peer.send("conversation.item.retrieve", item_id="big")
            peer.send_bytes(b"x" * 1_000)
        begun = asyncio.get_running_loop().time()
        while not causes(gateway):
            assert leg.outbox.size < UNANSWERED_BYTES + 100_000
            await asyncio.sleep(0.01)
        assert causes(gateway) == ["peer_not_reading"]
        await peer.ended()
        assert asyncio.get_running_loop().time() - begun == pytest.approx(SEND_S, abs=0.02)
        assert (leg.outbox.size, len(leg.outbox.frames)) == (0, 0)


@virtual
async def test_a_peer_that_asks_for_much_at_once_and_reads_gets_it_all() -> None:
    async with gateway_with() as (app, _):
        peer = Peer(app)
        peer.send("conversation.item.create", item=message("x" * 60_000, "big"))
        await peer.expect("conversation.item.done")
        for _ in range(300):
            peer.send("conversation.item.retrieve", item_id="big")
        peer.read_delay_s = 0.01
        await peer.expect("conversation.item.retrieved", 300)
        peer.read_delay_s = 0.0
        await finish(peer)


@virtual
async def test_a_flood_of_small_events_leaves_others_their_turn() -> None:
    async with gateway_with() as (app, _):
        peer = Peer(app)
        await peer.expect("session.created")
        async with others() as other:
            for number in range(1_000):
                peer.send("conversation.item.retrieve", item_id="nothing", event_id=str(number))
            await peer.expect("error", 1_000)
        assert other.turns >= 1_000
        await finish(peer)


@virtual
async def test_an_outbox_that_overflows_whatever_the_reason_is_let_go() -> None:
    async with gateway_with() as (app, gateway):
        peer = Peer(app)
        await peer.expect("session.created")
        leg = leg_of(gateway)
        peer.reading.clear()
        begun = asyncio.get_running_loop().time()
        for number in range(100):
            leg.notify(CommandFailed("scripted", "x" * 60_000, None, str(number)))
        assert causes(gateway) == []
        await peer.ended()
        assert asyncio.get_running_loop().time() == begun, "nobody waits for it"
        assert causes(gateway) == ["peer_not_reading"]
        assert (leg.outbox.size, len(leg.outbox.frames)) == (0, 0)


async def at_rest(peer: Peer) -> None:
    await peer.expect("session.created")


async def in_speech(peer: Peer) -> None:
    await peer.speak(400)


async def in_thought(peer: Peer) -> None:
    peer.send("conversation.item.create", item=message("think"))
    peer.send("response.create")
    await peer.expect("response.created")


async def in_reply(peer: Peer) -> None:
    await in_thought(peer)
    await peer.expect("response.output_audio.delta", 3)


async def in_a_long_append(peer: Peer) -> None:
    await peer.update(audio={"input": {"turn_detection": None}})
    peer.send("input_audio_buffer.append", audio=base64.b64encode(bytes(600_000)).decode())
    for _ in range(50):
        await asyncio.sleep(0)


async def in_congestion(peer: Peer) -> None:
    await in_reply(peer)
    peer.reading.clear()
    await asyncio.sleep(6)


async def in_the_lead(peer: Peer) -> None:
    """At once: nothing was even sent."""


REACH = [at_rest, in_speech, in_thought, in_reply, in_a_long_append, in_congestion, in_the_lead]


@pytest.mark.parametrize("query", ["", "agent=anna"])
@pytest.mark.parametrize("leave", ["vanish", "hang_up"])
@pytest.mark.parametrize("reach", REACH)
@virtual
async def test_a_peer_that_leaves_leaves_nothing(reach: Any, leave: str, query: str) -> None:
    async with gateway_with(replying(LONG, first_chunk_delay_s=0.1), ANNA) as (app, gateway):
        for _ in range(10):
            peer = Peer(app, query, onset_cancels=not query)
            await reach(peer)
            if leave == "vanish":
                peer.vanish()
            else:
                peer.reading.set()
                peer.hang_up()
            await peer.ended()
            assert gateway.switchboard.live == 0
        expected = "connection_lost" if leave == "vanish" or reach is in_the_lead else "caller_hung_up"
        assert causes(gateway) == [expected] * 10
        del peer
        gc.collect()
        assert not [thing for thing in gc.get_objects() if type(thing).__name__ in ("Call", "WebSocketLeg")]


@virtual
async def test_a_defect_in_one_call_closes_it_with_a_code_and_no_other() -> None:
    async with gateway_with() as (app, gateway):
        peer, other = Peer(app), Peer(app)
        await peer.expect("session.created")
        await other.expect("session.created")
        record = next(record for record in gateway.switchboard.calls() if record.id == session_id(peer))
        call: Any = gateway.switchboard.find(record.id)

        def raises(*_: Any) -> None:
            raise ZeroDivisionError("a defect")

        call._session.handle = raises
        call._session.recover = raises
        peer.send("response.create")
        with structlog.testing.capture_logs(), pytest.raises(BaseExceptionGroup):
            await peer.ended()
        assert peer.closed == (1011, "internal_error")
        assert causes(gateway) == ["internal_error"]
        other.send("response.create")
        await other.expect("response.done")
        await finish(other)


def session_id(peer: Peer) -> str:
    return str(peer.of("session.created")[0]["session"]["id"])


@virtual
async def test_a_server_that_is_stopped_hard_says_so_in_the_record() -> None:
    async with gateway_with(replying(LONG)) as (app, gateway):
        peer = Peer(app)
        await in_reply(peer)
        peer.task.cancel()
        await asyncio.gather(peer.task, return_exceptions=True)
        assert causes(gateway) == ["server_stop"]
        assert peer.closed == (1000, "server_stop")
