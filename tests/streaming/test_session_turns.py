"""From the caller's voice to one answer a turn (CASES.md: lost words, double reply, end of turn, silence)."""

import itertools

import pytest

from streaming import events as ev
from streaming import notices as nt
from streaming.config import BargeIn, SessionConfig, TurnDetection, TurnMode
from streaming.jobs import FinalizeTranscription, FinalTranscript, PartialTranscript, Priority, ScoreEndOfTurn
from streaming.listening import AUDIO_STALL_S, FINAL_BOUND_S, MAX_CLOSING, MAX_UTTERANCE_S
from tests.streaming.scene import Scene, Script

PLAIN = SessionConfig(instructions="Be nice.", turn=TurnDetection())
AGENT = SessionConfig(
    instructions="Be nice.",
    turn=TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=300, barge_in=BargeIn.HOLD),
)


def answers(scene: Scene) -> list[str]:
    return [text for role, text in scene.texts if role == "assistant"]


def asked(scene: Scene) -> list[str]:
    return [text for role, text in scene.texts if role == "user"]


@pytest.mark.parametrize("config", [PLAIN, AGENT])
def test_a_turn_is_told_in_the_protocols_order(config: SessionConfig) -> None:
    scene = Scene(config)
    scene.feed(ev.Answered())
    scene.silence(300)
    scene.say("what are your opening hours", wait_ms=4_000)
    assert scene.kinds() == [
        "SpeechStarted",
        "SpeechStopped",
        "InputCommitted",
        "ItemAdded",
        "TranscriptDelta",
        "TranscriptCompleted",
        "ResponseCreated",
        "OutputStarted",
        "OutputTranscriptDelta",
        "OutputEnded",
        "ResponseDone",
    ]
    ids = {notice.item_id for notice in scene.notices if isinstance(notice, nt.SpeechStarted | nt.SpeechStopped)}
    assert len(ids) == 1
    assert scene.texts == [
        ("user", "what are your opening hours"),
        ("assistant", "You said what are your opening hours"),
    ]


def test_the_greeting_comes_after_the_answer_and_is_part_of_the_context() -> None:
    scene = Scene(SessionConfig(greeting="Hello. How can I help?", turn=AGENT.turn))
    scene.run(2_000)
    assert scene.notices == []
    scene.feed(ev.Answered())
    scene.silence(3_000)
    assert scene.texts == [("assistant", "Hello. How can I help?")]
    assert not scene.generations


def test_the_third_turn_holds_the_first_as_it_was_heard() -> None:
    scene = Scene(AGENT)
    for words in ("one please", "two please", "three please"):
        scene.say(words, wait_ms=4_000)
    assert [message.content for message in scene.generations[-1].messages] == [
        "Be nice.",
        "one please",
        "You said one please",
        "two please",
        "You said two please",
        "three please",
    ]


def test_speech_is_transcribed_from_before_its_onset() -> None:
    scene = Scene(PLAIN)
    scene.silence(1_000)
    scene.say("hello there")
    started = scene.told(nt.SpeechStarted)[0]
    assert isinstance(started, nt.SpeechStarted)
    assert 1_000 - 300 - 64 <= started.audio_start_ms <= 1_000 - 300 + 64


def test_speech_at_the_very_first_sample_is_kept() -> None:
    scene = Scene(PLAIN)
    scene.say("hello there")
    started = scene.told(nt.SpeechStarted)[0]
    assert isinstance(started, nt.SpeechStarted)
    assert started.audio_start_ms == 0
    assert asked(scene) == ["hello there"]


def test_a_180_ms_yes_is_a_turn() -> None:
    scene = Scene(AGENT)
    scene.say("yes", ms=180, wait_ms=4_000)
    assert asked(scene) == ["yes"]
    assert len(answers(scene)) == 1


def test_a_click_or_a_cough_is_no_turn() -> None:
    scene = Scene(AGENT)
    scene.speak("", ms=32)
    scene.silence(1_000)
    assert scene.notices == []
    scene.speak("", ms=200)
    scene.silence(4_000)
    assert scene.kinds() == ["SpeechStarted", "SpeechStopped", "InputCleared"]
    assert scene.texts == []
    assert not scene.generations
    scene.say("hello there", wait_ms=4_000)
    assert asked(scene) == ["hello there"]


@pytest.mark.parametrize("pause_ms", [320, 480, 608, 640, 672])
def test_a_pause_inside_a_sentence_is_one_turn_when_it_sounds_unfinished(pause_ms: int) -> None:
    scene = Scene(AGENT, Script(score=0.05))
    scene.speak("I would like to order")
    scene.silence(pause_ms)
    scene.speak("a large cake")
    scene.silence(6_000)
    assert asked(scene) == ["I would like to order a large cake"]
    assert len(answers(scene)) == 1


