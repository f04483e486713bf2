"""Tools: what the model calls acts once, after its words were heard, and never for a reply that was cut."""

from __future__ import annotations

import json

import pytest

from streaming import effects as fx
from streaming import events as ev
from streaming.call_control import MAX_ROUNDS
from streaming.config import BargeIn, ResponseOptions, SessionConfig, TurnDetection, TurnMode
from streaming.reply import HANG_UP_S
from streaming.tools import TOOL_NAMES
from tests.streaming.calling import AGENT, GOODBYE, ended, first_calls, heard_until, results
from tests.streaming.scene import Scene, Script

# --- hanging up -----------------------------------------------------------------------------------------------


def test_the_goodbye_is_heard_to_its_end_before_the_line_closes() -> None:
    scene = Scene(AGENT, first_calls(("end_call", "{}")))
    scene.say("that is all thanks", wait_ms=500)
    assert ended(scene)
    assert scene.ended == "agent_hung_up"
    assert scene.sent[-1].end == 8 * 250 * 24, "all of it left"
    assert scene.ended_at == pytest.approx(heard_until(scene) + HANG_UP_S, abs=0.05)
    assert scene.texts[1] == ("assistant", GOODBYE)
    assert results(scene) == [{"status": "done"}]
    (offered,) = {request.tools for request in scene.generations}
    assert [tool.name for tool in offered] == list(TOOL_NAMES)


@pytest.mark.parametrize("into_ms", [100, 1_000, 1_900, 2_150])
@pytest.mark.parametrize("barge_in", [BargeIn.HOLD, BargeIn.ONSET])
def test_a_barge_in_during_the_goodbye_keeps_the_call(into_ms: int, barge_in: BargeIn) -> None:
    turn = TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=300, barge_in=barge_in)
    config = SessionConfig(turn=turn, tools=("end_call",))
    scene = Scene(config, first_calls(("end_call", "{}")))
    scene.say("that is all thanks", wait_ms=500)
    while not scene.sent:
        scene.silence(32)
    scene.silence(into_ms)
    scene.speak("no wait one more question please")
    scene.silence(4_000)
    assert scene.ended is None
    (result,) = results(scene)
    assert (result["status"], result["error"]) == ("failed", "interrupted")
    assert scene.texts[-1] == ("assistant", "All right then.")
    answered = scene.generations[-1].messages
    called = next(message for message in answered if message.calls)
    assert [message.role for message in answered[answered.index(called) :]] == ["assistant", "tool", "user"]
    scene.silence(20_000)
    assert scene.ended is None, "it does not hang up later either"


@pytest.mark.parametrize("arguments", ["", "null", '{"reason": "done"}', "{oops", "x" * 5_000])
def test_whatever_is_said_beside_it_hanging_up_is_hanging_up(arguments: str) -> None:
    scene = Scene(AGENT, first_calls(("end_call", arguments)))
    scene.say("that is all thanks", wait_ms=500)
    assert ended(scene)
    assert scene.ended == "agent_hung_up"


@pytest.mark.parametrize("words", ["bye", "goodbye", "thank you bye bye", "mm-hm"])
@pytest.mark.parametrize("into_ms", [1_000, 2_150])
def test_a_goodbye_in_return_does_not_keep_the_line_open(words: str, into_ms: int) -> None:
    scene = Scene(AGENT, first_calls(("end_call", "{}")))
    scene.say("that is all thanks", wait_ms=500)
    while not scene.sent:
        scene.silence(32)
    scene.silence(into_ms)
    scene.speak(words, ms=350)
    assert ended(scene)
    assert scene.ended == "agent_hung_up"
    assert len(scene.generations) == 1


def test_a_sound_after_the_goodbye_does_not_have_its_end_said_again() -> None:
    scene = Scene(AGENT, first_calls(("end_call", "{}")))
    scene.say("that is all thanks", wait_ms=500)
    while not scene.sent or scene.sent[-1].end < 8 * 250 * 24:
        scene.silence(32)
    scene.run_until(heard_until(scene) + 0.05)
    scene.speak("", ms=128)
    count = len(scene.sent)
    assert ended(scene)
    assert len(scene.sent) == count


def test_who_hangs_up_without_a_word_says_the_goodbye_of_the_settings() -> None:
    scene = Scene(AGENT, first_calls(("end_call", ""), words=""))
    scene.say("that is all thanks", wait_ms=500)
    assert ended(scene)
    assert scene.texts[1] == ("assistant", AGENT.goodbye)
    assert [request.text for request in scene.syntheses] == [AGENT.goodbye]
    assert scene.sent


def test_without_a_goodbye_the_line_closes_at_once() -> None:
    config = SessionConfig(turn=AGENT.turn, tools=("end_call",), apology="Sorry.")
    scene = Scene(config, first_calls(("end_call", ""), words=""))
    scene.say("that is all thanks", wait_ms=500)
    assert ended(scene, 500)
    assert scene.syntheses == []


