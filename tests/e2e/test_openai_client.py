"""The stock ``openai`` client, unmodified, against the served gateway; and a client that sends whatever it likes."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection

from engines.api import Pcm16
from engines.llm.scripted import ScriptedLlm
from engines.stt.scripted import ScriptedStt
from engines.tts.scripted import ScriptedTts
from loadtest.voice import say_line
from tests.e2e.wire import Wire, dialled, tone
from tests.gateway.call_rig import Engines
from tests.gateway.realtime.checker import OrderChecker
from tests.serving import Served, eventually, served

pytestmark = pytest.mark.e2e

QUESTION = "What are your opening hours?"
WITHIN_S = 20.0


@pytest.fixture
async def here() -> AsyncIterator[Served]:
    engines = Engines(stt=ScriptedStt((QUESTION,)), llm=ScriptedLlm(), tts=ScriptedTts(100))
    async with served(engines.set) as running:
        yield running


class Client:
    """Collects what ``connection.recv`` parses, until an event of some type came."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection
        self.checker = OrderChecker(onset_cancels=True)
        self.events: list[Any] = []

    async def until(self, kind: str) -> Any:
        async with asyncio.timeout(WITHIN_S):
            while True:
                event = await self.connection.recv()
                self.events.append(event)
                self.checker.feed(event.to_dict())
                if event.type == kind:
                    return event

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.type == kind]


def openai(here: Served) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{here.url}/v1", api_key="any", max_retries=0)


async def speak(connection: AsyncRealtimeConnection, pcm: Pcm16) -> None:
    for at in range(0, len(pcm), 480):
        block = pcm[at : at + 480].astype("<i2").tobytes()
        await connection.input_audio_buffer.append(audio=base64.b64encode(block).decode())
        await asyncio.sleep(0.01)


async def test_a_spoken_turn(here: Served) -> None:
    line = await asyncio.to_thread(say_line, QUESTION, 24_000)
    async with openai(here) as api, api.realtime.connect(model="gpt-realtime") as connection:
        client = Client(connection)
        await client.until("session.created")
        await connection.session.update(
            session={
                "type": "realtime",
                "audio": {"input": {"transcription": {"model": "whisper-1"}, "turn_detection": {"type": "server_vad"}}},
            }
        )
        await client.until("session.updated")
        await asyncio.gather(
            speak(connection, np.concatenate((line, np.zeros(24_000, np.int16)))), client.until("response.done")
        )
        client.checker.finish()
        done = client.of("response.done")[0].response
        assert done.status == "completed"
        heard = client.of("conversation.item.input_audio_transcription.completed")
        assert [event.transcript for event in heard] == [QUESTION]
        expected = f"You said: {QUESTION[:-1]}."
        assert client.of("response.output_audio_transcript.done")[0].transcript == expected
        assert done.output[0].content[0].transcript == expected
        audio = b"".join(base64.b64decode(event.delta) for event in client.of("response.output_audio.delta"))
        assert len(audio) == len(expected.split()) * 100 * 48
        assert int(np.abs(np.frombuffer(audio, "<i2")).max()) > 4_000


async def test_a_text_turn_and_the_history_it_stands_in(here: Served) -> None:
    async with openai(here) as api, api.realtime.connect(model="gpt-realtime") as connection:
        client = Client(connection)
        await connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
        for text in ("blue", "green"):
            item: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
            await connection.conversation.item.create(item=item)
            await connection.response.create()
            await client.until("response.done")
        client.checker.finish()
        assert [event.text for event in client.of("response.output_text.done")] == [
            "You said: blue.",
            "You said: green.",
        ]
        joined = "".join(event.delta for event in client.of("response.output_text.delta"))
        assert joined == "You said: blue.You said: green."
        item_id = client.of("conversation.item.added")[0].item.id
        await connection.conversation.item.retrieve(item_id=item_id)
        retrieved = await client.until("conversation.item.retrieved")
        assert retrieved.item.content[0].text == "blue"


