"""One call with scripted engines, in virtual time: whole turns, and that a dead epoch is never heard."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import itertools

import msgspec
import numpy as np
import pytest

from engines.api import EngineHealth, Overload
from engines.llm.scripted import ScriptedLlm
from engines.stt.scripted import ScriptedStt
from gateway.call import MAX_QUEUED_EVENTS, pcm16
from gateway.phrases import Phrase, Phrases
from streaming.config import ResponseOptions, SessionConfig, TurnDetection
from streaming.conversation import Item, PartKind
from streaming.events import (
    CancelResponse,
    ClearInput,
    CommitInput,
    CreateItem,
    CreateResponse,
    DeleteItem,
    HungUp,
    TruncateItem,
)
from streaming.jobs import Priority
from streaming.notices import OutputStarted, Response, SpeechStarted
from tests.gateway.call_rig import (
    AGENT,
    FRAME_MS,
    MANUAL,
    PLAIN,
    QUIET_AGENT,
    CallRig,
    Engines,
    RecordingLeg,
    StampTts,
    hush,
    voice,
)
from tests.virtual_time import virtual

LONG = "One two three four five six seven eight. Nine ten eleven twelve thirteen fourteen fifteen sixteen."
CASES = {"onset": PLAIN, "hold": QUIET_AGENT}


def replying(*lines: str, stt: tuple[str, ...] = ("please stop now", "and then")) -> Engines:
    """Replies in turn, the last one again."""
    said = itertools.chain(lines, itertools.repeat(lines[-1]))
    return Engines(
        stt=ScriptedStt(stt, partial_every_ms=200),
        llm=ScriptedLlm(lambda messages: next(said), first_token_delay_s=0.05),
        tts=StampTts(delay_s=0.05),
    )


def assert_nothing_of_the_dead(leg: RecordingLeg) -> None:
    """No frame of a response leaves after its end, and each frame carries its own response's audio."""
    ended: dict[str, float] = {}
    epochs: dict[str, int] = {}
    for entry in leg.log:
        if isinstance(entry, str):
            continue
        response = getattr(entry, "response", None)
        if isinstance(response, Response) and response.status != "in_progress":
            ended[response.id] = 1.0
        pcm = getattr(entry, "pcm", None)
        if pcm is not None:
            response_id = entry.response_id  # type: ignore[union-attr]
            assert response_id not in ended, "a frame of a dead reply"
            assert int(pcm.min()) == int(pcm.max()), "a frame of two replies"
            assert epochs.setdefault(response_id, entry.epoch) == entry.epoch, "another reply's audio"  # type: ignore[union-attr]
    assert len(set(epochs.values())) == len(epochs)


def replies_heard(leg: RecordingLeg, count: int) -> bool:
    return len({frame.response_id for frame in leg.frames}) >= count


# --- whole turns ----------------------------------------------------------------------------------------------


@virtual
async def test_a_whole_turn() -> None:
    rig = CallRig(PLAIN)
    rig.call.answered()
    await rig.say(800, wait_ms=4_000)
    assert rig.leg.kinds == [
        "SpeechStarted",
        "SpeechStopped",
        "InputCommitted",
        "ItemAdded",
        "TranscriptDelta",
        "TranscriptCompleted",
        "ResponseCreated",
        "OutputStarted",
        "OutputTranscriptDelta",
        "OutputTranscriptDelta",
        "OutputEnded",
        "ResponseDone",
        "TurnRecorded",
    ]
    assert rig.leg.samples() == 4 * 250 * 24
    assert [(entry.role, entry.text) for entry in rig.record.transcript] == [
        ("user", "hello there"),
        ("assistant", "You said: hello there."),
    ]
    turn = rig.record.turns[0]
    assert turn.first_sent_ms is not None
    assert turn.ended_ms is not None
    assert turn.first_sent_ms < turn.ended_ms
    assert turn.failure is None
    # It began to speak as the call began, and for 800 ms; frames of 32 ms say when.
    assert turn.at_ms is not None
    assert turn.spoke_ms is not None
    assert abs(turn.at_ms - 800) <= FRAME_MS
    assert abs(turn.spoke_ms - 800) <= FRAME_MS
    assert rig.record.phase == "waiting"


