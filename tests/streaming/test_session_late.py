"""What comes late, or not at all, while a call goes on: windows, words, and the effects of a defect."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from streaming import effects as fx
from streaming import events as ev
from streaming import notices as nt
from streaming.config import BargeIn, SessionConfig, TurnDetection, TurnMode
from streaming.jobs import OpenTranscription
from tests.streaming.scene import WINDOW, Scene, Script

LONG = "One two three four five six seven eight nine ten. " * 3
HOLD = SessionConfig(
    turn=TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=100, barge_in=BargeIn.HOLD, speculate=False)
)
MANUAL = SessionConfig(turn=TurnDetection(mode=TurnMode.MANUAL, speculate=False))


def starts(scene: Scene) -> list[int]:
    return [effect.start_samples for effect in scene.effects if isinstance(effect, OpenTranscription)]


def test_windows_of_audio_that_was_cleared_do_not_bring_it_back() -> None:
    scene = Scene(MANUAL)
    scene.feed(ev.InputAppended(10_000))
    scene.feed(ev.ClearInput(10_000))
    scene.feed(ev.VoiceScored(0.9, 9_728))
    scene.feed(ev.InputAppended(12_000))
    assert starts(scene) == [0, 10_000]


def test_windows_of_a_turn_that_was_committed_are_no_part_of_the_next() -> None:
    scene = Scene(MANUAL)
    scene.feed(ev.InputAppended(10_000))
    scene.feed(ev.CommitInput(10_000))
    scene.feed(ev.VoiceScored(0.9, 5_120))
    scene.feed(ev.InputAppended(12_000))
    assert starts(scene) == [0, 10_000]


def test_speech_that_was_cleared_before_it_was_scored_is_not_heard() -> None:
    scene = Scene(SessionConfig())
    scene.feed(ev.ClearInput(20 * WINDOW))
    for number in range(1, 21):
        scene.feed(ev.VoiceScored(0.9, number * WINDOW))
    assert scene.told(nt.SpeechStarted) == []
    for number in range(21, 24):
        scene.feed(ev.VoiceScored(0.9, number * WINDOW))
    assert starts(scene) == [20 * WINDOW]


@pytest.mark.parametrize("spoken_ms", range(96, 512, 32))
@pytest.mark.parametrize("silence_ms", [100, 200, 300])
def test_a_held_reply_is_decided_on_in_time_when_the_words_are_late(silence_ms: int, spoken_ms: int) -> None:
    """The turn was over before the hold's bound, its words come three seconds later: no timer may spin meanwhile."""
    turn = msgspec.structs.replace(HOLD.turn, silence_duration_ms=silence_ms)
    script = Script(reply=lambda messages: LONG, partial_after_ms=None)
    scene = Scene(msgspec.structs.replace(HOLD, turn=turn), script)
    scene.say("tell me", wait_ms=1_500)
    script.stt_ms = 3_000.0
    before = len(scene.effects)
    held_from = scene.now
    scene.speak("stop it", spoken_ms)
    scene.silence(1_000)
    assert scene.session.state != "held"
    assert any(heard.at > held_from + 0.9 for heard in scene.sent) or scene.told(nt.ResponseDone)
    timers = [effect for effect in scene.effects[before:] if isinstance(effect, fx.SetTimer)]
    assert len(timers) < 20
    scene.silence(4_000)
    first = scene.told(nt.ResponseDone)[0]
    assert isinstance(first, nt.ResponseDone)
    assert first.response.status == "cancelled", "the words end it, however late they are"


@pytest.mark.parametrize(
    ("script", "config", "status"),
    [
        (Script(llm_fails_after=4), SessionConfig(), "failed"),
        (Script(tts_fails=1, reply=lambda messages: LONG), SessionConfig(), "failed"),
        (Script(), SessionConfig(), "completed"),
    ],
)
def test_the_audio_of_every_reply_is_let_go(script: Script, config: SessionConfig, status: str) -> None:
    scene = Scene(config, script)
    scene.say("hello there you all", wait_ms=20_000)
    done = scene.told(nt.ResponseDone)[0]
    assert isinstance(done, nt.ResponseDone)
    assert done.response.status == status
    closed = [effect.epoch for effect in scene.effects if isinstance(effect, fx.ClosePlayout)]
    assert closed == [effect.epoch for effect in scene.effects if isinstance(effect, fx.OpenPlayout)]