def test_a_written_reply_hangs_up_too() -> None:
    config = SessionConfig(audio_output=False, tools=("end_call",))
    scene = Scene(config, first_calls(("end_call", "{}")))
    scene.say("that is all thanks", wait_ms=1_000)
    assert scene.ended == "agent_hung_up"


def test_a_goodbye_that_cannot_be_spoken_does_not_hang_up() -> None:
    script = first_calls(("end_call", "{}"))
    script.tts_fails = 0
    scene = Scene(AGENT, script)
    scene.say("that is all thanks", wait_ms=4_000)
    assert scene.ended is None
    assert [result["error"] for result in results(scene)] == ["reply_failed"]


# --- the line -------------------------------------------------------------------------------------------------


def test_a_transfer_begins_once_its_announcement_was_heard_and_ends_the_call() -> None:
    scene = Scene(AGENT, first_calls(("transfer", '{"target": "Night Desk "}')))
    scene.say("put me through please", wait_ms=500)
    assert ended(scene)
    assert scene.ended == "transferred"
    ((at, effect),) = scene.controls
    assert isinstance(effect, fx.Transfer)
    assert effect.target == "+15551234567"
    assert at >= heard_until(scene) - 0.001
    assert scene.ended_at == pytest.approx(at + 0.5)
    assert len(scene.generations) == 1
    assert results(scene) == [{"status": "done"}]


def test_a_transfer_that_fails_is_told_to_the_model_which_answers_the_caller() -> None:
    script = first_calls(("transfer", '{"target": "sales"}'))
    script.control_fails = "busy"
    scene = Scene(AGENT, script)
    scene.say("put me through please", wait_ms=9_000)
    assert scene.ended is None
    assert results(scene) == [{"status": "failed", "error": "busy", "message": "scripted"}]
    assert [message.role for message in scene.generations[-1].messages] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    assert scene.texts[-1] == ("assistant", "All right then.")


def test_what_the_caller_says_during_a_transfer_is_answered_after_it() -> None:
    script = first_calls(("transfer", '{"target": "sales"}'))
    script.control_ms, script.control_fails = 4_000, "no_answer"
    scene = Scene(AGENT, script)
    scene.say("put me through please", wait_ms=500)
    while not scene.controls:
        scene.silence(32)
    assert scene.session.state == "transferring"
    scene.feed(ev.CreateResponse(ResponseOptions()))
    scene.say("are you still there", wait_ms=2_000)
    assert len(scene.generations) == 1, "nothing is said over it"
    scene.silence(3_000)
    assert len(scene.generations) == 2
    assert [message.role for message in scene.generations[-1].messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "user",
    ]


def test_keys_are_pressed_and_the_model_goes_on() -> None:
    scene = Scene(AGENT, first_calls(("send_dtmf", '{"digits": "1 2#"}'), words=""))
    scene.say("press one for sales", wait_ms=500)
    while not scene.controls:
        scene.silence(32)
    assert scene.session.state == "acting"
    scene.silence(4_000)
    assert [effect for _, effect in scene.controls] == [fx.SendDtmf("call_1_0", "12#")]
    assert scene.texts[-1] == ("assistant", "All right then.")
    assert [message.content for message in scene.generations[1].messages if message.role == "tool"] == [
        '{"status":"done"}'
    ]


def test_several_calls_act_one_after_another_and_what_ends_the_call_last() -> None:
    scene = Scene(
        AGENT,
        first_calls(
            ("transfer", '{"target":"sales"}'),
            ("send_dtmf", '{"digits":"1"}'),
            ("send_dtmf", '{"digits":"2"}'),
            ("end_call", "{}"),
        ),
    )
    scene.say("put me through please", wait_ms=500)
    assert ended(scene)
    times = [at for at, _ in scene.controls]
    assert [type(effect).__name__ for _, effect in scene.controls] == ["SendDtmf", "SendDtmf", "Transfer"]
    assert times[1] >= times[0] + 0.5
    assert times[2] >= times[1] + 0.5
    assert scene.ended == "transferred"
    assert sorted(result.get("error", "") for result in results(scene)) == ["", "", "", "call_ended"]


def test_a_caller_on_hold_is_taken_back_in_time() -> None:
    scene = Scene(AGENT, first_calls(("hold", '{"seconds": 5}')))
    scene.say("can you look it up", wait_ms=500)
    while not scene.controls:
        scene.silence(32)
    scene.silence(2_000)
    assert scene.session.state == "on_hold"
    scene.silence(6_000)
    (put, on), (back, off) = scene.controls
    assert (on, off) == (fx.HoldCaller("call_1_0", on=True), fx.HoldCaller("call_1_0", on=False))
    assert back - put == pytest.approx(5.5)
    assert results(scene) == [{"status": "done"}]
    assert scene.texts[-1] == ("assistant", "All right then.")
    assert scene.generations[-1].messages[-1].role == "tool"


