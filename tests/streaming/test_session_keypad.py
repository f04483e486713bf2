"""Keys pressed in a call: what they interrupt, and the turn that they become."""

from __future__ import annotations

import pytest

from streaming import events as ev
from streaming import notices as nt
from streaming.config import BargeIn, KeypadRules, SessionConfig, TurnDetection, TurnMode
from streaming.listening import FINAL_BOUND_S
from tests.streaming.scene import Scene, Script

AGENT = SessionConfig(turn=TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=300, barge_in=BargeIn.HOLD))
PLAIN = SessionConfig(turn=TurnDetection())
PATIENT = SessionConfig(turn=TurnDetection(barge_in=BargeIn.IGNORE))
MANUAL = SessionConfig(turn=TurnDetection(mode=TurnMode.MANUAL))
QUIET = SessionConfig(turn=TurnDetection(create_response=False))
LONG = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen."
PAUSE_MS = 2_000


def press(scene: Scene, keys: str) -> None:
    for key in keys:
        scene.feed(ev.Dtmf(key))


def users(scene: Scene) -> list[str]:
    return [text for role, text in scene.texts if role == "user"]


@pytest.mark.parametrize("config", [AGENT, PLAIN, PATIENT])
def test_keys_and_a_pause_are_a_turn_that_is_answered(config: SessionConfig) -> None:
    scene = Scene(config)
    press(scene, "12")
    scene.run(PAUSE_MS - 100)
    assert scene.session.state == "hearing"
    assert scene.kinds() == ["DtmfReceived", "DtmfReceived"]
    press(scene, "3")
    scene.run(PAUSE_MS - 1)
    assert users(scene) == []
    scene.run(3_000)
    assert users(scene) == ["(keypad: 123)"]
    assert scene.texts[-1] == ("assistant", "You said (keypad: 1 2 3)")
    assert [notice.digit for notice in scene.told(nt.DtmfReceived) if isinstance(notice, nt.DtmfReceived)] == [*"123"]
    assert scene.kinds()[3:6] == ["ItemAdded", "ResponseCreated", "OutputStarted"]
    assert len(scene.generations) == 1


def test_the_end_key_is_answered_at_once() -> None:
    scene = Scene(AGENT)
    press(scene, "42#")
    scene.run(1)
    assert users(scene) == ["(keypad: 42)"]
    assert scene.session.state == "thinking"


@pytest.mark.parametrize("config", [AGENT, PLAIN])
def test_the_first_key_ends_what_the_agent_says(config: SessionConfig) -> None:
    scene = Scene(config, Script(reply=lambda messages: LONG))
    scene.say("hello there", wait_ms=2_000)
    press(scene, "1")
    done = scene.told(nt.ResponseDone)[-1]
    assert isinstance(done, nt.ResponseDone)
    assert (done.response.status, done.response.reason) == ("cancelled", "turn_detected")
    sent = len(scene.sent)
    scene.run(PAUSE_MS - 100)
    assert len(scene.sent) == sent
    scene.run(1_000)
    assert len(scene.generations) == 2


def test_where_speech_does_not_interrupt_keys_do_not_and_are_answered_after_it() -> None:
    scene = Scene(PATIENT, Script(reply=lambda messages: LONG))
    scene.say("hello there", wait_ms=2_000)
    press(scene, "1#")
    assert users(scene) == ["hello there", "(keypad: 1)"]
    assert len(scene.generations) == 1
    scene.run(10_000)
    assert len(scene.generations) == 2
    assert scene.generations[1].messages[-1].content == "(keypad: 1)"
    assert [done.response.status for done in scene.told(nt.ResponseDone) if isinstance(done, nt.ResponseDone)] == [
        "completed",
        "completed",
    ]