def raising(scene: Scene, name: str) -> None:
    def raises(*_: object, **__: object) -> None:
        raise ZeroDivisionError("scripted")

    setattr(scene.session._answering, name, raises)


def defect(scene: Scene, cause: Callable[[], object]) -> list[fx.Effect]:
    with pytest.raises(ZeroDivisionError):
        cause()
    effects = scene.session.recover(scene.now)
    scene._perform(effects)
    return effects


def test_what_was_emitted_before_a_defect_is_done_all_the_same() -> None:
    scene = Scene(HOLD)
    raising(scene, "hold")
    scene.feed(ev.VoiceScored(0.9, WINDOW))
    effects = defect(scene, lambda: scene.feed(ev.VoiceScored(0.9, 2 * WINDOW)))
    kinds = [type(effect).__name__ for effect in effects]
    assert kinds[:3] == ["OpenTranscription", "Count", "CloseTranscription"]
    assert scene.open_streams == set()


def test_a_reply_ended_by_a_defect_keeps_in_the_context_what_was_heard() -> None:
    scene = Scene(SessionConfig(), Script(reply=lambda messages: LONG))
    scene.say("tell me", wait_ms=2_000)
    raising(scene, "interrupt")
    scene.feed(ev.VoiceScored(0.9, scene.seen + WINDOW))
    defect(scene, lambda: scene.feed(ev.VoiceScored(0.9, scene.seen + 2 * WINDOW)))
    item = scene.session.conversation.items[-1]
    assert (item.role, item.status, item.cut) == ("assistant", "incomplete", True)
    assert item.text
    assert LONG.startswith(item.text)


def test_a_defect_in_the_farewell_ends_the_call() -> None:
    scene = Scene(SessionConfig())
    scene.feed(ev.Drain("Goodbye."))
    raising(scene, "advance")

    def cause() -> None:
        try:
            scene.feed(ev.AudioQueued(1, 0, 480, False))
        finally:
            del scene.session._answering.advance

    defect(scene, cause)
    assert scene.ended == "server_drain"


def test_a_turn_that_waits_for_its_words_keeps_its_place_before_one_that_is_committed() -> None:
    config = SessionConfig(turn=TurnDetection(silence_duration_ms=100, speculate=False))
    scene = Scene(config, Script(stt_ms=2_000.0))
    scene.speak("first", 500)
    scene.silence(200)
    scene.feed(ev.Configure(MANUAL))
    scene.feed(ev.InputAppended(scene.seen + 8_000))
    scene.feed(ev.CommitInput(scene.seen + 8_000))
    scene.run(4_000)
    committed = [notice.item_id for notice in scene.told(nt.InputCommitted) if isinstance(notice, nt.InputCommitted)]
    started = scene.told(nt.SpeechStarted)[0]
    assert isinstance(started, nt.SpeechStarted)
    assert [item.id for item in scene.session.conversation.items] == committed
    assert committed[0] == started.item_id
    assert len(committed) == len(scene.told(nt.TranscriptCompleted)) == 2


def test_a_greeting_that_comes_after_the_client_asked_for_a_response_is_not_said_over_it() -> None:
    scene = Scene(msgspec.structs.replace(HOLD, greeting="Hello there."))
    scene.feed(ev.CreateResponse())
    scene.feed(ev.Answered())
    scene.run(5_000)
    done = [notice.response.status for notice in scene.told(nt.ResponseDone) if isinstance(notice, nt.ResponseDone)]
    assert done == ["completed"]
    assert len(scene.told(nt.ResponseCreated)) == 1
