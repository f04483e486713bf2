"""Engines that raise, and defects: one turn may be lost, nothing else, nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import structlog

from engines.llm.scripted import ScriptedLlm
from engines.stt.scripted import ScriptedStt
from engines.tts.scripted import ScriptedTts
from gateway.guarded import ENGINE_RAISED
from gateway.phrases import Phrase, Phrases
from streaming.events import CommitInput, CreateResponse
from streaming.jobs import Synthesis, SynthesisChunk, Synthesize
from streaming.notices import CommandFailed, ResponseCreated, SpeechStarted, TranscriptFailed
from tests.gateway.call_rig import (
    MANUAL,
    PLAIN,
    QUIET_AGENT,
    CallRig,
    CountingVad,
    Engines,
    hush,
    voice,
)
from tests.virtual_time import virtual

LONG = "One two three four five six seven eight. Nine ten eleven twelve thirteen fourteen fifteen sixteen."
APOLOGETIC = msgspec.structs.replace(PLAIN, apology="Sorry about that.")


def breaks(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("an engine that breaks down")


class BreakingStt(ScriptedStt):
    """The method of its stream named ``broken`` raises."""

    broken = ""

    def open(self, request: Any, deliver: Any) -> Any:
        stream = super().open(request, deliver)
        if self.broken:
            setattr(stream, self.broken, breaks)
        return stream


class BreakingVad(CountingVad):
    broken = ""

    def open(self, deliver: Any) -> Any:
        stream = super().open(deliver)
        if self.broken:
            setattr(stream, self.broken, breaks)
        return stream


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    """What would be logged: nobody needs to see these tracebacks."""
    with structlog.testing.capture_logs() as captured:
        yield captured


# --- engines that raise ---------------------------------------------------------------------------------------


def break_method(engine: Any, name: str) -> None:
    setattr(engine, name, breaks)


def mend(engine: Any, name: str) -> None:
    delattr(engine, name)


@pytest.mark.parametrize(("kind", "method"), [("llm", "generate"), ("tts", "synthesize")])
@virtual
async def test_a_reply_whose_engine_raises_fails_with_a_code_and_the_next_is_well(kind: str, method: str) -> None:
    engines = Engines()
    phrases = Phrases()
    await phrases.prepare([Phrase(APOLOGETIC.apology, "tone", 1.0, "en")], engines.tts)
    rig = CallRig(APOLOGETIC, engines, phrases=phrases)
    break_method(getattr(engines, kind), method)
    await rig.say(800, wait_ms=4_000)
    assert [(response.status, response.error_code) for response in rig.leg.done] == [
        ("failed", ENGINE_RAISED),
        ("completed", None),
    ]
    assert rig.leg.samples() == 3 * 250 * 24, "the apology is heard whatever is down"
    assert rig.counted(ENGINE_RAISED) == 1
    mend(getattr(engines, kind), method)
    await rig.say(800, wait_ms=4_000)
    assert rig.leg.done[-1].status == "completed"
    assert rig.counted("defect") == 0
    await rig.end()


@pytest.mark.parametrize("broken", ["feed", "finalize"])
@virtual
async def test_words_that_cannot_be_had_are_an_apology_and_no_leak(broken: str) -> None:
    stt = BreakingStt()
    stt.broken = broken
    rig = CallRig(APOLOGETIC, Engines(stt=stt))
    await rig.say(800, wait_ms=4_000)
    assert [notice.code for notice in rig.leg.notices if isinstance(notice, CommandFailed)] == [ENGINE_RAISED]
    assert [response.status for response in rig.leg.done] == ["completed"]
    assert stt.open_streams == 0
    stt.broken = ""
    await rig.say(800, wait_ms=4_000)
    assert rig.record.transcript[-1].text == "You said: hello there."
    await rig.end()
    assert stt.open_streams == 0


@virtual
async def test_a_transcriber_that_takes_no_utterance() -> None:
    engines = Engines()
    break_method(engines.stt, "open")
    rig = CallRig(PLAIN, engines)
    await rig.say()
    assert "CommandFailed" in rig.leg.kinds
    mend(engines.stt, "open")
    await rig.say(800, wait_ms=4_000)
    assert [response.status for response in rig.leg.done] == ["completed"]
    await rig.end()


@virtual
async def test_a_push_to_talk_turn_whose_transcriber_raises_is_told_as_failed() -> None:
    stt = BreakingStt()
    stt.broken = "finalize"
    rig = CallRig(MANUAL, Engines(stt=stt))
    await rig.call.hear(voice(500))
    rig.call.handle(CommitInput(rig.call.heard_samples))
    await asyncio.sleep(1)
    failed = [notice for notice in rig.leg.notices if isinstance(notice, TranscriptFailed)]
    assert [notice.code for notice in failed] == [ENGINE_RAISED]
    await rig.end()


@virtual
async def test_an_end_of_turn_model_that_raises_falls_back_to_silence() -> None:
    engines = Engines()
    break_method(engines.turn, "score")
    rig = CallRig(QUIET_AGENT, engines)
    await rig.say(800, wait_ms=5_000)
    assert [response.status for response in rig.leg.done] == ["completed"]
    assert rig.counted(ENGINE_RAISED) == 1
    await rig.end()


@virtual
async def test_a_detector_that_raises_costs_only_what_it_did_not_hear() -> None:
    vad = BreakingVad()
    rig = CallRig(PLAIN, Engines(vad=vad))
    feed = rig.call._caller._vad.feed
    rig.call._caller._vad.feed = breaks  # type: ignore[method-assign]
    await rig.hear(hush(320))
    rig.call._caller._vad.feed = feed  # type: ignore[method-assign]
    assert rig.counted(ENGINE_RAISED) == 10
    await rig.say(800, wait_ms=4_000)
    assert [response.status for response in rig.leg.done] == ["completed"]
    await rig.end()


@pytest.mark.parametrize(("kind", "method"), [("llm", "cancel"), ("tts", "cancel")])
@virtual
async def test_a_cancel_that_raises_silences_all_the_same(kind: str, method: str) -> None:
    engines = Engines(llm=ScriptedLlm(lambda messages: LONG))
    rig = CallRig(PLAIN, engines)
    await rig.hear(voice(500))
    await rig.until(lambda: rig.leg.frames)
    break_method(getattr(engines, kind), method)
    await rig.hear(voice(300))
    first = rig.leg.done[0]
    before = rig.leg.samples(first.id)
    await rig.hear(hush(2_000))
    assert (first.status, first.reason) == ("cancelled", "turn_detected")
    assert rig.leg.samples(first.id) == before
    other = "tts" if kind == "llm" else "llm"
    assert getattr(engines, other).cancelled, "the other engine was told"
    await rig.end()


@virtual
async def test_everything_that_can_raise_at_the_end_does_and_the_call_ends() -> None:
    vad = BreakingVad()
    vad.broken = "close"
    engines = Engines(vad=vad, stt=BreakingStt())
    engines.stt.broken = "close"
    break_method(engines.llm, "forget")
    rig = CallRig(PLAIN, engines)
    await rig.hear(voice(500))
    rig.call.hang_up("caller_hung_up")
    assert rig.call.finished.is_set()
    assert rig.record.cause == "caller_hung_up"
    assert rig.counted(ENGINE_RAISED) == 3


class HalfSampleTts(ScriptedTts):
    def synthesize(self, request: Synthesize, deliver: Callable[[Synthesis], None]) -> None:
        deliver(SynthesisChunk(request.epoch, request.segment, b"abc", 24_000, last=True))


@virtual
async def test_audio_that_is_none_fails_the_reply() -> None:
    rig = CallRig(PLAIN, Engines(tts=HalfSampleTts()))
    await rig.say(800, wait_ms=2_000)
    assert [(response.status, response.error_code) for response in rig.leg.done] == [("failed", "invalid_audio")]
    assert [turn.failure for turn in rig.record.turns] == ["invalid_audio"]
    await rig.end()
    assert not rig.call._playout._tracks


@virtual
async def test_a_voice_that_yields_nothing_is_a_reply_of_no_words() -> None:
    class Mute(ScriptedTts):
        def synthesize(self, request: Synthesize, deliver: Callable[[Synthesis], None]) -> None:
            deliver(SynthesisChunk(request.epoch, request.segment, b"", 24_000, last=True))

    rig = CallRig(PLAIN, Engines(tts=Mute()))
    await rig.say(800, wait_ms=2_000)
    assert len(rig.leg.done) == 1
    assert rig.leg.frames == []
    await rig.say(800, wait_ms=2_000)
    assert len(rig.leg.done) == 2
    await rig.end()


@virtual
async def test_of_two_calls_the_one_with_failing_engines_fails_alone() -> None:
    """One set of engines; every job of one call raises, fails or never comes, the other call notices nothing."""

    class Choosy(ScriptedLlm):
        def generate(self, request: Any, deliver: Any) -> None:
            if request.call == victim.call.id:
                breaks()
            super().generate(request, deliver)

    engines = Engines(llm=Choosy())
    victim, neighbour = CallRig(PLAIN, engines), CallRig(PLAIN, engines)
    alone = CallRig(PLAIN, Engines())

    async def three_turns(rig: CallRig) -> None:
        for _ in range(3):
            await rig.say(800, wait_ms=4_000)

    await asyncio.gather(three_turns(victim), three_turns(neighbour), three_turns(alone))
    assert [response.status for response in victim.leg.done] == ["failed"] * 3
    assert neighbour.leg.kinds == alone.leg.kinds
    assert [frame.at for frame in neighbour.leg.frames] == [frame.at for frame in alone.leg.frames]
    for rig in (victim, neighbour, alone):
        await rig.end()


@virtual
async def test_a_farewell_that_cannot_be_spoken_ends_the_call_all_the_same() -> None:
    rig = CallRig(PLAIN)
    break_method(rig.engines.tts, "synthesize")
    rig.call.drain()
    await asyncio.sleep(0.4)
    assert rig.record.cause == "server_drain"


# --- defects of our own ---------------------------------------------------------------------------------------


def raises_once(rig: CallRig, event: type) -> None:
    """The session's handler of this event raises, once."""
    handlers = rig.call._session._handlers
    handler = handlers[event]

    def raises(*_: Any) -> None:
        handlers[event] = handler
        raise ZeroDivisionError("a defect")

    handlers[event] = raises