def test_keys_pressed_while_the_caller_speaks_are_answered_with_the_words() -> None:
    scene = Scene(AGENT)
    scene.speak("my number is")
    press(scene, "5#")
    assert users(scene) == ["(keypad: 5)"]
    scene.silence(4_000)
    assert users(scene) == ["(keypad: 5)", "my number is"]
    live = [generation for generation in scene.generations if generation.epoch not in scene.cancelled]
    assert [generation.messages[-1].content for generation in live] == ["(keypad: 5) my number is"]


def test_a_speculation_that_knew_nothing_of_the_keys_is_not_spoken() -> None:
    scene = Scene(AGENT, Script(score=0.0))
    scene.speak("my number is what it is then")
    scene.silence(320)
    assert len(scene.generations) == 1
    press(scene, "5#")
    scene.silence(9_000)
    assert scene.texts[-1][1].startswith("You said (keypad: 5) my number")
    assert len(scene.told(nt.ResponseDone)) == 1


def test_keys_beside_a_sound_without_words_are_answered_when_it_is_over() -> None:
    scene = Scene(AGENT, Script(stt_ms=None, partial_after_ms=None))
    scene.speak("", ms=400)
    press(scene, "5#")
    scene.silence(320)
    assert not scene.generations
    scene.run(FINAL_BOUND_S * 1000 + 2_000)
    assert scene.texts[-1] == ("assistant", "You said (keypad: 5)")


@pytest.mark.parametrize("config", [MANUAL, QUIET])
def test_a_client_that_answers_by_itself_is_only_told(config: SessionConfig) -> None:
    scene = Scene(config, Script(reply=lambda messages: LONG))
    scene.feed(ev.CreateResponse())
    scene.run(1_000)
    press(scene, "5#")
    assert (scene.session.state == "speaking") == (config is MANUAL)
    scene.run(6_000)
    assert users(scene) == ["(keypad: 5)"]
    assert len(scene.generations) == 1


def test_a_farewell_is_not_cut_by_a_key_and_nothing_follows_it() -> None:
    scene = Scene(AGENT)
    scene.feed(ev.Drain("Goodbye now, and thank you very much for your call."))
    press(scene, "5#")
    scene.run(6_000)
    assert scene.ended == "server_drain"
    assert scene.generations == []
    assert scene.texts[0][1].startswith("Goodbye now, and thank you")


def test_the_idle_prompt_waits_for_an_entry() -> None:
    turn = TurnDetection(idle_timeout_ms=5_000)
    scene = Scene(SessionConfig(turn=turn), Script(reply=lambda messages: "Fine."))
    scene.say("hello there", wait_ms=2_000)
    scene.run(2_000)
    for _ in range(5):
        press(scene, "1")
        scene.run(PAUSE_MS - 100)
    assert scene.told(nt.IdleTimeout) == []
    scene.run(1_000)
    assert users(scene)[-1] == "(keypad: 11111)"


def test_a_defect_forgets_an_entry() -> None:
    scene = Scene(AGENT)
    press(scene, "12")
    scene._perform(scene.session.recover(scene.now))
    scene.run(PAUSE_MS * 2)
    assert scene.texts == []


def test_an_agent_may_wait_longer_for_keys_and_end_them_by_another() -> None:
    config = SessionConfig(turn=AGENT.turn, keypad=KeypadRules(pause_ms=5_000, end_key="*"))
    scene = Scene(config)
    press(scene, "40")
    scene.run(4_900)
    assert users(scene) == []
    press(scene, "7#*")
    assert users(scene) == ["(keypad: 407#)"]
    press(scene, "1")
    scene.feed(ev.Configure(AGENT))  # what has begun ends by the rules it began with
    scene.run(4_900)
    assert len(users(scene)) == 1
    scene.run(200)
    assert users(scene)[-1] == "(keypad: 1)"


def test_a_model_reads_keys_one_by_one() -> None:
    scene = Scene(AGENT)
    press(scene, "4711#")
    scene.run(100)
    assert scene.generations[0].messages[-1].content == "(keypad: 4 7 1 1)"
