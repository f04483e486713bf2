"""Engines that fail, stall or lie, and servers that stop (CASES.md: engine faults, slow engine, stop)."""

import msgspec
import pytest

from streaming import events as ev
from streaming import notices as nt
from streaming.config import BargeIn, SessionConfig, TurnDetection, TurnMode
from streaming.effects import CancelGeneration
from streaming.jobs import SynthesisFailed, Token
from streaming.reply import AHEAD_S, FIRST_TOKEN_S, MAX_REPLY_CHARS, STEP_S
from tests.streaming.scene import Scene, Script

APOLOGY = "Sorry, please say that again."
AGENT = SessionConfig(
    apology=APOLOGY,
    turn=TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=300, barge_in=BargeIn.HOLD, speculate=False),
)
PLAIN = SessionConfig(turn=TurnDetection(speculate=False))
LONG = "One two three four five six. " * 20


def done(scene: Scene) -> list[nt.Response]:
    return [notice.response for notice in scene.told(nt.ResponseDone) if isinstance(notice, nt.ResponseDone)]


def test_a_model_that_fails_before_its_first_word_is_an_apology() -> None:
    scene = Scene(AGENT, Script(llm_fails_after=0))
    scene.say("hello there", wait_ms=6_000)
    assert [response.status for response in done(scene)] == ["failed", "completed"]
    assert done(scene)[0].error_code == "engine_error"
    assert scene.texts[-1] == ("assistant", APOLOGY)
    scene.script.llm_fails_after = None
    scene.say("hello again", wait_ms=4_000)
    assert scene.texts[-1] == ("assistant", "You said hello again")


def test_a_plain_client_gets_the_failure_and_no_words_of_ours() -> None:
    scene = Scene(PLAIN, Script(llm_fails_after=0))
    scene.say("hello there", wait_ms=6_000)
    assert [response.status for response in done(scene)] == ["failed"]
    assert scene.texts == [("user", "hello there"), ("assistant", "")]


def test_a_model_that_fails_in_mid_reply_leaves_what_was_heard() -> None:
    scene = Scene(
        PLAIN, Script(reply=lambda messages: "First part here, second part here.", llm_fails_after=4, token_ms=100)
    )
    scene.say("hello there", wait_ms=6_000)
    assert done(scene)[0].status == "failed"
    assert scene.texts[-1] == ("assistant", "First part here,")
    assert scene.session.conversation.items[-1].cut
    ended = [notice for notice in scene.told(nt.OutputEnded) if isinstance(notice, nt.OutputEnded)]
    assert ended[0].text == "First part here,"


def test_a_voice_that_fails_is_an_apology_and_a_failing_apology_is_the_end_of_it() -> None:
    scene = Scene(AGENT, Script(tts_fails=0))
    scene.say("hello there", wait_ms=6_000)
    assert [response.status for response in done(scene)] == ["failed", "failed"]
    assert done(scene)[0].error_code == "bad_audio"
    assert scene.ended is None


def test_a_voice_that_fails_inside_a_segment_still_ends_the_response() -> None:
    """A piece too short for a frame stays behind in the pacer."""
    scene = Scene(AGENT, Script(tts_ms=None))
    scene.say("hello there", wait_ms=1_500)
    epoch = scene.syntheses[0].epoch
    scene.feed(ev.AudioQueued(epoch, 0, 24 * 100 + 7, False))
    scene.feed(ev.AudioSent(epoch, 24 * 100))
    scene.feed(SynthesisFailed(epoch, 0, "bad_audio", "x"))
    scene.script.tts_ms = 80
    scene.silence(6_000)
    assert [response.status for response in done(scene)] == ["failed", "completed"]


def test_an_empty_piece_is_no_first_sound() -> None:
    scene = Scene(AGENT, Script(tts_ms=None))
    scene.say("hello there", wait_ms=1_500)
    epoch = scene.syntheses[0].epoch
    scene.feed(ev.AudioQueued(epoch, 0, 0, False))
    scene.silence(100)
    scene.feed(ev.AudioQueued(epoch, 0, 4_800, True))
    scene.feed(ev.AudioSent(epoch, 4_800))
    scene.silence(1_000)
    (turn,) = scene.records.values()
    assert turn.first_audio_ms is not None
    assert turn.first_clause_ms is not None
    assert turn.first_audio_ms >= turn.first_clause_ms + 100