async def test_a_reply_that_is_cancelled_and_truncated(here: Served) -> None:
    async with openai(here) as api, api.realtime.connect(model="gpt-realtime") as connection:
        client = Client(connection)
        text = "one two three four five six seven eight nine ten eleven twelve " * 3
        item: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        await connection.conversation.item.create(item=item)
        await connection.response.create()
        delta = await client.until("response.output_audio.delta")
        await connection.response.cancel()
        done = await client.until("response.done")
        assert (done.response.status, done.response.status_details.reason) == ("cancelled", "client_cancelled")
        await connection.conversation.item.truncate(item_id=delta.item_id, content_index=0, audio_end_ms=0)
        await client.until("conversation.item.truncated")
        await connection.conversation.item.retrieve(item_id=delta.item_id)
        retrieved = await client.until("conversation.item.retrieved")
        assert not retrieved.item.content[0].transcript
        client.checker.finish()


async def test_what_is_no_event_is_one_error_with_a_code_and_the_call_goes_on(here: Served) -> None:
    def append(data: bytes, event_id: str) -> str:
        audio = base64.b64encode(data).decode()
        return json.dumps({"type": "input_audio_buffer.append", "audio": audio, "event_id": event_id})

    bad: list[tuple[str | bytes, str, str | None]] = [
        ("{malformed", "invalid_json", None),
        ("[]", "invalid_event", None),
        (b"\x00\x01\x02", "unexpected_binary_frame", None),
        (append(b"odd", "odd"), "invalid_audio_length", "odd"),
        (json.dumps({"type": "input_audio_buffer.append", "audio": "=?=", "event_id": "b64"}), "invalid_audio", "b64"),
        (append(bytes(16_000_000), "long"), "audio_too_large", "long"),
        (json.dumps({"type": "response.dance", "event_id": "dance"}), "unknown_event_type", "dance"),
    ]
    async with openai(here) as api, api.realtime.connect(model="gpt-realtime") as connection:
        client = Client(connection)
        for frame, code, event_id in bad:
            await connection._connection.send(frame)
            error = (await client.until("error")).error
            assert (error.code, error.event_id) == (code, event_id)
        await connection.response.create()
        await client.until("response.done")
        assert len(client.of("error")) == len(bad)
        client.checker.finish()


# --- whatever it likes ----------------------------------------------------------------------------------------


