"""A call's view of a hosted engine, without a host: what is asked, what is delivered, and what never is."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import numpy as np
import pytest

from engines.api import EngineError, Overload
from engines.host import protocol as wire
from engines.host.client import HostedEngine, HostedLanguageModel, HostedSpeechToText, HostedTextToSpeech
from engines.host.hosts import Hosts
from engines.host.jobs import Jobs, wire_time
from engines.host.protocol import TooLargeError
from engines.overload import LEAST_ANSWERS, Lateness
from engines.registry import BackendSpec
from streaming.jobs import (
    FinalTranscript,
    GenerationDone,
    GenerationFailed,
    PartialTranscript,
    SynthesisChunk,
    Token,
    TranscriptionFailed,
    Usage,
)
from tests.engines.host.rig import Answers, final, generate, spec, synthesize, transcription
from tests.virtual_time import virtual


class FakeLink:
    def __init__(self) -> None:
        self.lateness = Lateness()
        self.jobs = Jobs(self.lateness)
        self.sent: list[Any] = []
        self.down: str | None = None
        self.too_large = False

    def send(self, message: Any) -> None:
        if self.too_large:
            raise TooLargeError("too long")
        self.sent.append(message)

    def why_down(self, engine: int) -> str | None:
        return self.down

    async def load(self, engine: HostedEngine) -> None:
        engine.loaded = wire.Loaded(engine.number, 16_000, ("a", "b"))

    async def unload(self, engine: HostedEngine) -> None: ...

    def kinds(self) -> list[str]:
        return [type(message).__name__ for message in self.sent]


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_a_reply_and_nothing_after_its_end_or_a_cancel() -> None:
    link = FakeLink()
    llm = HostedLanguageModel(link, 1, spec("llm"), [])
    said = Answers()
    llm.generate(generate(1), said)
    llm.prioritize("call", 1)
    llm.postpone("call", 1, math.inf)
    assert link.kinds() == ["StartGeneration", "Prioritize", "Postpone"]
    job = link.sent[0].job
    assert link.jobs.answer(job, Token(1, "a"))
    assert link.jobs.answer(job, GenerationDone(1, "stop", Usage()))
    assert not link.jobs.answer(job, Token(1, "b"))
    assert [type(result) for result in said.all] == [Token, GenerationDone]
    for ask in (llm.cancel, llm.prioritize):
        ask("call", 1)
    llm.postpone("call", 1, 0.0)
    assert len(link.sent) == 3, "what is over is not spoken of any more"
    llm.generate(generate(2), said)
    llm.cancel("call", 2)
    assert not link.jobs.answer(link.sent[3].job, Token(2, "late"))
    link.jobs.fail_all("host_lost", "gone")
    assert len(said.all) == 2
    assert link.kinds()[3:] == ["StartGeneration", "CancelEpoch"]
    assert len(link.jobs) == 0


async def test_a_call_that_ends_takes_its_epochs_with_it_and_no_others() -> None:
    link = FakeLink()
    llm = HostedLanguageModel(link, 1, spec("llm"), [])
    ended, other = Answers(), Answers()
    llm.generate(generate(1), ended)
    llm.generate(generate(2), ended)
    llm.generate(generate(1, call="other"), other)
    llm.forget("call")
    assert link.kinds()[-1] == "ForgetCall"
    link.jobs.fail_all("host_lost", "gone")
    assert (ended.codes, other.codes) == ([], ["host_lost"])


async def test_while_it_is_down_a_request_fails_soon_unless_it_is_cancelled_before() -> None:
    link = FakeLink()
    link.down = "the cpu host is down"
    llm, tts = HostedLanguageModel(link, 1, spec("llm"), []), HostedTextToSpeech(link, 2, spec("tts"), [])
    assert not llm.available
    said, never = Answers(), Answers()
    llm.generate(generate(1), said)
    tts.synthesize(synthesize(1), said)
    llm.generate(generate(2), never)
    tts.synthesize(synthesize(2), never)
    llm.cancel("call", 2)
    tts.cancel("call", 2)
    assert said.all == []
    await turn()
    assert said.codes == ["host_down", "host_down"]
    assert said.all[0] == GenerationFailed(1, "host_down", "the cpu host is down")
    assert never.all == []
    assert (set(link.kinds()), len(link.jobs)) == ({"CancelEpoch"}, 0)
    llm.forget("call")  # one that may yet go on is told
    assert link.kinds()[-1] == "ForgetCall"


async def test_a_prompt_too_long_for_the_wire_fails_alone() -> None:
    link = FakeLink()
    link.too_large = True
    llm = HostedLanguageModel(link, 1, spec("llm"), [])
    said = Answers()
    llm.generate(generate(), said)
    await turn()
    assert said.codes == ["too_large"]
    assert len(link.jobs) == 0


async def test_one_segment_after_another_and_all_of_an_epoch_at_a_cancel() -> None:
    link = FakeLink()
    tts = HostedTextToSpeech(link, 1, spec("tts"), [])
    with pytest.raises(EngineError, match="never loaded"):
        _ = tts.voices
    await tts.start()
    assert (tts.rate_hz, tts.voices) == (16_000, ("a", "b"))
    spoken = Answers()
    tts.synthesize(synthesize(1, 0), spoken)
    tts.synthesize(synthesize(1, 1), spoken)
    first, second = (message.job for message in link.sent)
    link.jobs.answer(first, SynthesisChunk(1, 0, b"", 16_000, last=False))
    link.jobs.answer(first, SynthesisChunk(1, 0, b"", 16_000, last=True))
    assert not link.jobs.answer(first, SynthesisChunk(1, 0, b"", 16_000, last=True))
    tts.cancel("call", 1)
    assert not link.jobs.answer(second, SynthesisChunk(1, 1, b"", 16_000, last=True))
    assert len(spoken.all) == 2
    assert link.kinds()[-1] == "CancelEpoch"
    await tts.close()


async def test_audio_goes_in_blocks_and_whole_before_its_transcript_is_asked_for() -> None:
    link = FakeLink()
    stt = HostedSpeechToText(link, 1, spec("stt"), [])
    words = Answers()
    stream = stt.open(transcription(), words)
    for value in range(8):
        stream.feed(np.full(512, value, np.int16))
    assert link.kinds() == ["OpenStream", "Feed", "Feed"]
    stream.feed(np.full(7, 8, np.int16))
    stream.finalize(final(0))
    stream.finalize(final(1))
    assert link.kinds()[3:] == ["Feed", "FinalizeStream", "FinalizeStream"]
    pcm = np.frombuffer(b"".join(m.pcm for m in link.sent if isinstance(m, wire.Feed)), "<i2")
    assert pcm.tolist() == [value for value in range(8) for _ in range(512)] + [8] * 7
    job = link.sent[0].job
    link.jobs.answer(job, PartialTranscript(1, "hel"))
    link.jobs.answer(job, FinalTranscript(1, 1, "hello"))
    link.jobs.fail_all("host_lost", "gone")
    assert [type(result) for result in words.all] == [PartialTranscript, FinalTranscript], "revision 0 was overtaken"
    stream.feed(np.zeros(5_000, np.int16))
    stream.finalize(final(2))
    await turn()
    assert words.all[-1] == TranscriptionFailed(1, 2, "host_lost", "gone")
    count = len(link.sent)
    stream.close()
    stream.close()
    stream.feed(np.zeros(5_000, np.int16))
    stream.finalize(final(3))
    await turn()
    assert (len(words.all), len(link.sent)) == (3, count)


async def test_a_stream_that_is_closed_gets_nothing_more() -> None:
    link = FakeLink()
    words = Answers()
    stream = HostedSpeechToText(link, 1, spec("stt"), []).open(transcription(), words)
    stream.finalize(final())
    stream.close()
    assert link.kinds() == ["OpenStream", "FinalizeStream", "CloseStream"]
    assert not link.jobs.answer(link.sent[0].job, FinalTranscript(1, 0, "late"))
    stream.feed(np.zeros(5_000, np.int16))
    stream.finalize(final(1))
    assert len(link.sent) == 3
    assert words.all == []


async def test_what_one_receiver_raises_reaches_no_other() -> None:
    link = FakeLink()
    llm = HostedLanguageModel(link, 1, spec("llm"), [])

    def broken(_: object) -> None:
        raise ZeroDivisionError("oops")

    said = Answers()
    llm.generate(generate(1), broken)
    llm.generate(generate(2), said)
    link.jobs.fail_all("host_lost", "gone")
    assert said.codes == ["host_lost"]


@virtual
async def test_deadlines_are_told_on_the_clock_that_all_processes_share() -> None:
    loop = asyncio.get_running_loop()
    assert abs(loop.time() - time.monotonic()) > 1, "this loop keeps a clock of its own"
    assert wire_time(loop.time() + 5) == pytest.approx(time.monotonic() + 5, abs=0.5)
    assert wire_time(math.inf) == math.inf


async def test_slow_answers_show_as_overload() -> None:
    link = FakeLink()
    llm = HostedLanguageModel(link, 1, spec("llm"), [])
    for epoch in range(LEAST_ANSWERS):
        llm.generate(generate(epoch), Answers())
    assert link.lateness.level(time.monotonic()) is Overload.NONE
    assert link.lateness.level(time.monotonic() + 1.0) is Overload.NO_SPECULATION
    for epoch in range(LEAST_ANSWERS):
        llm.cancel("call", epoch)
    assert link.lateness.level(time.monotonic() + 1.0) is Overload.NONE


def test_what_stays_with_the_audio_is_not_hosted() -> None:
    with pytest.raises(ValueError, match="gateway's process"):
        Hosts().engine(BackendSpec("energy", "vad", "engines.vad.scripted:EnergyVad"), [])