def test_a_caller_who_speaks_or_presses_a_key_is_taken_back_at_once() -> None:
    for act in ("speak", "press"):
        scene = Scene(AGENT, first_calls(("hold", '{"seconds": 200}')))
        scene.say("can you look it up", wait_ms=500)
        while not scene.controls:
            scene.silence(32)
        scene.silence(1_000)
        if act == "speak":
            scene.say("hello I have no time", wait_ms=3_000)
        else:
            scene.feed(ev.Dtmf("#"))
            scene.silence(3_000)
        assert len(scene.controls) == 2
        assert scene.texts[-1] == ("assistant", "All right then.")


def test_a_hold_that_fails_is_over() -> None:
    script = first_calls(("hold", "{}"))
    script.control_fails = "not_supported"
    scene = Scene(AGENT, script)
    scene.say("can you look it up", wait_ms=6_000)
    assert len(scene.controls) == 1
    assert [result["error"] for result in results(scene)] == ["not_supported"]


# --- what is not done -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (("dance", "{}"), "unknown_tool"),
        (("", "<|oops|>"), "unknown_tool"),
        (("transfer", '{"target": "sip:me@evil.example"}'), "unknown_target"),
        (("transfer", "[]"), "invalid_arguments"),
        (("transfer", '{"target":'), "invalid_arguments"),
        (("send_dtmf", '{"digits": "call mum"}'), "invalid_arguments"),
        (("send_dtmf", json.dumps({"digits": "1" * 33})), "invalid_arguments"),
        (("hold", '{"seconds": 100000}'), "invalid_arguments"),
        (("hold", '{"seconds": true}'), "invalid_arguments"),
        (("hold", " " * 100_000), "invalid_arguments"),
        (("x" * 100_000, ""), "unknown_tool"),
        (("hold", "[" * 4_000), "invalid_arguments"),
        (("transfer", "null"), "unknown_target"),
    ],
)
def test_a_call_that_cannot_be_read_is_told_to_the_model(call: tuple[str, str], code: str) -> None:
    scene = Scene(AGENT, first_calls(call, words=""))
    scene.say("do something for me", wait_ms=4_000)
    assert scene.ended is None
    assert scene.controls == []
    assert [result["error"] for result in results(scene)] == [code]
    assert scene.counts["tool_call_refused"] == 1
    assert scene.texts[-1] == ("assistant", "All right then.")


def test_a_tool_that_the_agent_was_not_given_does_nothing() -> None:
    config = SessionConfig(turn=AGENT.turn, tools=("end_call", "transfer"))
    scene = Scene(config, first_calls(("transfer", '{"target": "sales"}'), ("send_dtmf", '{"digits": "1"}')))
    scene.say("do something for me", wait_ms=6_000)
    assert scene.controls == []
    assert [result["error"] for result in results(scene)] == ["unknown_tool"] * 2
    assert [tool.name for tool in scene.generations[0].tools] == ["end_call"], "a transfer needs a target"


def test_a_model_that_only_calls_tools_is_stopped() -> None:
    script = Script(reply=lambda messages: "", calls=lambda request: [("send_dtmf", '{"digits": "1"}')])
    scene = Scene(SessionConfig(turn=AGENT.turn, tools=TOOL_NAMES, apology="Sorry."), script)
    scene.say("press one for ever", wait_ms=20_000)
    assert len(scene.controls) == MAX_ROUNDS + 1
    assert [bool(request.tools) for request in scene.generations] == [True] * (MAX_ROUNDS + 1) + [False]
    assert scene.texts[-1] == ("assistant", "Sorry."), "at last there are words"
    scene.say("go on", wait_ms=1_000)
    assert scene.generations[-1].tools, "the caller's next turn begins anew"


def test_more_calls_than_a_reply_may_have_are_left_out() -> None:
    scene = Scene(AGENT, first_calls(*[("send_dtmf", '{"digits": "1"}')] * 12, words=""))
    scene.say("press one for sales", wait_ms=12_000)
    assert len(scene.controls) == 8
    assert scene.counts["tool_call_dropped"] == 4


def test_a_speculation_calls_nothing_until_it_is_the_reply() -> None:
    turn = TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=900, barge_in=BargeIn.HOLD)
    config = SessionConfig(turn=turn, tools=("send_dtmf",))
    script = Script(reply=lambda messages: "", calls=lambda request: [("send_dtmf", '{"digits": "1"}')])
    scene = Scene(config, script)
    scene.speak("press one for sales")
    scene.silence(800)
    assert len(scene.generations) == 1
    assert scene.controls == []
    script.calls = lambda request: ()
    script.reply = lambda messages: "Fine."
    scene.speak("or better two")
    scene.silence(3_000)
    assert scene.counts["speculation_dropped"] >= 1
    assert scene.controls == [], "what it called died with it"
    assert results(scene) == []

    scene = Scene(config, Script(reply=lambda messages: "", calls=lambda r: [("send_dtmf", '{"digits": "1"}')]))
    scene.say("press one for sales", wait_ms=1_500)
    assert scene.counts["speculation_promoted"] == 1
    assert len({id(effect) for _, effect in scene.controls[:1]}) == 1