@pytest.mark.parametrize("gap_ms", [704, 800, 900])
def test_digits_in_groups_are_one_turn(gap_ms: int) -> None:
    scene = Scene(AGENT, Script(score=0.95))
    scene.speak("my number is five five five")
    scene.silence(gap_ms)
    scene.speak("one two three")
    scene.silence(gap_ms)
    scene.speak("four five six")
    scene.silence(6_000)
    assert asked(scene) == ["my number is five five five one two three four five six"]
    assert len(answers(scene)) == 1


@pytest.mark.parametrize("edge_ms", range(256, 576, 32))
def test_resuming_at_any_edge_of_the_wait_never_makes_two_replies_to_one_turn(edge_ms: int) -> None:
    scene = Scene(AGENT)
    scene.speak("I would like")
    scene.silence(edge_ms)
    scene.speak("a large cake")
    scene.silence(8_000)
    done = [notice for notice in scene.told(nt.ResponseDone) if isinstance(notice, nt.ResponseDone)]
    completed = [notice for notice in done if notice.response.status == "completed"]
    assert len(completed) == 1
    assert " ".join(asked(scene)).endswith("a large cake")


def test_a_late_score_falls_back_to_silence() -> None:
    scene = Scene(AGENT, Script(score_ms=None))
    scene.say("what are your opening hours", wait_ms=4_000)
    times = next(iter(scene.records.values()))
    assert times.decision_ms is not None
    assert 700 <= times.decision_ms < 740


def test_a_score_for_a_pause_that_is_over_is_late() -> None:
    scene = Scene(AGENT, Script(score_ms=150))
    scene.speak("I would like")
    scene.silence(224)
    scene.speak("a cake")
    scene.silence(3_000)
    assert scene.counts["late_end_of_turn_score"] == 1
    assert asked(scene) == ["I would like a cake"]


def test_a_partial_of_an_utterance_that_is_closing_is_used() -> None:
    scene = Scene(PLAIN, Script(stt_ms=None, partial_after_ms=None))
    scene.say("hello there", wait_ms=700)
    scene.feed(PartialTranscript(min(scene.open_streams), "hello there"))
    scene.silence(FINAL_BOUND_S * 1000 + 3_000)
    assert asked(scene) == ["hello there"]


def test_the_end_of_turn_model_is_asked_also_without_speculation() -> None:
    turn = TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=300, speculate=False)
    scene = Scene(SessionConfig(turn=turn))
    scene.say("what are your opening hours", wait_ms=4_000)
    times = next(iter(scene.records.values()))
    assert times.decision_ms is not None
    assert times.decision_ms < 400


def test_going_on_before_the_transcript_of_the_pause_makes_it_worthless() -> None:
    scene = Scene(AGENT, Script(stt_ms=400))
    scene.speak("I would like")
    scene.silence(224)
    scene.speak("a cake")
    scene.silence(3_000)
    assert scene.counts["late_final"] == 1
    assert asked(scene) == ["I would like a cake"]


def test_at_most_eight_seconds_are_scored() -> None:
    scene = Scene(AGENT)
    scene.say("a long story", ms=15_000)
    score = next(effect for effect in scene.effects if isinstance(effect, ScoreEndOfTurn))
    assert score.end_samples - score.start_samples == 8 * 16_000


@pytest.mark.parametrize("late_ms", [50, 800, 3_000])
def test_a_final_that_comes_late_is_still_used(late_ms: float) -> None:
    scene = Scene(PLAIN, Script(stt_ms=late_ms))
    scene.say("hello there", wait_ms=8_000)
    assert asked(scene) == ["hello there"]
    assert len(answers(scene)) == 1


def test_a_final_that_never_comes_is_replaced_by_the_partial() -> None:
    scene = Scene(PLAIN, Script(stt_ms=None))
    scene.say("hello there", wait_ms=FINAL_BOUND_S * 1000 + 3_000)
    assert asked(scene) == ["hello there"]
    assert scene.counts["final_given_up"] == 1
    assert len(answers(scene)) == 1


def test_no_final_and_no_partial_is_an_error_and_the_call_goes_on() -> None:
    scene = Scene(PLAIN, Script(stt_ms=None, partial_after_ms=None))
    scene.say("hello there", wait_ms=FINAL_BOUND_S * 1000 + 1_000)
    failed = scene.told(nt.CommandFailed)
    assert [notice.code for notice in failed if isinstance(notice, nt.CommandFailed)] == ["transcription_timeout"]
    scene.script.stt_ms = 100
    scene.say("hello again", wait_ms=4_000)
    assert asked(scene) == ["hello again"]


def test_an_empty_final_does_not_undo_words_that_were_heard() -> None:
    scene = Scene(PLAIN)
    scene.speak("hello there")
    scene.run(20)
    scene.says = ""
    scene.silence(4_000)
    assert asked(scene) == ["hello there"]


def test_frames_that_stop_in_mid_word_end_the_turn_within_a_bound() -> None:
    scene = Scene(PLAIN)
    scene.speak("hello there")
    scene.run((AUDIO_STALL_S + 4) * 1000)
    assert scene.counts["audio_stalled"] == 1
    assert asked(scene) == ["hello there"]
    assert len(answers(scene)) == 1