class Fuzzer:
    """Seeded: about one event in four is wrong in some way."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.items: list[str] = []
        self.count = 0
        self.wrong = 0

    def next(self) -> dict[str, Any] | str | bytes:
        self.count += 1
        if self.random.random() < 0.12:
            self.wrong += 1
            return self._nonsense()
        makers = [self._append] * 12 + [self._session, self._item, self._item, self._use, self._use, self._response]
        event = self.random.choice([*makers, self._buffer, self._cancel])()
        if self.random.random() < 0.1:
            event[self.random.choice([*event, "type"])] = self.random.choice([None, 7, "x", [], {}, -1, 1e99])
        return {**event, "event_id": f"fuzz_{self.count}"}

    def _nonsense(self) -> str | bytes:
        wrong: list[str | bytes] = ["", "null", "{", "[]", "12", '"x"', "[" * 5_000, '{"type":', "\u2028{}"]
        return self.random.choice([*wrong, b"\xff\x00", b"", '{"type": "x" * 9}'])

    def _append(self) -> dict[str, Any]:
        samples = self.random.choice([0, 1, 240, 480, 480, 480, 2_400])
        level = self.random.choice([0, 0, 6_000, 6_000, 6_000])
        data = tone(200, level)[:samples].astype("<i2").tobytes() + (b"x" if self.random.random() < 0.05 else b"")
        return {"type": "input_audio_buffer.append", "audio": base64.b64encode(data).decode()}

    def _session(self) -> dict[str, Any]:
        session: dict[str, Any] = {"type": "realtime"}
        change = self.random.choice(["turn", "turn", "text", "voice", "format", "transcription", "wrong"])
        if change == "turn":
            kinds: list[Any] = [None, {"type": "server_vad"}, {"type": "semantic_vad"}]
            kinds += [{"type": "server_vad", "interrupt_response": True, "silence_duration_ms": 100}]
            session["audio"] = {"input": {"turn_detection": self.random.choice(kinds)}}
        elif change == "transcription":
            session["audio"] = {"input": {"transcription": self.random.choice([None, {"model": "whisper-1"}])}}
        elif change == "text":
            session["output_modalities"] = [self.random.choice(["audio", "text"])]
        elif change == "voice":
            session["audio"] = {"output": {"voice": self.random.choice(["alloy", "nobody", "tone"])}}
        elif change == "format":
            session["audio"] = {"input": {"format": {"type": self.random.choice(["audio/pcm", "audio/pcmu"])}}}
        else:
            session["audio"] = {"input": {"turn_detection": {"type": "server_vad", "threshold": 9}}}
        return {"type": "session.update", "session": session}

    def _item(self) -> dict[str, Any]:
        item_id = f"item_{self.random.randrange(60)}"
        self.items.append(item_id)
        role, part = self.random.choice(
            [("user", "input_text"), ("assistant", "output_text"), ("system", "input_text")]
        )
        content = [{"type": part, "text": self.random.choice(["hello", "", "a longer text. With two sentences."])}]
        event = {"type": "conversation.item.create", "item": {"type": "message", "role": role, "content": content}}
        if self.random.random() < 0.7:
            event["item"]["id"] = item_id  # type: ignore[index]
        if self.random.random() < 0.2:
            event["previous_item_id"] = self.random.choice(["root", "item_3", "nothing"])
        return event

    def _use(self) -> dict[str, Any]:
        item_id = self.random.choice([*self.items[-20:], "nothing"])
        kind = self.random.choice(["retrieve", "delete", "truncate"])
        event: dict[str, Any] = {"type": f"conversation.item.{kind}", "item_id": item_id}
        if kind == "truncate":
            event |= {
                "content_index": self.random.choice([0, 0, 1]),
                "audio_end_ms": self.random.choice([0, 40, 90_000]),
            }
        return event

    def _response(self) -> dict[str, Any]:
        options = [
            {},
            {"output_modalities": ["text"]},
            {"max_output_tokens": 2},
            {"input": []},
            {"conversation": "none"},
        ]
        return {"type": "response.create", "response": self.random.choice(options)}

    def _buffer(self) -> dict[str, Any]:
        kinds = ["input_audio_buffer.commit", "input_audio_buffer.clear", "output_audio_buffer.clear"]
        return {"type": self.random.choice(kinds)}

    def _cancel(self) -> dict[str, Any]:
        return {"type": "response.cancel", **self.random.choice([{}, {"response_id": "resp_nothing"}])}

    def learn(self, wire: Wire) -> None:
        """Now and then use the ids of what the gateway made itself."""
        for event in wire.events[-50:]:
            if event["type"] == "conversation.item.added":
                self.items.append(event["item"]["id"])


@pytest.mark.parametrize("seed", [1, 2])
async def test_two_thousand_events_of_every_kind_never_close_the_call(here: Served, seed: int) -> None:
    fuzzer = Fuzzer(seed)
    here.gateway.engines.tts._word_ms = 50  # type: ignore[attr-defined]
    async with dialled(here.ws, onset_cancels=False) as wire:
        await wire.expect("session.created")
        for number in range(1_000):
            frame = fuzzer.next()
            if isinstance(frame, dict):
                wire.checker.sent(frame)
                await wire.connection.send(json.dumps(frame))
            else:
                await wire.connection.send(frame)
            if number % 25 == 0:
                fuzzer.learn(wire)
                await asyncio.sleep(0.02)
            assert wire.broken is None, wire.broken
        rest = {"turn_detection": None, "transcription": None}
        await wire.send("session.update", session={"type": "realtime", "audio": {"input": rest}}, event_id="last")
        await wire.send("input_audio_buffer.clear")
        await wire.send("conversation.item.retrieve", item_id="nothing at all", event_id="over")
        await eventually(lambda: wire.broken or ("item_not_found", "over") in wire.errors)
        await wire.rest()
        assert wire.broken is None, wire.broken
        codes = {code for code, _ in wire.errors}
        assert len(wire.errors) >= fuzzer.wrong
        assert len(codes) > 8, codes
        assert wire.of("response.done")
        assert wire.of("conversation.item.retrieved")
