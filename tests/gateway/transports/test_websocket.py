"""The Realtime WebSocket under a scripted peer, in virtual time: whole calls, and what clients send in them."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
import pytest

from engines.llm.scripted import ScriptedLlm
from engines.stt.scripted import ScriptedStt
from gateway.realtime.client_events import MAX_APPEND_BYTES
from gateway.transports.websocket import BLOCK_MS
from streaming.audio.g711 import decode_alaw, decode_mulaw, encode_alaw, encode_mulaw
from tests.gateway.call_rig import Engines
from tests.gateway.transports.fake_peer import ANNA, LONG, Peer, causes, finish, gateway_with, message, replying
from tests.loop_turns import others
from tests.virtual_time import virtual


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
        async with others() as other:
            neighbour.send("response.create")
            peer.send("input_audio_buffer.append", audio=base64.b64encode(bytes(MAX_APPEND_BYTES)).decode())
            peer.send("input_audio_buffer.commit")
            # The clock stands still while somebody is busy: the neighbour's lead is all that is due meanwhile.
            await peer.expect("input_audio_buffer.committed")
        blocks = MAX_APPEND_BYTES / 48 / BLOCK_MS
        assert other.turns >= blocks
        assert len(neighbour.of("response.output_audio.delta")) == 15
        assert neighbour.of("response.created")
        await neighbour.expect("response.done")
        assert len(neighbour.audio()) == 16 * 250 * 48
        await finish(peer)
        await finish(neighbour)
        assert peer.errors == neighbour.errors == []


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
