"""The speech engine against real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

from engines.api import EngineError
from engines.tts.openai_compatible import OpenAiTextToSpeech
from streaming.audio.wav import encode_wav
from streaming.jobs import Priority, Synthesis, SynthesisChunk, SynthesisFailed, Synthesize
from tests.engines.http_server import Handler, Seen, Server, Wire, serving

RATE = 24_000
TONE = np.rint(np.cos(np.arange(RATE) / 20) * 8000).astype(np.int16)
SHORT: Any = {"connect_s": 5.0, "first_s": 5.0, "between_s": 5.0, "total_s": 9.0}


class Spoken:
    def __init__(self) -> None:
        self.results: list[Synthesis] = []
        self.on_chunk: Callable[[], None] = lambda: None
        self._changed = asyncio.Event()

    def deliver(self, result: Synthesis) -> None:
        assert not self.ended, "a result after the end"
        self.results.append(result)
        self._changed.set()
        if isinstance(result, SynthesisChunk):
            self.on_chunk()

    @property
    def ended(self) -> bool:
        return bool(self.results) and (isinstance(self.results[-1], SynthesisFailed) or self.results[-1].last)

    @property
    def pcm(self) -> bytes:
        return b"".join(result.pcm for result in self.results if isinstance(result, SynthesisChunk))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def done(self) -> None:
        await self.until(lambda: self.ended)
        assert isinstance(self.results[-1], SynthesisChunk), self.results[-1]

    async def code(self) -> str:
        await self.until(lambda: self.ended)
        end = self.results[-1]
        assert isinstance(end, SynthesisFailed), end
        return end.code


def speak(tts: OpenAiTextToSpeech, text: str = "Good day.", *, epoch: int = 1, **fields: Any) -> Spoken:
    spoken = Spoken()
    values = {"voice": "alloy", "priority": Priority.FIRST_AUDIO, "deadline": math.inf, "segment": 0, **fields}
    tts.synthesize(Synthesize(call="call", epoch=epoch, text=text, **values), spoken.deliver)
    return spoken


@contextlib.asynccontextmanager
async def voiced(handler: Handler, **options: Any) -> AsyncIterator[tuple[OpenAiTextToSpeech, Server]]:
    async with serving(handler) as server:
        tts = OpenAiTextToSpeech(**{"base_url": server.url, "jitter": lambda: 0.0, **SHORT, **options})
        await tts.start()
        try:
            yield tts, server
        finally:
            await tts.close()


async def tone(_: Seen, wire: Wire) -> None:
    await wire.begin("audio/pcm")
    data = TONE.tobytes()
    for at in range(0, len(data), 999):  # odd: a sample is cut in two every time
        await wire.chunk(data[at : at + 999])
    await wire.end()


async def test_a_segment_comes_in_chunks_of_at_most_200_ms() -> None:
    async with voiced(tone, model="voice-1", extra_body={"instructions": "Be kind."}) as (tts, server):
        spoken = speak(tts, epoch=3, segment=7, speed=1.5)
        await spoken.done()
        assert spoken.pcm == TONE.tobytes()
        chunks = [result for result in spoken.results if isinstance(result, SynthesisChunk)]
        assert {(chunk.epoch, chunk.segment, chunk.rate_hz) for chunk in chunks} == {(3, 7, RATE)}
        assert max(len(chunk.pcm) for chunk in chunks) <= RATE // 5 * 2
        assert server.seen[0].path == "/v1/audio/speech"
        assert server.seen[0].json == {
            "model": "voice-1",
            "input": "Good day.",
            "voice": "alloy",
            "response_format": "pcm",
            "speed": 1.5,
            "instructions": "Be kind.",
        }


async def test_the_first_chunk_does_not_wait_for_the_last() -> None:
    go_on = asyncio.Event()

    async def handle(_: Seen, wire: Wire) -> None:
        await wire.begin("audio/pcm")
        await wire.chunk(TONE[:2400].tobytes())
        await go_on.wait()
        await wire.chunk(TONE[2400:].tobytes())
        await wire.end()

    async with voiced(handle) as (tts, _):
        spoken = speak(tts)
        await spoken.until(lambda: len(spoken.pcm) == 4800)
        go_on.set()
        await spoken.done()
        assert spoken.pcm == TONE.tobytes()


async def test_wav_is_taken_too() -> None:
    async def handle(_: Seen, wire: Wire) -> None:
        await wire.reply(200, encode_wav([TONE], RATE), content_type="audio/wav")

    async with voiced(handle, response_format="wav", voices=["a", "b"]) as (tts, server):
        assert (tts.voices, tts.rate_hz) == (("a", "b"), RATE)
        spoken = speak(tts, voice="b")
        await spoken.done()
        assert spoken.pcm == TONE.tobytes()
        assert server.seen[0].json["response_format"] == "wav"


def fixed(status: int, body: object = "", content_type: str = "audio/pcm") -> Handler:
    async def handle(_: Seen, wire: Wire) -> None:
        await wire.reply(status, body, content_type=content_type)

    return handle


async def broken_off(_: Seen, wire: Wire) -> None:
    await wire.begin("audio/pcm")
    await wire.chunk(TONE[:4800].tobytes())
    await asyncio.sleep(0.05)
    await wire.reset()


async def stalled(_: Seen, wire: Wire) -> None:
    await wire.begin("audio/pcm")
    await wire.chunk(TONE[:4800].tobytes())
    await wire.until_closed()


async def endless_silence(_: Seen, wire: Wire) -> None:
    await wire.begin("audio/pcm")
    while True:
        await wire.chunk(bytes(4800))
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("handler", "code"),
    [
        (fixed(401), "unauthorized"),
        (fixed(429), "rate_limited"),
        (fixed(500), "server_error"),
        (fixed(400, {"error": "no such voice"}), "bad_request"),
        (fixed(200, "{}", "application/json"), "bad_response"),
        (fixed(200, b"ID3 and then music in layers"), "bad_response"),
        (fixed(200, b""), "bad_audio"),
        (fixed(200, bytes(48_000)), "bad_audio"),
        (endless_silence, "timeout"),
        (broken_off, "connection_lost"),
        (stalled, "timeout"),
    ],
)
async def test_each_failure_has_its_code(handler: Handler, code: str) -> None:
    limits = {"first_s": 0.4} if handler is endless_silence else {"between_s": 0.4, "total_s": 60.0}
    async with voiced(handler, **limits) as (tts, server):
        assert await speak(tts).code() == code
        if handler is not endless_silence:
            return
        await server.closed()


async def test_after_the_first_sound_nothing_is_tried_again() -> None:
    async with voiced(broken_off, attempts=5) as (tts, server):
        spoken = speak(tts)
        assert await spoken.code() == "connection_lost"
        assert len(server.seen) == 1
        assert len(spoken.pcm) == 9600


async def test_speech_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.tts.openai_compatible.MAX_SEGMENT_S", 3.0)

    async def endless(_: Seen, wire: Wire) -> None:
        await wire.begin("audio/pcm")
        while True:
            await wire.chunk(TONE.tobytes())

    async with voiced(endless) as (tts, server):
        assert await speak(tts).code() == "bad_audio"
        await server.closed()


async def test_what_needs_no_server() -> None:
    async with voiced(tone) as (tts, server):
        assert await speak(tts, voice="nobody").code() == "unknown_voice"
        quiet = speak(tts, " … ", epoch=2)
        await quiet.done()
        assert quiet.results == [SynthesisChunk(2, 0, b"", RATE, last=True)]
        assert not server.seen


async def test_a_cancelled_epoch_closes_its_connections() -> None:
    async with voiced(stalled, between_s=5.0) as (tts, server):
        segments = [speak(tts, segment=segment) for segment in range(3)]
        other = speak(tts, epoch=2)
        await segments[0].until(lambda: bool(segments[0].pcm))
        tts.cancel("call", 1)
        counts = [len(spoken.results) for spoken in segments]
        await other.until(lambda: bool(other.pcm))
        async with asyncio.timeout(5):
            while server.open_now > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert [len(spoken.results) for spoken in segments] == counts
        assert tts.running == 1


async def test_a_receiver_may_cancel_on_what_it_just_got() -> None:
    async with voiced(fixed(200, TONE.tobytes())) as (tts, _):
        spoken = speak(tts)
        spoken.on_chunk = lambda: tts.cancel("call", 1)
        while tts.running:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert len(spoken.results) == 1


@pytest.mark.parametrize("options", [{"voices": ()}, {"rate_hz": 0}, {"response_format": "mp3"}, {"between_s": -1.0}])
def test_options_that_cannot_be_meant_are_refused(options: Any) -> None:
    with pytest.raises(EngineError) as caught:
        OpenAiTextToSpeech(**options)
    assert caught.value.code == "bad_options"


async def test_text_that_cannot_be_sent_is_a_failure() -> None:
    async with voiced(tone) as (tts, server):
        assert await speak(tts, "half a character: \ud800").code() == "synthesis_failed"
        assert not server.seen