@virtual
async def test_a_defect_ends_the_turn_and_not_the_call() -> None:
    engines = Engines(llm=ScriptedLlm(lambda messages: LONG))
    rig = CallRig(PLAIN, engines, strict=False)
    await rig.hear(voice(500))
    await rig.until(lambda: rig.leg.frames)
    raises_once(rig, CreateResponse)
    rig.call.handle(CreateResponse())
    assert [(response.status, response.error_code) for response in rig.leg.done] == [("failed", "internal_error")]
    assert "clear" in rig.leg.log
    frames = len(rig.leg.frames)
    await rig.hear(hush(1_000))
    assert len(rig.leg.frames) == frames
    assert rig.counted("defect") == 1
    engines.llm = None
    await rig.say(800, wait_ms=9_000)
    assert rig.leg.done[-1].status == "completed"
    await rig.end()


@virtual
async def test_a_defect_in_mid_speech_leaks_no_stream() -> None:
    rig = CallRig(PLAIN, strict=False)
    await rig.hear(voice(500))
    assert rig.engines.stt.open_streams == 1
    raises_once(rig, CreateResponse)
    rig.call.handle(CreateResponse())
    assert rig.engines.stt.open_streams == 0
    assert not rig.call._caller._streams
    await rig.hear(hush(500))
    await rig.say(800, wait_ms=4_000)
    assert rig.leg.done[-1].status == "completed"
    await rig.end()