@virtual
async def test_words_after_a_clause_are_not_urgent_while_there_is_speech() -> None:
    engines = replying(LONG)
    rig = CallRig(PLAIN, engines)
    rig.call.answered()
    await rig.say(800, wait_ms=9_000)
    untils = [until for _, _, until in engines.llm.postponed]
    assert len(untils) >= 2
    assert untils[-1] > untils[0]
    await rig.end()
    assert (rig.record.state, rig.record.cause) == ("ended", "caller_hung_up")


@virtual
async def test_a_greeting_costs_the_engines_nothing() -> None:
    engines = Engines()
    phrases = Phrases()
    await phrases.prepare([Phrase(AGENT.greeting, "tone", 1.0, "en")], engines.tts)
    engines.tts.requests.clear()
    rig = CallRig(AGENT, engines, phrases=phrases)
    answered_at = rig.loop.time()
    rig.call.answered()
    await asyncio.sleep(0.001)
    assert rig.leg.frames[0].at == pytest.approx(answered_at)
    await rig.hear(hush(3_000))
    assert engines.tts.requests == []
    assert rig.leg.samples() == 2 * 250 * 24
    assert [(entry.role, entry.text) for entry in rig.record.transcript] == [("assistant", "Hello there.")]
    await rig.end()


@virtual
async def test_push_to_talk_hears_each_press_alone() -> None:
    engines = Engines(stt=HearingStt())
    rig = CallRig(MANUAL, engines)
    for level in (1_000, 2_000):
        await rig.call.hear(np.full(1_600, 500 + level, np.int16))
        rig.call.handle(ClearInput(rig.call.heard_samples))
        await asyncio.sleep(0.1)  # the detector is behind: its windows come after the clear
        await rig.call.hear(np.full(8_000, level, np.int16))
        rig.call.handle(CommitInput(rig.call.heard_samples))
        rig.call.handle(CreateResponse())
        await asyncio.sleep(5)
    assert [entry.text for entry in rig.record.transcript if entry.role == "user"] == ["1000", "2000"]
    assert [response.status for response in rig.leg.done] == ["completed", "completed"]
    await rig.end()


class HearingStt(ScriptedStt):
    """Says which levels it heard."""

    def open(self, request: object, deliver: object) -> object:  # type: ignore[override]
        stream = super().open(request, deliver)  # type: ignore[arg-type]
        levels: set[int] = set()
        feed = stream.feed

        def hear(pcm: np.ndarray) -> None:
            levels.update(int(level) for level in np.unique(pcm))
            stream._line = " ".join(str(level) for level in sorted(levels))
            feed(pcm)

        stream.feed = hear  # type: ignore[method-assign]
        return stream


# --- stale audio ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", CASES)
@pytest.mark.parametrize("after_ms", [0, 20, 400, 1_900, 3_000])
@virtual
async def test_a_barge_in_silences_a_voice_that_does_not_stop(how: str, after_ms: int) -> None:
    """CASES.md, stale audio: the voice goes on for 500 ms after its cancel; 1.9 s is between the sentences."""
    rig = CallRig(CASES[how], replying(LONG, "Yes of course."))
    await rig.hear(voice(500))
    await rig.until(lambda: rig.leg.frames)
    await rig.hear(hush(after_ms))
    before = len(rig.leg.log)
    await rig.hear(voice(900))
    await rig.hear(hush(4_000))
    later = rig.leg.log[before:]
    onset = next(index for index, entry in enumerate(later) if isinstance(entry, SpeechStarted))
    assert "clear" in later[: onset + 2], "the far end's buffer"
    first, second = rig.leg.done
    assert (first.status, first.reason) == ("cancelled", "turn_detected")
    assert second.status == "completed"
    assert rig.leg.samples(second.id) == 3 * 250 * 24 // (24 * 200) * (24 * 200)
    assert_nothing_of_the_dead(rig.leg)
    assert rig.counted("audio_of_dead_epoch") == rig.engines.tts.delivered_late
    await rig.end()


