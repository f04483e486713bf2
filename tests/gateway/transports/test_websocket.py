"""The Realtime WebSocket under a scripted peer, in virtual time: whole calls, and every way a peer can be bad."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
from typing import Any

import numpy as np
import pytest
import structlog
from pydantic import SecretStr

from engines.llm.scripted import ScriptedLlm
from engines.stt.scripted import ScriptedStt
from engines.tts.scripted import ScriptedTts
from gateway.realtime.client_events import MAX_APPEND_BYTES
from gateway.settings import AgentSettings, Settings
from gateway.state import Gateway
from gateway.switchboard import _Stage
from gateway.transports.websocket import BLOCK_MS, CONGESTED_BYTES, FIRST_WORD_S, SEND_S, UNANSWERED_BYTES
from streaming.audio.g711 import decode_alaw, decode_mulaw, encode_alaw, encode_mulaw
from streaming.notices import CommandFailed
from tests.gateway.call_rig import Engines
from tests.gateway.transports.fake_peer import Peer, gateway_with
from tests.virtual_time import virtual

LONG = "One two three four five six seven eight. Nine ten eleven twelve thirteen fourteen fifteen sixteen."
ANNA = Settings(
    preset="null",
    max_calls=4,
    agents={"anna": AgentSettings(instructions="Be brief.", greeting="Hello there.", apology="Sorry.", silence_ms=300)},
)


def replying(text: str, **tts: Any) -> Engines:
    return Engines(llm=ScriptedLlm(lambda messages: text), tts=ScriptedTts(**tts))


def causes(gateway: Gateway) -> list[str | None]:
    return [record.cause for record in gateway.recent]


async def finish(peer: Peer) -> None:
    """Everything half done comes to its end, then the peer leaves."""
    await asyncio.sleep(10)
    peer.checker.finish()
    peer.hang_up()
    await peer.ended()


# --- coming in ------------------------------------------------------------------------------------------------


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
async def test_a_call_that_comes_in_as_the_server_says_goodbye_hears_it_in_order() -> None:
    async with gateway_with() as (app, gateway):
        board = gateway.switchboard
        admit = board.admit

        async def late() -> Any:
            admission = await admit()
            board._stage = _Stage.FAREWELL
            return admission

        board.admit = late  # type: ignore[method-assign]
        peer = Peer(app)
        await peer.ended()
        assert peer.types[0] == "session.created"
        assert peer.of("response.output_audio_transcript.done")[0]["transcript"] == gateway.settings.farewell
        peer.checker.finish()
        assert peer.closed == (1000, "server_drain")


# --- whole calls ----------------------------------------------------------------------------------------------


@virtual
async def test_three_spoken_turns_and_a_barge_in() -> None:
    engines = Engines(stt=ScriptedStt(("one", "two", "stop", "four"), partial_every_ms=200), llm=ScriptedLlm())
    async with gateway_with(engines) as (app, gateway):
        peer = Peer(app)
        await peer.update(audio={"input": {"transcription": {"model": "whisper-1"}}})
        for _ in range(2):
            await peer.speak(600)
            await peer.hush(3_000)
        engines.llm._reply = lambda messages: LONG
        await peer.speak(600)
        await peer.hush(1_500)
        engines.llm._reply = lambda messages: messages[-2].content
        await peer.speak(600)
        await peer.hush(4_000)
        await finish(peer)
        done = [event["response"]["status"] for event in peer.of("response.done")]
        assert done == ["completed", "completed", "cancelled", "completed"]
        said = [event["transcript"] for event in peer.of("conversation.item.input_audio_transcription.completed")]
        assert said == ["one", "two", "stop", "four"]
        heard = engines.llm.requests[-1].messages[-2]
        assert heard.role == "assistant"
        assert heard.content.startswith("One two three")
        assert heard.content.endswith("…")
        assert "sixteen" not in heard.content
        assert causes(gateway) == ["caller_hung_up"]


@virtual
async def test_an_agent_is_interrupted_by_words_and_not_by_a_backchannel() -> None:
    engines = Engines(
        stt=ScriptedStt(("tell me", "mm-hm", "no stop"), partial_every_ms=200), llm=ScriptedLlm(lambda m: LONG)
    )
    async with gateway_with(engines, ANNA) as (app, _):
        peer = Peer(app, "agent=anna", onset_cancels=False)
        await peer.expect("response.done")
        await peer.speak(600)
        await peer.hush(1_500)
        await peer.speak(300)
        await peer.hush(1_500)
        assert len(peer.of("response.done")) == 1
        await peer.speak(800)
        await peer.hush(500)
        await finish(peer)
        status = [event["response"]["status"] for event in peer.of("response.done")]
        assert status[:2] == ["completed", "cancelled"]


@virtual
async def test_push_to_talk() -> None:
    async with gateway_with() as (app, _):
        peer = Peer(app)
        await peer.update(audio={"input": {"turn_detection": None, "transcription": {"model": "whisper-1"}}})
        for number in range(3):
            peer.send("input_audio_buffer.clear")
            await peer.speak(600)
            peer.send("input_audio_buffer.commit")
            peer.send("response.create")
            await peer.expect("response.done", number + 1)
        await finish(peer)
        assert len(peer.of("input_audio_buffer.cleared")) == 3
        assert [event["response"]["status"] for event in peer.of("response.done")] == ["completed"] * 3


@virtual
async def test_text_in_and_out() -> None:
    async with gateway_with() as (app, _):
        peer = Peer(app)
        await peer.update(output_modalities=["text"])
        peer.send("conversation.item.create", item=message("blue cheese"))
        peer.send("response.create")
        await peer.expect("response.done")
        await finish(peer)
        assert peer.of("response.output_text.done")[0]["text"] == "You said: blue cheese."
        assert peer.of("response.output_audio.delta") == []


def message(text: str, item_id: str | None = None) -> dict[str, Any]:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    return item if item_id is None else {**item, "id": item_id}


@virtual
async def test_cancel_truncate_and_clear() -> None:
    async with gateway_with(replying(LONG)) as (app, gateway):
        peer = Peer(app)
        peer.send("response.cancel", event_id="nothing")
        peer.send("response.create")
        await peer.expect("response.output_audio.delta", 50)
        item_id = peer.of("response.output_audio.delta")[0]["item_id"]
        peer.send("response.create", event_id="second")
        peer.send("response.cancel")
        await peer.expect("response.done")
        deltas = len(peer.of("response.output_audio.delta"))
        await asyncio.sleep(1)
        assert len(peer.of("response.output_audio.delta")) == deltas
        peer.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=760)
        peer.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=60_000, event_id="long")
        peer.send("input_audio_buffer.commit", event_id="empty")
        peer.send("output_audio_buffer.clear", event_id="no buffer")
        await peer.speak(40)
        peer.send("input_audio_buffer.clear")
        await finish(peer)
        assert peer.errors == [
            ("response_cancel_not_active", "nothing"),
            ("conversation_already_has_active_response", "second"),
            ("invalid_truncate", "long"),
            ("input_audio_buffer_commit_empty", "empty"),
            ("not_supported_on_this_transport", "no buffer"),
        ]
        assert len(peer.of("conversation.item.truncated")) == 1
        assert len(peer.of("input_audio_buffer.cleared")) == 1
        record = next(iter(gateway.recent))
        assert [(entry.text, entry.cut) for entry in record.transcript] == [("One two three", True)]


@pytest.mark.parametrize(
    ("name", "encode", "decode"),
    [("audio/pcmu", encode_mulaw, decode_mulaw), ("audio/pcma", encode_alaw, decode_alaw)],
)
@virtual
async def test_g711_both_ways(name: str, encode: Any, decode: Any) -> None:
    async with gateway_with() as (app, _):
        peer = Peer(app)
        wire = {"type": name}
        await peer.update(audio={"input": {"format": wire}, "output": {"format": wire}})
        peer.rate_hz, peer.encode = 8_000, encode
        await peer.speak(600)
        await peer.hush(3_000)
        await finish(peer)
        assert peer.of("response.done")[0]["response"]["status"] == "completed"
        heard = decode(peer.audio())
        assert len(heard) == 4 * 250 * 8
        assert 6_000 < int(np.abs(heard).max()) < 10_000


@virtual
async def test_what_is_no_event_is_one_error_and_the_call_goes_on() -> None:
    async with gateway_with() as (app, _):
        peer = Peer(app)
        odd = base64.b64encode(b"odd").decode()
        too_long = base64.b64encode(bytes(MAX_APPEND_BYTES + 2)).decode()
        peer.send_text("{no json")
        peer.send_text("[1, 2]")
        peer.send_text('"text"')
        peer.send_bytes(b"\x00\x01")
        peer.send("no.such.event", event_id="a")
        peer.send("input_audio_buffer.append", audio=odd, event_id="b")
        peer.send("input_audio_buffer.append", audio="@@@@", event_id="c")
        peer.send("input_audio_buffer.append", event_id="d")
        peer.send("input_audio_buffer.append", audio=too_long, event_id="e")
        peer.send_text("[" * 100_000)
        await peer.speak(600)
        await peer.hush(3_000)
        await finish(peer)
        assert peer.errors == [
            ("invalid_json", None),
            ("invalid_event", None),
            ("invalid_event", None),
            ("unexpected_binary_frame", None),
            ("unknown_event_type", "a"),
            ("invalid_audio_length", "b"),
            ("invalid_audio", "c"),
            ("invalid_event", "d"),
            ("audio_too_large", "e"),
            ("invalid_event", None),
        ]
        assert peer.of("response.done")[0]["response"]["status"] == "completed"


@virtual
async def test_the_longest_append_is_taken_in_turns_with_everybody_else() -> None:
    async with gateway_with(replying(LONG)) as (app, _):
        peer, neighbour = Peer(app), Peer(app)
        await peer.update(audio={"input": {"turn_detection": None}})
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        neighbour.send("response.create")
        peer.send("input_audio_buffer.append", audio=base64.b64encode(bytes(MAX_APPEND_BYTES)).decode())
        peer.send("input_audio_buffer.commit")
        # The clock stands still while somebody is busy: the neighbour's lead is all that is due meanwhile.
        await peer.expect("input_audio_buffer.committed")
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        blocks = MAX_APPEND_BYTES / 48 / BLOCK_MS
        assert turns >= blocks
        assert len(neighbour.of("response.output_audio.delta")) == 15
        assert neighbour.of("response.created")
        await neighbour.expect("response.done")
        assert len(neighbour.audio()) == 16 * 250 * 48
        await finish(peer)
        await finish(neighbour)
        assert peer.errors == neighbour.errors == []


# --- peers that do not read, or are not there -----------------------------------------------------------------


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
        assert leg._size < CONGESTED_BYTES + 20_000
        await peer.ended()
        assert asyncio.get_running_loop().time() - stopped <= SEND_S + 5
        assert causes(gateway) == ["peer_not_reading"]
        assert (leg._size, len(leg._outbox)) == (0, 0)


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
            deepest = max(deepest, leg._size)
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
            assert leg._size < UNANSWERED_BYTES + 100_000
            await asyncio.sleep(0.01)
        assert causes(gateway) == ["peer_not_reading"]
        await peer.ended()
        assert asyncio.get_running_loop().time() - begun == pytest.approx(SEND_S, abs=0.02)
        assert (leg._size, len(leg._outbox)) == (0, 0)


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
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        for number in range(1_000):
            peer.send("conversation.item.retrieve", item_id="nothing", event_id=str(number))
        await peer.expect("error", 1_000)
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        assert turns >= 1_000
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
        assert (leg._size, len(leg._outbox)) == (0, 0)


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


@virtual
async def test_a_call_after_a_call_is_as_fresh_as_the_first() -> None:
    """CASES.md, carry-over: other settings, a long history, and audio left in every buffer."""
    async with gateway_with() as (app, _):
        fresh: list[Any] = []
        for _ in range(2):
            peer = Peer(app)
            created = (await peer.expect("session.created"))["session"]
            fresh.append({name: value for name, value in created.items() if name not in ("id", "expires_at")})
            await peer.update(
                instructions="Sing.",
                audio={
                    "input": {"turn_detection": {"type": "semantic_vad"}, "transcription": {"model": "x"}},
                    "output": {"speed": 1.5, "format": {"type": "audio/pcmu"}},
                },
            )
            for number in range(20):
                peer.send("conversation.item.create", item=message(f"words {number}"))
            await peer.speak(300)
            peer.hang_up()
            await peer.ended()
        assert fresh[0] == fresh[1]
        peer = Peer(app)
        await peer.speak(600)
        await peer.hush(3_000)
        await finish(peer)
        assert peer.of("response.output_audio_transcript.done")[0]["transcript"] == "You said: hello there."