def test_a_response_wanted_while_an_apology_is_made_comes_after_it() -> None:
    scene = Scene(AGENT, Script(stt_ms=None, partial_after_ms=None))
    scene.say("hello there", wait_ms=1_500)
    scene.feed(ev.CreateResponse())
    scene.silence(12_000)
    assert [response.status for response in done(scene)] == ["completed", "completed"]
    scene.feed(ev.CreateResponse(event_id="e1"))
    codes = [notice.code for notice in scene.told(nt.CommandFailed) if isinstance(notice, nt.CommandFailed)]
    assert codes == ["transcription_timeout"]


def test_an_empty_reply_is_a_failure() -> None:
    scene = Scene(PLAIN, Script(reply=lambda messages: ""))
    scene.say("hello there", wait_ms=3_000)
    assert done(scene)[0].error_code == "empty_reply"


def test_a_transcriber_that_fails_is_an_apology() -> None:
    scene = Scene(AGENT, Script(stt_fails="overloaded", partial_after_ms=None))
    scene.say("hello there", wait_ms=4_000)
    assert scene.texts == [("assistant", APOLOGY)]
    assert [notice.fault for notice in scene.told(nt.CommandFailed) if isinstance(notice, nt.CommandFailed)] == [
        "server"
    ]
    assert [notice.code for notice in scene.told(nt.CommandFailed) if isinstance(notice, nt.CommandFailed)] == [
        "overloaded"
    ]


def test_a_model_that_never_answers_is_given_up() -> None:
    scene = Scene(PLAIN, Script(first_token_ms=10_000_000))
    scene.say("hello there", wait_ms=1_000)
    scene.run(FIRST_TOKEN_S * 1000 + 100)
    assert done(scene)[0].error_code == "engine_timeout"


def test_a_voice_that_never_answers_is_given_up() -> None:
    scene = Scene(PLAIN, Script(tts_ms=None))
    scene.say("hello there", wait_ms=1_000)
    scene.run(STEP_S * 1000 + 500)
    assert done(scene)[0].error_code == "engine_timeout"


def test_a_speculation_that_never_answers_is_dropped() -> None:
    turn = TurnDetection(silence_duration_ms=30_000)
    scene = Scene(msgspec.structs.replace(PLAIN, turn=turn), Script(tts_ms=None))
    scene.speak("hello there")
    scene.silence(400)
    assert len(scene.generations) == 1
    for _ in range(40):
        scene.silence(512)
        if scene.generations[0].epoch in scene.cancelled:
            break
    assert scene.counts["speculation_dropped"] == 1


def test_a_model_that_stalls_has_its_words_spoken() -> None:
    scene = Scene(PLAIN, Script(reply=lambda messages: "I think that", first_token_ms=60, token_ms=600))
    scene.say("hello there", wait_ms=6_000)
    assert len(scene.syntheses) >= 2
    assert done(scene)[0].status == "completed"
    first = next(iter(scene.records.values()))
    assert first.first_clause_ms is not None
    assert first.first_token_ms is not None
    assert first.first_clause_ms - first.first_token_ms == pytest.approx(2 * 600 + 250)


def test_a_stall_while_a_clause_is_being_spoken_waits_for_it() -> None:
    reply = "Well, yes, I do think that it is fine."
    scene = Scene(PLAIN, Script(reply=lambda messages: reply, token_ms=300, tts_ms=1_500))
    scene.say("hello there", wait_ms=15_000)
    assert done(scene)[0].status == "completed"
    assert scene.texts[-1] == ("assistant", reply)
    assert scene.syntheses[0].text == "Well,"


def test_speech_is_made_at_most_three_seconds_ahead() -> None:
    scene = Scene(PLAIN, Script(reply=lambda messages: LONG, tts_ms=1))
    scene.speak("hello there")
    worst = 0.0
    for _ in range(1_200):
        scene.silence(32)
        made = len(scene.syntheses) * 6 * 0.25
        heard = max((h.end for h in scene.sent), default=0) / 24_000
        worst = max(worst, made - heard)
    assert done(scene)[0].status == "completed"
    assert worst <= AHEAD_S + 1.5
    assert scene.texts[-1][1] == LONG