@pytest.mark.parametrize("how", CASES)
@virtual
async def test_a_barge_in_after_the_last_chunk_was_sent_clears_what_is_not_played(how: str) -> None:
    rig = CallRig(CASES[how], replying("Yes of course."))
    await rig.hear(voice(500))
    await rig.until(lambda: rig.leg.samples() == 600 * 24)
    if how == "onset":
        assert rig.leg.done[0].status == "completed"
    before = len(rig.leg.log)
    await rig.hear(voice(160))
    assert "clear" in rig.leg.log[before:]
    await rig.hear(voice(700))
    await rig.hear(hush(3_000))
    heard = next(entry for entry in rig.record.transcript if entry.role == "assistant")
    assert heard.cut
    assert "Yes" in heard.text
    assert "course" not in heard.text
    assert_nothing_of_the_dead(rig.leg)
    await rig.end()


@virtual
async def test_voices_that_talk_over_each_other_never_mix() -> None:
    """Ten turns, each cutting the one before, with a voice that is always late to stop."""
    rig = CallRig(PLAIN, replying(LONG, stt=("no", "wait", "stop it")))
    for number in range(10):
        await rig.hear(voice(300))
        await rig.until(functools.partial(replies_heard, rig.leg, number + 1))
        await rig.hear(hush(37 * number))
    await rig.hear(voice(300))
    await asyncio.sleep(1)
    assert_nothing_of_the_dead(rig.leg)
    assert rig.engines.tts.delivered_late > 0
    await rig.end()
    assert not rig.call._playout._tracks


@virtual
async def test_a_cancel_by_the_client_silences_at_once() -> None:
    rig = CallRig(PLAIN, replying(LONG))
    rig.call.handle(CreateResponse())
    await asyncio.sleep(0.5)
    rig.call.handle(CancelResponse())
    rig.call.handle(CreateResponse())
    await asyncio.sleep(1)
    rig.call.handle(CancelResponse())
    await asyncio.sleep(2)
    assert [response.status for response in rig.leg.done] == ["cancelled", "cancelled"]
    assert_nothing_of_the_dead(rig.leg)
    await rig.end()


# --- hold and release -----------------------------------------------------------------------------------------


@virtual
async def test_a_backchannel_holds_and_lets_go_on_from_a_moment_before() -> None:
    rig = CallRig(QUIET_AGENT, replying(LONG, stt=("tell me", "mm-hm")))
    await rig.hear(voice(500))
    await rig.until(lambda: rig.leg.samples() > 1_000 * 24)
    await rig.hear(voice(200))
    held = rig.leg.samples()
    await rig.hear(hush(96))
    assert rig.leg.samples() == held
    await rig.until(lambda: rig.leg.done)
    assert [response.status for response in rig.leg.done] == ["completed"]
    whole = 2 * 2_000 * 24
    again = rig.leg.samples() - whole
    assert 0 < again <= 300 * 24 + 300 * 24, "what the far end dropped, and a rewind to a dip"
    assert rig.counted("barge_in_released") == 1
    assert_nothing_of_the_dead(rig.leg)
    await rig.end()


@virtual
async def test_a_sound_before_there_is_any_audio_holds_nothing_back() -> None:
    engines = replying("Yes of course.", stt=("tell me", "mm-hm"))
    engines.tts.delay_s = 1.0
    rig = CallRig(QUIET_AGENT, engines)
    await rig.hear(voice(500))
    await rig.until(lambda: engines.tts.requests)
    await rig.hear(voice(160))
    await rig.until(lambda: rig.leg.done)
    assert [response.status for response in rig.leg.done] == ["completed"]
    assert rig.leg.samples() == 600 * 24
    await rig.end()


@virtual
async def test_a_far_end_that_is_congested_is_waited_for() -> None:
    rig = CallRig(PLAIN, replying(LONG))
    rig.call.handle(CreateResponse())
    await asyncio.sleep(0.5)
    rig.leg.congested = True
    await asyncio.sleep(0.05)
    before = rig.leg.samples()
    await asyncio.sleep(10)
    assert rig.leg.samples() == before
    rig.leg.congested = False
    rig.call.writable()
    await asyncio.sleep(0.001)
    assert rig.leg.samples() == before + 300 * 24, "no burst"
    await asyncio.sleep(10)
    assert rig.leg.done[0].status == "completed"
    assert rig.leg.samples() == 2 * 2_000 * 24
    await rig.end()


