"""The transcription engine against real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import email.parser
import email.policy
import itertools
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

from engines.api import EngineError, Pcm16
from engines.stt.openai_compatible import OpenAiSpeechToText
from streaming.audio.wav import read_wav
from streaming.jobs import (
    FinalizeTranscription,
    FinalTranscript,
    OpenTranscription,
    PartialTranscript,
    Priority,
    Transcript,
    TranscriptionFailed,
)
from tests.engines.http_server import Handler, Seen, Server, Wire, serving

SECOND = 16_000
NOISE = np.random.default_rng(1).integers(-3000, 3000, 120 * SECOND).astype(np.int16)
SHORT: Any = {"connect_s": 5.0, "first_s": 5.0, "between_s": 5.0, "total_s": 5.0}


def parts_of(seen: Seen) -> dict[str, bytes]:
    head = f"Content-Type: {seen.headers['content-type']}\r\n\r\n".encode()
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + seen.body)
    parts: dict[str, bytes] = {}
    for part in message.iter_parts():
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        parts[str(part.get_param("name", header="content-disposition"))] = content
    return parts


def heard(seen: Seen) -> Pcm16:
    pcm, rate_hz = read_wav(parts_of(seen)["file"])
    assert rate_hz == SECOND
    return pcm


async def seconds(seen: Seen, wire: Wire) -> None:
    """Says how long the clip was, in tenths of a second."""
    await wire.reply(200, {"text": f" heard{heard(seen).size * 10 // SECOND} "})


class Utterance:
    def __init__(
        self, stt: OpenAiSpeechToText, *, number: int = 1, language: str = "en", partials: bool = True
    ) -> None:
        self.results: list[Transcript] = []
        self.number = number
        self._changed = asyncio.Event()
        self.stream = stt.open(OpenTranscription("call", number, 0, language, partials), self._deliver)

    def _deliver(self, result: Transcript) -> None:
        self.results.append(result)
        self._changed.set()

    def finalize(self, revision: int = 1) -> None:
        self.stream.finalize(FinalizeTranscription(self.number, revision, Priority.FINAL, math.inf))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def final(self, revision: int = 1) -> str:
        self.finalize(revision)
        await self.until(lambda: any(isinstance(r, FinalTranscript) and r.revision == revision for r in self.results))
        last = self.results[-1]
        assert isinstance(last, FinalTranscript)
        return last.text

    async def code(self) -> str:
        self.finalize()
        await self.until(lambda: bool(self.results))
        failed = self.results[-1]
        assert isinstance(failed, TranscriptionFailed), failed
        assert (failed.utterance, failed.revision) == (self.number, 1)
        return failed.code


@contextlib.asynccontextmanager
async def listening(handler: Handler, **options: Any) -> AsyncIterator[tuple[OpenAiSpeechToText, Server]]:
    async with serving(handler) as server:
        stt = OpenAiSpeechToText(**{"base_url": server.url, "jitter": lambda: 0.0, "warm_s": 0.0, **SHORT, **options})
        await stt.start()
        try:
            yield stt, server
        finally:
            await stt.close()


async def test_a_final_uploads_what_was_said_as_a_wav() -> None:
    async with listening(seconds, model="ears", prompt="Harbour Street") as (stt, server):
        utterance = Utterance(stt, language="en-GB")
        for at in range(0, 2 * SECOND, 1600):
            utterance.stream.feed(NOISE[at : at + 1600])
        assert await utterance.final() == "heard20"
        (request,) = server.seen
        assert request.path == "/v1/audio/transcriptions"
        assert np.array_equal(heard(request), NOISE[: 2 * SECOND])
        form = {name: value for name, value in parts_of(request).items() if name != "file"}
        assert form == {
            "model": b"ears",
            "response_format": b"json",
            "temperature": b"0",
            "language": b"en",
            "prompt": b"Harbour Street",
        }
        assert utterance.results == [FinalTranscript(1, 1, "heard20")]


async def test_the_same_audio_is_asked_about_once() -> None:
    go_on = asyncio.Event()

    async def slow(seen: Seen, wire: Wire) -> None:
        await go_on.wait()
        await seconds(seen, wire)

    async with listening(slow) as (stt, server):
        utterance = Utterance(stt)
        utterance.stream.feed(NOISE[:SECOND])
        utterance.finalize(1)
        utterance.finalize(2)
        go_on.set()
        await utterance.until(lambda: bool(utterance.results))
        assert await utterance.final(3) == "heard10"
        assert utterance.results == [FinalTranscript(1, 2, "heard10"), FinalTranscript(1, 3, "heard10")]
        assert len(server.seen) == 1


async def test_a_newer_revision_makes_the_older_worthless() -> None:
    first = asyncio.Event()

    async def handle(seen: Seen, wire: Wire) -> None:
        if not first.is_set():
            first.set()
            await wire.until_closed()
        await seconds(seen, wire)

    async with listening(handle, first_s=60.0, total_s=60.0) as (stt, server):
        utterance = Utterance(stt)
        utterance.stream.feed(NOISE[:SECOND])
        utterance.finalize(1)
        await first.wait()
        utterance.stream.feed(NOISE[SECOND : 2 * SECOND])
        assert await utterance.final(2) == "heard20"
        assert utterance.results == [FinalTranscript(1, 2, "heard20")]
        async with asyncio.timeout(5):
            while server.open_now > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def test_silence_and_nothing_ask_nobody_and_a_word_is_padded() -> None:
    async with listening(seconds) as (stt, server):
        utterance = Utterance(stt)
        assert await utterance.final(1) == ""
        utterance.stream.feed(np.zeros(SECOND, np.int16))
        assert await utterance.final(2) == ""
        assert not server.seen
        short = Utterance(stt, number=2)
        short.stream.feed(NOISE[:800])
        assert await short.final() == "heard5"
        assert np.array_equal(heard(server.seen[0])[:800], NOISE[:800])


async def test_long_speech_is_committed_piece_by_piece() -> None:
    async def handle(seen: Seen, wire: Wire) -> None:
        pcm = heard(seen)
        (at,) = np.flatnonzero((NOISE[:-1] == pcm[0]) & (NOISE[1:] == pcm[1]) & (np.roll(NOISE, -2)[:-1] == pcm[2]))
        assert np.array_equal(NOISE[at : at + pcm.size], pcm)
        await wire.reply(200, {"text": f"{at}-{at + pcm.size}"})

    async with listening(handle, longest_s=4.0, first_s=20.0, total_s=20.0) as (stt, server):
        utterance = Utterance(stt)
        for at in range(0, 20 * SECOND, 1600):
            utterance.stream.feed(NOISE[at : at + 1600])
            await asyncio.sleep(0.005)
        text = await utterance.final()
        spans = [tuple(map(int, span.split("-"))) for span in text.split()]
        assert spans[0][0] == 0
        assert spans[-1][1] == 20 * SECOND
        assert all(before[1] == after[0] for before, after in itertools.pairwise(spans))
        assert max(heard(seen).size for seen in server.seen) <= 4 * SECOND
        assert await utterance.final(2) == text


async def test_a_piece_that_failed_is_asked_for_again_by_the_final() -> None:
    left = 1

    async def handle(seen: Seen, wire: Wire) -> None:
        nonlocal left
        if left:
            left -= 1
            await wire.reply(500)
        else:
            await wire.reply(200, {"text": str(heard(seen).size)})

    async with listening(handle, longest_s=4.0, attempts=1) as (stt, server):
        utterance = Utterance(stt)
        utterance.stream.feed(NOISE[: 5 * SECOND])
        while not server.seen:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert sum(map(int, (await utterance.final()).split())) == 5 * SECOND


async def test_a_server_that_cannot_keep_up_costs_the_oldest_speech_not_memory() -> None:
    async def never(_: Seen, wire: Wire) -> None:
        await wire.until_closed()

    async with listening(never, longest_s=4.0, total_s=60.0, first_s=60.0) as (stt, _):
        utterance = Utterance(stt)
        for at in range(0, NOISE.size, SECOND):
            utterance.stream.feed(NOISE[at : at + SECOND])
        held = sum(piece.pcm.size for piece in utterance.stream._pieces)
        assert held <= 8 * 4 * SECOND
        utterance.stream.close()


async def test_partials_when_asked_for() -> None:
    async with listening(seconds, partials_every_ms=500) as (stt, server):
        utterance = Utterance(stt)
        for at in range(0, SECOND, 1600):
            utterance.stream.feed(NOISE[at : at + 1600])
        await utterance.until(lambda: bool(utterance.results))
        assert utterance.results == [PartialTranscript(1, "heard5")]
        utterance.stream.feed(NOISE[SECOND : SECOND + 1600])
        await utterance.until(lambda: len(utterance.results) == 2)
        assert utterance.results[1] == PartialTranscript(1, "heard11")
        assert await utterance.final() == "heard11"
        unwanted = Utterance(stt, number=2, partials=False)
        unwanted.stream.feed(NOISE[:SECOND])
        assert len(server.seen) == 3


def fixed(status: int, body: object = "") -> Handler:
    async def handle(_: Seen, wire: Wire) -> None:
        await wire.reply(status, body)

    return handle


async def drop(_: Seen, wire: Wire) -> None:
    await wire.reset()


async def never(_: Seen, wire: Wire) -> None:
    await wire.until_closed()


@pytest.mark.parametrize(
    ("handler", "code"),
    [
        (fixed(401), "unauthorized"),
        (fixed(429), "rate_limited"),
        (fixed(500), "server_error"),
        (fixed(413), "context_too_long"),
        (fixed(400), "bad_request"),
        (fixed(200, "Hello."), "bad_response"),
        (fixed(200, {"text": 7}), "bad_response"),
        (fixed(200, {"text": "x" * 200_000}), "bad_response"),
        (drop, "connection_lost"),
        (never, "timeout"),
    ],
)
async def test_each_failure_has_its_code_and_the_next_final_is_tried(handler: Handler, code: str) -> None:
    async with listening(handler, total_s=0.5) as (stt, server):
        utterance = Utterance(stt)
        utterance.stream.feed(NOISE[:SECOND])
        assert await utterance.code() == code
        server.handler = seconds
        assert await utterance.final(2) == "heard10"


async def test_another_language_than_those_taken() -> None:
    async with listening(seconds, languages=("en", "de")) as (stt, server):
        utterance = Utterance(stt, language="fr")
        utterance.stream.feed(NOISE[:SECOND])
        assert await utterance.code() == "unsupported_language"
        other = Utterance(stt, number=2, language="de-AT")
        other.stream.feed(NOISE[:SECOND])
        assert await other.final() == "heard10"
        assert len(server.seen) == 1


async def test_a_model_that_repeats_itself_is_cut_short() -> None:
    async with listening(fixed(200, {"text": "the shop. " * 40})) as (stt, _):
        utterance = Utterance(stt)
        utterance.stream.feed(NOISE[:SECOND])
        assert len(await utterance.final()) < 100


async def test_half_a_character_is_replaced() -> None:
    """It cannot be encoded: a conversation that kept it could be sent to no client, model or host any more."""
    async with listening(fixed(200, b'{"text": "the \\ud83d\\ude00 shop \\ud83d"}')) as (stt, _):
        utterance = Utterance(stt)
        utterance.stream.feed(NOISE[:SECOND])
        assert await utterance.final() == "the \U0001f600 shop \ufffd"


async def test_a_closed_utterance_closes_its_connections_and_says_no_more() -> None:
    async with listening(never, longest_s=4.0, partials_every_ms=100) as (stt, server):
        utterance = Utterance(stt)
        utterance.stream.feed(NOISE[: 5 * SECOND])
        utterance.finalize()
        while len(server.seen) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        utterance.stream.close()
        utterance.stream.feed(NOISE[:SECOND])
        utterance.finalize(2)
        await server.closed()
        assert not utterance.results


async def test_closing_the_engine_closes_its_utterances() -> None:
    async with listening(never) as (stt, server):
        utterance = Utterance(stt)
        utterance.stream.feed(NOISE[:SECOND])
        utterance.finalize()
        await asyncio.sleep(0.02)
        await stt.close()
        await server.closed()
        assert not utterance.results


@pytest.mark.parametrize("options", [{"longest_s": 1.0}, {"partials_every_ms": -1}, {"base_url": "x"}])
def test_options_that_cannot_be_meant_are_refused(options: Any) -> None:
    with pytest.raises(EngineError) as caught:
        OpenAiSpeechToText(**options)
    assert caught.value.code == "bad_options"


async def test_a_defect_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr("engines.stt.openai_compatible.encode_wav", broken)
    async with listening(seconds) as (stt, _):
        utterance = Utterance(stt)
        utterance.stream.feed(NOISE[:SECOND])
        assert await utterance.code() == "decode_failed"


async def test_the_start_has_silence_transcribed_and_names_a_model_that_is_not_there() -> None:
    async def handle(seen: Seen, wire: Wire) -> None:
        if b"mine" in seen.body:
            await wire.reply(404, {"error": {"message": "model not found"}})
        else:
            await wire.reply(200, {"text": "thank you"})

    async with listening(handle, warm_s=5.0) as (_, server):
        assert [seen.path for seen in server.seen] == ["/v1/audio/transcriptions"]
        stt = OpenAiSpeechToText(base_url=server.url, model="mine", **SHORT)
        with pytest.raises(EngineError, match="'mine'") as caught:
            await stt.start()
        assert caught.value.code == "no_model"
        await stt.close()


async def test_a_server_that_does_not_take_silence_is_started_all_the_same() -> None:
    async def handle(_: Seen, wire: Wire) -> None:
        await wire.reply(400, {"error": {"message": "the audio holds no speech"}})

    async with listening(handle, warm_s=5.0) as (_, server):
        assert len(server.seen) == 1