def test_a_reply_without_end_is_cut_to_a_bound() -> None:
    scene = Scene(msgspec.structs.replace(PLAIN, audio_output=False), Script(first_token_ms=5_000))
    scene.say("hello there", wait_ms=1_500)
    epoch = scene.generations[0].epoch
    for _ in range(3):
        scene.feed(Token(epoch, "x" * (MAX_REPLY_CHARS // 2)))
    assert any(isinstance(effect, CancelGeneration) for effect in scene.effects)
    assert (done(scene)[0].status, done(scene)[0].reason) == ("incomplete", "max_output_tokens")
    assert len(scene.texts[-1][1]) == MAX_REPLY_CHARS


def test_a_cut_off_reply_is_incomplete() -> None:
    from streaming.jobs import GenerationDone, Usage

    scene = Scene(PLAIN, Script(first_token_ms=5_000))
    scene.say("hello there", wait_ms=1_500)
    epoch = scene.generations[0].epoch
    scene.feed(Token(epoch, "I was going to say"))
    scene.feed(GenerationDone(epoch, "length", Usage()))
    scene.feed(GenerationDone(epoch, "length", Usage()))
    scene.run(4_000)
    assert (done(scene)[0].status, done(scene)[0].reason) == ("incomplete", "max_output_tokens")


def test_text_after_a_failure_is_ignored() -> None:
    scene = Scene(PLAIN, Script(first_token_ms=5_000))
    scene.say("hello there", wait_ms=1_500)
    epoch = scene.generations[0].epoch
    scene.feed(Token(epoch, "Well, yes, "))
    scene.run(60)
    scene.feed(SynthesisFailed(epoch, 0, "bad_audio", "x"))
    scene.feed(Token(epoch, "more"))
    scene.feed(ev.AudioQueued(epoch, 0, 100, True))
    assert done(scene)[0].status == "failed"


def test_a_reply_of_symbols_is_not_spoken_and_still_ends() -> None:
    scene = Scene(PLAIN, Script(reply=lambda messages: "🙂"))
    scene.say("hello there", wait_ms=3_000)
    assert not scene.syntheses
    assert done(scene)[0].status == "completed"


@pytest.mark.parametrize("farewell", ["", "Goodbye now."])
def test_a_draining_server_says_goodbye_and_ends_the_call(farewell: str) -> None:
    scene = Scene(AGENT, Script(reply=lambda messages: LONG))
    scene.say("hello there", wait_ms=2_000)
    scene.feed(ev.Drain(farewell))
    if farewell:
        assert scene.ended is None
        scene.feed(ev.Drain(farewell))
        scene.feed(ev.CreateResponse(event_id="e1"))
        scene.speak("but wait please", ms=600)
        scene.silence(3_000)
        assert scene.texts[2] == ("assistant", farewell)
        last = max(heard.at for heard in scene.sent)
        assert last < scene.now
    scene.run(400)
    assert scene.ended == "server_drain"
    assert not scene.open_streams


def test_a_turn_that_ends_while_the_server_drains_is_not_answered() -> None:
    scene = Scene(AGENT)
    scene.feed(ev.Drain("Goodbye now, and thank you very much for your call."))
    scene.say("one more thing please", ms=400, wait_ms=900)
    scene.feed(ev.CreateResponse(event_id="e1"))
    assert not scene.generations
    scene.run(5_400)
    assert scene.ended == "server_drain"


def test_after_a_defect_the_turn_ends_and_the_call_goes_on() -> None:
    scene = Scene(PLAIN, Script(reply=lambda messages: LONG))
    scene.say("hello there", wait_ms=2_000)
    scene._perform(scene.session.recover(scene.now))
    assert done(scene)[0].error_code == "internal_error"
    assert scene.counts["defect"] == 1
    scene.script.reply = lambda messages: "Fine."
    scene.say("hello again", wait_ms=4_000)
    assert scene.texts[-1] == ("assistant", "Fine.")


def test_a_defect_with_nothing_going_on_changes_nothing() -> None:
    scene = Scene(PLAIN)
    scene._perform(scene.session.recover(scene.now))
    scene.say("hello there", wait_ms=4_000)
    assert scene.texts[-1] == ("assistant", "You said hello there")


@pytest.mark.parametrize("at_ms", [0, 320, 700, 900, 1_500, 3_000])
def test_a_caller_who_vanishes_in_any_state_leaves_nothing(at_ms: float) -> None:
    scene = Scene(AGENT)
    scene.feed(ev.Answered())
    scene.speak("hello there")
    scene.silence(at_ms)
    scene.feed(ev.HungUp("connection_lost"))
    assert scene.ended == "connection_lost"
    assert not scene.open_streams
    started = {generation.epoch for generation in scene.generations}
    finished = {epoch for epoch in started if epoch in scene.cancelled} | {
        heard.epoch for heard in scene.sent if done(scene) and done(scene)[-1].status == "completed"
    }
    assert started <= finished