# --- the record -----------------------------------------------------------------------------------------------


@virtual
async def test_the_record_follows_what_the_client_truncates_and_deletes() -> None:
    rig = CallRig(msgspec.structs.replace(PLAIN, audio_output=True))
    for number in range(12):
        rig.call.handle(CreateItem(Item(f"item_u{number}", "user", PartKind.INPUT_TEXT, f"words {number}")))
        rig.call.handle(CreateResponse())
        await asyncio.sleep(3)
    first = next(notice.item.id for notice in rig.leg.notices if isinstance(notice, OutputStarted))
    rig.call.handle(TruncateItem(first, 0, 600))
    texts = {entry.item_id: (entry.text, entry.cut) for entry in rig.record.transcript}
    assert texts[first] == ("You said:", True)
    rig.call.handle(TruncateItem(first, 0, 0))
    assert first not in {entry.item_id for entry in rig.record.transcript}
    rig.call.handle(DeleteItem("item_u3"))
    assert "item_u3" not in {entry.item_id for entry in rig.record.transcript}
    await rig.end()


@virtual
async def test_a_client_in_charge_overrides_one_response() -> None:
    rig = CallRig(SessionConfig(voice="tone", turn=TurnDetection(create_response=False)))
    options = ResponseOptions(instructions="x", audio_output=False, input_text=(("user", "blue"),))
    rig.call.handle(CreateResponse(options))
    await asyncio.sleep(1)
    assert rig.leg.frames == []
    assert [(entry.role, entry.text) for entry in rig.record.transcript] == [("assistant", "You said: blue.")]
    await rig.end()


@virtual
async def test_a_hang_up_is_taken_even_by_a_full_queue() -> None:
    rig = CallRig(PLAIN)
    rig.call._busy = True
    for _ in range(MAX_QUEUED_EVENTS + 5):
        rig.call.handle(ClearInput(0))
    rig.call.handle(HungUp("caller_hung_up"))
    rig.call._busy = False
    assert rig.counted("event_queue_full") == 5
    rig.call.handle(HungUp("later"))
    assert rig.record.cause == "caller_hung_up"


def test_samples_of_the_wire_are_little_endian() -> None:
    assert pcm16(b"\x01\x00\xff\xff\x00\x80").tolist() == [1, -1, -32768]


@virtual
async def test_under_load_it_neither_speculates_nor_begins_with_a_long_clause() -> None:
    config = msgspec.structs.replace(QUIET_AGENT, turn=TurnDetection(silence_duration_ms=300))
    engines = Engines(llm=ScriptedLlm(lambda messages: "one two three four five six seven eight nine ten eleven."))
    rig = CallRig(config, engines)
    rig.call.answered()
    rig.call.load_changed(Overload.SHORT_CLAUSES)
    rig.call.load_changed(Overload.SHORT_CLAUSES)
    await rig.say(800, wait_ms=6_000)
    assert [request.priority for request in engines.llm.requests] == [Priority.DECODE]
    assert engines.tts.requests[0].text == "one two three four five six"
    rig.call.load_changed(Overload.NONE)
    await rig.say(800, wait_ms=6_000)
    assert engines.llm.requests[-1].priority is Priority.SPECULATIVE


@virtual
async def test_a_call_that_comes_under_load_begins_so() -> None:
    engines = Engines()
    overloaded = dataclasses.replace(engines.set, health=lambda: EngineHealth(True, overload=Overload.NO_SPECULATION))
    rig = CallRig(msgspec.structs.replace(QUIET_AGENT, turn=TurnDetection(silence_duration_ms=300)), engines)
    rig.call._engines = overloaded
    rig.call.answered()
    await rig.say(800, wait_ms=4_000)
    assert [request.priority for request in engines.llm.requests] == [Priority.DECODE]