@virtual
async def test_in_tests_a_defect_is_raised_where_it_happens_and_the_call_can_still_end() -> None:
    rig = CallRig(PLAIN)
    raises_once(rig, CreateResponse)
    with pytest.raises(ZeroDivisionError):
        rig.call.handle(CreateResponse())
    await rig.end()
    assert rig.call.finished.is_set()


@virtual
async def test_a_session_that_cannot_recover_ends_its_call() -> None:
    rig = CallRig(PLAIN, strict=False)
    raises_once(rig, CreateResponse)
    rig.call._session._answering.abandon = breaks  # type: ignore[method-assign]
    await rig.hear(voice(500))
    rig.call.handle(CreateResponse())
    assert rig.record.cause == "internal_error"
    assert rig.call.finished.is_set()
    await asyncio.sleep(1)
    assert rig.engines.vad.open_streams == 0
    assert rig.engines.stt.open_streams == 0
    assert rig.engines.llm.forgotten == [rig.call.id]


@pytest.mark.parametrize("notice", [ResponseCreated, SpeechStarted])
@virtual
async def test_a_leg_that_raises_loses_a_notice_and_not_what_follows(notice: Any) -> None:
    rig = CallRig(PLAIN, strict=False)
    rig.leg.notify_fails = notice
    await rig.say(800, wait_ms=4_000)
    assert rig.counted("defect") == 1
    assert rig.leg.samples() == 4 * 250 * 24
    assert rig.leg.done[0].status == "completed"
    await rig.end()