def test_ninety_seconds_of_sound_are_a_bounded_turn() -> None:
    scene = Scene(AGENT)
    scene.speak("", ms=90_000)
    scene.silence(3_000)
    assert scene.counts["utterance_too_long"] == 1
    assert MAX_UTTERANCE_S == 60
    assert scene.texts == []


def test_the_same_final_twice_and_a_final_after_the_turn_make_one_reply() -> None:
    scene = Scene(PLAIN)
    scene.speak("hello there")
    scene.silence(320)
    utterance = next(effect for effect in scene.effects if isinstance(effect, FinalizeTranscription))
    again = FinalTranscript(utterance.utterance, utterance.revision, "hello there")
    scene.feed(again)
    scene.silence(600)
    scene.feed(again)
    scene.silence(1_000)
    scene.feed(FinalTranscript(utterance.utterance, utterance.revision, "something else"))
    scene.feed(PartialTranscript(utterance.utterance, "late"))
    scene.silence(4_000)
    assert scene.counts["late_final"] == 3
    assert scene.counts["late_partial"] == 1
    assert asked(scene) == ["hello there"]
    assert len(answers(scene)) == 1


def test_two_turns_whose_finals_cross_are_answered_in_order() -> None:
    scene = Scene(PLAIN, Script(stt_ms=None))
    scene.say("first words", wait_ms=800)
    scene.say("second words", wait_ms=700)
    asks = [effect for effect in scene.effects if isinstance(effect, FinalizeTranscription)]
    first, second = asks[0], asks[-1]
    assert first.utterance != second.utterance
    scene.feed(FinalTranscript(second.utterance, second.revision, "second words"))
    assert asked(scene) == []
    scene.feed(FinalTranscript(first.utterance, first.revision, "first words"))
    scene.silence(4_000)
    assert asked(scene) == ["first words", "second words"]


def test_utterances_without_transcripts_do_not_pile_up() -> None:
    scene = Scene(PLAIN, Script(stt_ms=None))
    for number in range(MAX_CLOSING + 2):
        scene.say(f"words {number}", ms=300, wait_ms=550)
    assert scene.counts["utterance_given_up"] == 2
    assert len(scene.open_streams) <= MAX_CLOSING + 1


def test_without_speculation_the_transcript_is_asked_for_at_the_decision() -> None:
    scene = Scene(SessionConfig(turn=TurnDetection(speculate=False)))
    scene.say("hello there", wait_ms=4_000)
    times = next(iter(scene.records.values()))
    assert times.decision_ms is not None
    assert times.final_ms is not None
    assert times.final_ms == pytest.approx(times.decision_ms + 100)
    assert not times.speculative
    assert all(effect.priority is not Priority.SPECULATIVE for effect in scene.generations)


def test_a_client_can_take_turns_without_wanting_answers() -> None:
    scene = Scene(SessionConfig(turn=TurnDetection(create_response=False)))
    scene.say("hello there", wait_ms=4_000)
    assert scene.texts == [("user", "hello there")]
    assert not scene.generations


def test_a_silent_caller_is_prompted_after_the_reply_was_heard() -> None:
    scene = Scene(SessionConfig(turn=TurnDetection(idle_timeout_ms=5_000)))
    scene.say("hello there", wait_ms=3_500)
    ended = max(heard.at for heard in scene.sent)
    prompted: list[float] = []
    scene.on_notice = lambda notice: prompted.append(scene.now) if isinstance(notice, nt.IdleTimeout) else None
    scene.silence(6_000)
    assert len(prompted) == 1
    assert 5.0 <= prompted[0] - ended <= 5.5
    assert len(scene.generations) == 2


def test_prompts_without_an_answer_come_ever_more_rarely_until_the_caller_speaks() -> None:
    scene = Scene(SessionConfig(turn=TurnDetection(idle_timeout_ms=5_000)))
    prompted: list[float] = []
    scene.on_notice = lambda notice: prompted.append(scene.now) if isinstance(notice, nt.IdleTimeout) else None
    scene.say("hello there", wait_ms=150_000)
    gaps = [later - earlier for earlier, later in itertools.pairwise(prompted)]
    waits = [10, 20, 40]  # and the prompt's own length
    assert all(0 < gap - wait < 12 for gap, wait in zip(gaps, waits, strict=False))
    assert len(gaps) >= 3
    prompted.clear()
    spoke_at = scene.now
    scene.say("hello there", wait_ms=9_000)
    assert len(prompted) == 1
    assert prompted[0] - spoke_at < 10


def test_an_hour_is_enough() -> None:
    scene = Scene(SessionConfig(max_call_s=60))
    scene.feed(ev.Answered())
    scene.run(61_000)
    assert scene.ended == "max_duration"
    assert [type(effect).__name__ for effect in scene.session.handle(ev.Answered(), scene.now)] == ["Count"]
