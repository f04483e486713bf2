"""Requests that move on to the next engine: never a word twice, audio replayed, orders passed to who serves."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from engines.api import Pcm16
from engines.chain import SILENT_S, Chain, Link
from engines.fallback import MAX_REPLAY_S, FallbackLanguageModel, FallbackSpeechToText, FallbackTextToSpeech
from engines.llm.scripted import ScriptedLlm
from engines.stt.scripted import ScriptedStt
from engines.tts.scripted import NEVER, ScriptedTts
from streaming.jobs import (
    FinalizeTranscription,
    FinalTranscript,
    Generate,
    GenerationDone,
    GenerationFailed,
    Message,
    OpenTranscription,
    Priority,
    Synthesize,
    Token,
    TranscriptionFailed,
)
from tests.virtual_time import virtual


def chain_of(*engines: Any, load_s: float = 0.0) -> Chain[Any]:
    def link(number: int, engine: Any) -> Link[Any]:
        async def make() -> Any:
            await asyncio.sleep(load_s if number else 0.0)
            await engine.start()
            return engine

        return Link(f"engine {number}", make, asyncio.get_running_loop().time)

    return Chain("stage", [link(number, engine) for number, engine in enumerate(engines)])


def ask(epoch: int = 1, priority: Priority = Priority.DECODE) -> Generate:
    return Generate("c", epoch, (Message("user", "one two three four"),), priority, 0.0)


async def llm_of(*engines: ScriptedLlm, load_s: float = 0.0) -> FallbackLanguageModel:
    llm = FallbackLanguageModel(chain_of(*engines, load_s=load_s))
    await llm.start()
    return llm


@virtual
async def test_a_reply_that_fails_before_its_first_word_is_said_by_the_next() -> None:
    first, second = ScriptedLlm(fault="fail_first"), ScriptedLlm()
    llm = await llm_of(first, second)
    got: list[Any] = []
    llm.generate(ask(), got.append)
    await asyncio.sleep(1)
    assert "".join(result.text for result in got[:-1]) == "You said: one two three four."
    assert isinstance(got[-1], GenerationDone)
    assert len(first.requests) == len(second.requests) == 1
    await llm.close()


@virtual
async def test_a_reply_without_a_word_is_tried_with_the_next_and_is_no_ones_fault() -> None:
    first, second = ScriptedLlm(reply=lambda request: ""), ScriptedLlm()
    llm = await llm_of(first, second)
    for epoch in (1, 2):
        got: list[Any] = []
        llm.generate(ask(epoch), got.append)
        await asyncio.sleep(1)
        assert "".join(result.text for result in got[:-1]) == "You said: one two three four."
    assert len(first.requests) == 2
    await llm.close()
    silent = await llm_of(ScriptedLlm(reply=lambda request: ""), ScriptedLlm(reply=lambda request: ""))
    got = []
    silent.generate(ask(), got.append)
    await asyncio.sleep(1)
    assert [type(result) for result in got] == [GenerationDone]  # the session knows what to say then
    await silent.close()


@virtual
async def test_one_that_hangs_has_failed_once_nobody_waits_any_longer() -> None:
    """It never says so itself: without this, each turn would ask it again, and each would end in an apology."""
    first = ScriptedLlm(fault="stall_first")
    llm = await llm_of(first, ScriptedLlm())
    got: list[Any] = []
    for epoch, wait_s, priority in ((1, SILENT_S - 1, Priority.DECODE), (2, SILENT_S * 2, Priority.SPECULATIVE)):
        llm.generate(ask(epoch, priority), got.append)
        await asyncio.sleep(wait_s)
        llm.cancel("c", epoch)  # a caller who would not wait, and one who spoke on: no fault of an engine
    llm.generate(ask(3, Priority.SPECULATIVE), got.append)
    llm.prioritize("c", 3)
    await asyncio.sleep(SILENT_S + 1)
    assert (len(first.requests), got) == (3, [])
    llm.cancel("c", 3)
    llm.generate(ask(4), got.append)
    await asyncio.sleep(1)
    assert isinstance(got[-1], GenerationDone)
    assert len(first.requests) == 3
    await llm.close()


@virtual
async def test_a_voice_and_an_ear_that_hang_have_failed_too() -> None:
    tts = FallbackTextToSpeech(chain_of(ScriptedTts(first_chunk_delay_s=60.0), ScriptedTts()))
    stt = FallbackSpeechToText(chain_of(ScriptedStt(fault="mute"), ScriptedStt(["yes"])))
    await asyncio.gather(tts.start(), stt.start())
    spoken: list[Any] = []
    heard: list[Any] = []
    for turn in (1, 2):
        tts.synthesize(Synthesize("c", turn, 0, "one two", "tone", Priority.FIRST_AUDIO, 0.0), spoken.append)
        utterance = stt.open(OpenTranscription("c", turn, 0), heard.append)
        utterance.feed(np.full(1600, 5000, np.int16))
        utterance.finalize(FinalizeTranscription(turn, 0, Priority.FINAL, 0.0))
        await asyncio.sleep(SILENT_S + 1)
        assert bool(spoken) is bool(heard) is (turn == 2)
        tts.cancel("c", turn)
        utterance.close()
    assert spoken[-1].last
    assert heard[-1].text == "yes"
    await asyncio.gather(tts.close(), stt.close())


@virtual
async def test_an_older_revision_that_stays_unanswered_is_no_failure() -> None:
    first, second = ScriptedStt(fault="mute"), ScriptedStt(["yes"])
    chain = chain_of(first, second)
    stt = FallbackSpeechToText(chain)
    await stt.start()
    utterance = stt.open(OpenTranscription("c", 1, 0), lambda result: None)
    utterance.finalize(FinalizeTranscription(1, 0, Priority.FINAL, 0.0))
    await asyncio.sleep(60)  # the caller went on
    utterance.finalize(FinalizeTranscription(1, 1, Priority.FINAL, 0.0))
    utterance.close()
    assert chain.links[0].admits()
    await stt.close()


@virtual
async def test_a_reply_that_fails_in_its_midst_is_not_said_again() -> None:
    second = ScriptedLlm()
    llm = await llm_of(ScriptedLlm(fault="fail_midway"), second)
    got: list[Any] = []
    llm.generate(ask(), got.append)
    await asyncio.sleep(1)
    assert [type(result) for result in got] == [Token, Token, Token, GenerationFailed]
    assert got[-1].code == "scripted"
    assert second.requests == []
    await llm.close()


@virtual
async def test_with_all_failing_the_last_reason_comes_once() -> None:
    llm = await llm_of(ScriptedLlm(fault="fail_first"), ScriptedLlm(fault="fail_first"))
    got: list[Any] = []
    llm.generate(ask(), got.append)
    await asyncio.sleep(1)
    assert got == [GenerationFailed(1, "scripted", "the script says so")]
    await llm.close()


@virtual
async def test_orders_reach_who_serves() -> None:
    first, second = ScriptedLlm(fault="fail_first"), ScriptedLlm(fault="stall_first")
    llm = await llm_of(first, second, load_s=1.0)
    llm.generate(ask(priority=Priority.SPECULATIVE), lambda result: None)
    await asyncio.sleep(0.5)
    # While the fallback loads, orders are kept for it.
    llm.prioritize("c", 1)
    llm.postpone("c", 1, 1005.0)
    assert second.requests == []
    await asyncio.sleep(1)
    assert [request.priority for request in second.requests] == [Priority.DECODE]
    assert second.postponed == [("c", 1, 1005.0)]
    llm.prioritize("c", 1)
    llm.postpone("c", 1, 1006.0)
    assert (second.prioritized, second.postponed[1:]) == ([("c", 1)], [("c", 1, 1006.0)])
    llm.cancel("c", 1)
    assert second.cancelled == [("c", 1)]
    assert (first.prioritized, first.cancelled) == ([], [])
    llm.forget("c")
    assert first.forgotten == second.forgotten == ["c"]
    llm.cancel("x", 1)
    llm.prioritize("x", 1)
    llm.postpone("x", 1, 0.0)
    await llm.close()


@virtual
async def test_forgetting_a_call_ends_what_waits_for_a_load() -> None:
    second = ScriptedLlm()
    llm = await llm_of(ScriptedLlm(fault="fail_first"), second, load_s=1.0)
    got: list[Any] = []
    llm.generate(ask(), got.append)
    await asyncio.sleep(0.5)
    llm.forget("c")
    await asyncio.sleep(1)
    assert (got, second.requests) == ([], [])
    await llm.close()


@virtual
async def test_a_second_reply_for_one_epoch_is_refused() -> None:
    first = ScriptedLlm(token_delay_s=1.0)
    llm = await llm_of(first, ScriptedLlm())
    got: list[Any] = []
    llm.generate(ask(), lambda result: None)
    llm.generate(ask(), got.append)
    assert got == []
    await asyncio.sleep(0.1)
    assert [result.code for result in got] == ["invalid_request"]
    assert len(first.requests) == 1
    await llm.close()


def say(segment: int, voice: str = "joe") -> Synthesize:
    return Synthesize("c", 1, segment, "one two", voice, Priority.PLAYOUT, 0.0)


async def tts_of(*engines: ScriptedTts) -> FallbackTextToSpeech:
    tts = FallbackTextToSpeech(chain_of(*engines))
    await tts.start()
    return tts


@virtual
async def test_a_segment_is_spoken_by_the_next_in_its_own_voice_and_rate() -> None:
    first = ScriptedTts(voices=("joe", "ann"), rate_hz=24_000, fail_segments={0: "engine_error"})
    second = ScriptedTts(voices=("other", "ann"), rate_hz=16_000)
    tts = await tts_of(first, second)
    assert (tts.voices, tts.rate_hz) == (("joe", "ann"), 24_000)
    got: list[Any] = []
    tts.synthesize(say(0), got.append)
    await asyncio.sleep(1)
    assert {chunk.rate_hz for chunk in got} == {16_000}
    assert [chunk.last for chunk in got][-1]
    # The rest of the reply keeps the voice it began with, though the first engine could go on.
    tts.synthesize(say(1, "ann"), got.append)
    await asyncio.sleep(1)
    assert [request.voice for request in second.requests] == ["other", "ann"]
    assert len(first.requests) == 1
    await tts.close()


@virtual
async def test_speech_that_breaks_off_is_not_begun_again() -> None:
    first = ScriptedTts(voices=("joe",), fail_segments={0: "nan"}, failing_after_chunks=1)
    second = ScriptedTts(voices=("joe",))
    tts = await tts_of(first, second)
    got: list[Any] = []
    tts.synthesize(say(0), got.append)
    await asyncio.sleep(1)
    assert [getattr(result, "code", "sound") for result in got] == ["sound", "nan"]
    assert second.requests == []
    await tts.close()


@virtual
async def test_cancelling_reaches_each_engine_that_speaks_once() -> None:
    first = ScriptedTts(voices=("joe",), fail_segments={0: "engine_error", 1: NEVER, 2: NEVER})
    second = ScriptedTts(voices=("joe",), fail_segments={0: NEVER})
    tts = await tts_of(first, second)
    for segment in (1, 2, 0):
        tts.synthesize(say(segment), lambda result: None)
    await asyncio.sleep(1)
    tts.cancel("c", 1)
    tts.cancel("c", 1)
    assert first.cancelled == second.cancelled == [("c", 1)]
    assert second.open_segments == 0
    got: list[Any] = []
    tts.synthesize(say(3), got.append)
    tts.synthesize(say(3), got.append)
    await asyncio.sleep(0.01)
    assert [result.code for result in got if hasattr(result, "code")] == ["invalid_request"]
    await tts.close()


def heard(ms: int, level: int = 8000) -> Pcm16:
    return np.full(16 * ms, level, np.int16)


def final(revision: int) -> FinalizeTranscription:
    return FinalizeTranscription(7, revision, Priority.FINAL, 0.0)


class CountingStt(ScriptedStt):
    """Its line is how many milliseconds it was fed."""

    def open(self, request: Any, deliver: Any) -> Any:
        stream = super().open(request, deliver)
        feed, samples = stream.feed, 0

        def counting(pcm: Pcm16) -> None:
            nonlocal samples
            samples += pcm.size
            feed(pcm)
            stream._line = f"{samples // 16} ms"

        stream.feed = counting  # type: ignore[method-assign]
        return stream


async def stt_of(*engines: ScriptedStt) -> FallbackSpeechToText:
    stt = FallbackSpeechToText(chain_of(*engines))
    await stt.start()
    return stt


@virtual
async def test_what_was_said_so_far_is_played_to_the_next() -> None:
    first, second = CountingStt(), CountingStt(("the next line",))
    stt = await stt_of(first, second)
    got: list[Any] = []
    stream = stt.open(OpenTranscription("c", 7, 0), got.append)
    stream.feed(heard(500))
    stream.finalize(final(1))
    await asyncio.sleep(0.1)
    assert got == [FinalTranscript(7, 1, "500 ms")]
    first.fault = "fail"
    stream.feed(heard(300))
    stream.finalize(final(2))
    await asyncio.sleep(0.1)
    assert got[1:] == [FinalTranscript(7, 2, "800 ms")]
    assert (first.open_streams, second.open_streams) == (0, 1)
    stream.feed(heard(200))
    stream.finalize(final(3))
    await asyncio.sleep(0.1)
    assert got[2:] == [FinalTranscript(7, 3, "1000 ms")]
    stream.close()
    stream.close()
    assert second.open_streams == 0
    stream.feed(heard(10))
    stream.finalize(final(4))
    await asyncio.sleep(0.1)
    assert len(got) == 3
    await stt.close()


@virtual
async def test_only_the_latest_audio_is_kept_for_a_replay() -> None:
    first, second = CountingStt(fault="fail"), CountingStt()
    stt = await stt_of(first, second)
    got: list[Any] = []
    stream = stt.open(OpenTranscription("c", 7, 0), got.append)
    for _ in range(int(MAX_REPLAY_S) + 5):
        stream.feed(heard(1000))
    stream.finalize(final(1))
    await asyncio.sleep(0.1)
    assert got == [FinalTranscript(7, 1, f"{int(MAX_REPLAY_S) * 1000} ms")]
    await stt.close()


@virtual
async def test_when_all_fail_a_later_revision_asks_again() -> None:
    first, second = CountingStt(fault="fail"), CountingStt(fault="fail")
    stt = await stt_of(first, second)
    got: list[Any] = []
    stream = stt.open(OpenTranscription("c", 7, 0), got.append)
    stream.feed(heard(100))
    stream.finalize(final(1))
    await asyncio.sleep(0.1)
    assert got == [TranscriptionFailed(7, 1, "scripted", "the script says so")]
    first.fault = "none"
    stream.finalize(final(2))
    await asyncio.sleep(0.1)
    assert got[1:] == [FinalTranscript(7, 2, "100 ms")]
    await stt.close()


@virtual
async def test_a_failure_of_an_older_revision_moves_nothing() -> None:
    first, second = CountingStt(final_delay_s=0.5, fault="fail"), CountingStt()
    stt = await stt_of(first, second)
    got: list[Any] = []
    stream = stt.open(OpenTranscription("c", 7, 0), got.append)
    stream.feed(heard(100))
    stream.finalize(final(1))
    first.fault = "none"
    stream.finalize(final(2))
    await asyncio.sleep(1)
    assert got == [FinalTranscript(7, 2, "100 ms")]
    assert second.finals_asked == 0
    await stt.close()


@virtual
async def test_closing_the_engine_closes_its_utterances() -> None:
    first = ScriptedStt()
    stt = await stt_of(first, ScriptedStt())
    stt.open(OpenTranscription("c", 7, 0), lambda result: None)
    assert first.open_streams == 1
    await stt.close()
    assert first.open_streams == 0


@virtual
async def test_a_reply_that_only_calls_a_tool_is_no_reason_to_ask_the_next() -> None:
    first, second = ScriptedLlm(lambda _: '<tool_call>{"name": "end_call"}</tool_call>'), ScriptedLlm()
    llm = await llm_of(first, second)
    got: list[Any] = []
    llm.generate(ask(), got.append)
    await asyncio.sleep(1)
    assert [type(result).__name__ for result in got] == ["ToolCalled", "GenerationDone"]
    assert second.requests == []
    await llm.close()


@virtual
async def test_a_reply_that_fails_after_it_called_a_tool_is_not_made_again() -> None:
    first = ScriptedLlm(lambda _: '<tool_call>{"name": "end_call"}</tool_call>Goodbye', fault="fail_midway")
    second = ScriptedLlm()
    llm = await llm_of(first, second)
    got: list[Any] = []
    llm.generate(ask(), got.append)
    await asyncio.sleep(1)
    assert [type(result).__name__ for result in got] == ["ToolCalled", "GenerationFailed"], "no tool is called twice"
    assert second.requests == []
    await llm.close()
