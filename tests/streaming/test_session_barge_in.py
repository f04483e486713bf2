"""Interrupting (CASES.md: stale audio, heard against said, backchannel and echo, slow engine)."""

import itertools

import pytest

from streaming import events as ev
from streaming import notices as nt
from streaming.config import BargeIn, SessionConfig, TurnDetection, TurnMode
from streaming.effects import CancelEpoch, Effect, HoldPlayout, ReleasePlayout
from streaming.jobs import GenerationDone, GenerationFailed, PartialTranscript, SynthesisFailed, Token, Usage
from tests.streaming.scene import Scene, Script

AGENT = SessionConfig(
    instructions="Be nice.",
    turn=TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=300, barge_in=BargeIn.HOLD),
)
PLAIN = SessionConfig(turn=TurnDetection())
REPLY = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen."


def talking(config: SessionConfig, script: Script | None = None, *, for_ms: float = 1_500) -> Scene:
    """A scene in which the agent has been talking for that long."""
    script = script or Script()
    script.reply = lambda messages: REPLY
    scene = Scene(config, script)
    scene.speak("tell me a story")
    while not scene.sent:
        scene.silence(32)
    scene.silence(for_ms)
    return scene


def statuses(scene: Scene) -> list[str]:
    return [notice.response.status for notice in scene.told(nt.ResponseDone) if isinstance(notice, nt.ResponseDone)]


@pytest.mark.parametrize("into_ms", [0, 32, 416, 1_504, 3_008])
@pytest.mark.parametrize("stray", [False, True])
@pytest.mark.parametrize("config", [PLAIN, AGENT])
def test_no_sample_of_a_dead_epoch_leaves_after_the_cut(config: SessionConfig, stray: bool, into_ms: float) -> None:
    scene = talking(config, Script(stray_after_cancel=stray), for_ms=into_ms)
    epoch = scene.sent[-1].epoch
    dead: list[float] = []
    scene.on_notice = lambda notice: (
        dead.append(scene.now)
        if isinstance(notice, nt.ResponseDone) and notice.response.status == "cancelled"
        else None
    )
    scene.speak("stop it now please", ms=900)
    scene.silence(5_000)
    assert len(dead) == 1
    assert scene.sent_after(dead[0], epoch) == []
    assert statuses(scene)[0] == "cancelled"


def test_a_plain_client_is_told_speech_started_before_the_responses_end() -> None:
    scene = talking(PLAIN)
    scene.notices.clear()
    scene.speak("stop it now please")
    assert scene.kinds()[:3] == ["SpeechStarted", "OutputEnded", "ResponseDone"]
    done = scene.notices[2]
    assert isinstance(done, nt.ResponseDone)
    assert (done.response.status, done.response.reason) == ("cancelled", "turn_detected")


def test_the_sound_stops_within_150_ms_of_the_onset() -> None:
    for config in (PLAIN, AGENT):
        scene = talking(config)
        onset = scene.now
        scene.speak("stop it now please")
        scene.silence(4_000)
        before = [heard.at for heard in scene.sent if heard.at <= onset + 0.15]
        first_epoch = scene.sent[0].epoch
        assert max(heard.at for heard in scene.sent if heard.epoch == first_epoch) == before[-1]
        cut = scene.records[next(iter(scene.records))].cut_to_silence_ms
        assert cut is not None
        assert 0 < cut <= 150


@pytest.mark.parametrize("words", [True, False])
def test_the_context_holds_what_was_heard(words: bool) -> None:
    scene = talking(AGENT, Script(words=words), for_ms=0)
    first = scene.sent[0].at
    scene.speak("stop it now please")
    stopped = next(effect for effect in scene.effects if isinstance(effect, HoldPlayout))
    heard_words = stopped.heard_samples / 24_000 * 4
    scene.silence(5_000)
    text = scene.texts[1][1]
    assert REPLY.startswith(text)
    if words:
        assert len(text.split()) == round(heard_words)
    else:
        assert abs(len(text.split()) - heard_words) <= 1.5
    assert scene.session.conversation.items[1].cut
    assert first


def test_the_prompt_after_a_cut_says_that_it_was_cut() -> None:
    scene = talking(AGENT, for_ms=1_000)
    scene.speak("stop it now please")
    scene.silence(5_000)
    assistant = scene.generations[-1].messages[2]
    assert assistant.role == "assistant"
    assert assistant.content.endswith("…")
    assert len(assistant.content.split()) < 8


def test_a_backchannel_lets_the_reply_go_on_without_losing_a_word() -> None:
    scene = talking(AGENT)
    scene.script.partial_after_ms = 150
    scene.speak("mm-hm", ms=288)
    scene.silence(6_000)
    assert scene.counts["barge_in_released"] == 1
    assert "barge_in_committed" not in scene.counts
    assert statuses(scene) == ["completed"]
    assert scene.texts[1][1] == REPLY
    assert [role for role, _ in scene.texts] == ["user", "assistant"]
    spans = [(heard.start, heard.end) for heard in scene.sent]
    assert spans[-1][1] == 16 * 6_000
    gaps = [later[0] - earlier[1] for earlier, later in itertools.pairwise(spans)]
    assert max(gaps) == 0
    back = min(gaps)
    assert -24_000 * 0.65 <= back < 0


def test_a_backchannel_every_two_seconds_never_ends_a_reply() -> None:
    scene = talking(AGENT)
    scene.script.partial_after_ms = 150
    for _ in range(2):
        scene.speak("mm-hm", ms=288)
        scene.silence(1_712)
    scene.silence(6_000)
    assert statuses(scene) == ["completed"]
    assert len(scene.generations) == 1


def test_the_reply_coming_back_as_echo_makes_no_turn() -> None:
    scene = talking(AGENT)
    scene.script.partial_after_ms = 150
    scene.speak("two three four five", ms=900)
    scene.silence(6_000)
    assert statuses(scene) == ["completed"]
    assert [role for role, _ in scene.texts] == ["user", "assistant"]


def test_words_on_top_of_an_echo_stop_it() -> None:
    scene = talking(AGENT)
    scene.script.partial_after_ms = 150
    scene.speak("two three four wait a moment please", ms=1_200)
    scene.silence(5_000)
    assert statuses(scene)[0] == "cancelled"


def test_a_cough_over_the_reply_holds_it_for_a_moment_only() -> None:
    scene = talking(AGENT)
    scene.speak("", ms=160)
    scene.silence(6_000)
    assert scene.counts["barge_in_released"] == 1
    assert statuses(scene) == ["completed"]
    assert scene.texts[1][1] == REPLY


def test_a_long_sound_without_words_yet_ends_the_reply_within_a_second() -> None:
    scene = talking(AGENT)
    scene.script.partial_after_ms = None
    onset = scene.now
    cut: list[float] = []
    scene.on_notice = lambda notice: cut.append(scene.now) if isinstance(notice, nt.ResponseDone) else None
    scene.speak("well actually I wanted", ms=1_500)
    assert cut
    assert cut[0] - onset <= 1.15
    scene.silence(5_000)
    assert statuses(scene)[0] == "cancelled"


def test_a_murmur_whose_words_come_after_half_a_second_ends_no_reply() -> None:
    """As with a real transcriber: nothing on the way, and the words some 300 ms after the sound."""
    scene = talking(AGENT)
    scene.script.partial_after_ms = None
    scene.script.stt_ms = 200
    scene.speak("okay", ms=450)
    scene.silence(8_000)
    assert scene.counts["barge_in_released"] == 1
    assert statuses(scene) == ["completed"]


def test_words_that_come_after_the_release_still_end_the_reply() -> None:
    scene = talking(AGENT)
    scene.script.partial_after_ms = None
    scene.speak("stop", ms=224)
    scene.silence(5_000)
    assert scene.counts["barge_in_released"] == 1
    assert scene.counts["barge_in_committed"] == 1
    assert [text for role, text in scene.texts if role == "user"] == ["tell me a story", "stop"]


def test_the_caller_going_on_before_the_first_sound_joins_both_halves() -> None:
    scene = Scene(AGENT, Script(first_token_ms=1_500))
    scene.say("I want a cake", wait_ms=700)
    scene.say("with cherries on it", wait_ms=6_000)
    assert statuses(scene) == ["cancelled", "completed"]
    assert scene.generations[-1].messages[-1].content == "I want a cake with cherries on it"


def test_hello_while_the_model_thinks_does_not_begin_again() -> None:
    scene = Scene(AGENT, Script(first_token_ms=8_000))
    scene.say("tell me a story", wait_ms=3_000)
    scene.say("hello?", ms=400, wait_ms=9_000)
    assert statuses(scene) == ["completed"]
    live = [generation for generation in scene.generations if generation.epoch not in scene.cancelled]
    assert len(live) == 1


def test_without_interruption_the_turn_is_answered_after_the_reply() -> None:
    scene = talking(SessionConfig(turn=TurnDetection(barge_in=BargeIn.IGNORE)))
    scene.speak("and another one")
    scene.silence(9_000)
    assert statuses(scene) == ["completed", "completed"]
    assert [role for role, _ in scene.texts] == ["user", "assistant", "user", "assistant"]


def test_what_was_sent_and_not_yet_heard_is_not_in_the_context() -> None:
    scene = talking(PLAIN)
    while not scene.told(nt.ResponseDone):
        scene.silence(32)
    scene.speak("stop", ms=600)
    text = scene.texts[1][1]
    assert text != REPLY
    assert REPLY.startswith(text)
    assert statuses(scene) == ["completed"]
    assert any(isinstance(effect, CancelEpoch) for effect in scene.effects[-60:])


def test_a_reply_that_was_heard_to_its_end_is_not_cut() -> None:
    scene = talking(PLAIN)
    scene.silence(4_000)
    scene.speak("thanks a lot then")
    assert scene.texts[1][1] == REPLY


def test_a_reply_the_caller_heard_nothing_of_leaves_no_words() -> None:
    scene = Scene(PLAIN, Script(tts_ms=None))
    scene.say("tell me a story", wait_ms=1_000)
    scene.say("forget it please", wait_ms=1_000)
    assert ("assistant", "") in scene.texts


def test_results_for_a_dead_epoch_change_nothing() -> None:
    scene = talking(PLAIN)
    epoch = scene.sent[-1].epoch
    scene.speak("stop it now please")
    items, notices = scene.texts, len(scene.notices)
    for event in (
        Token(epoch, " more"),
        GenerationDone(epoch, "stop", Usage()),
        GenerationFailed(epoch, "x", "y"),
        SynthesisFailed(epoch, 0, "x", "y"),
        ev.AudioQueued(epoch, 0, 100, True),
        ev.AudioSent(epoch, 10_000_000),
        ev.PlayoutResumed(epoch, 0),
    ):
        scene.feed(event)
    assert scene.texts == items
    assert len(scene.notices) == notices
    late = {"late_token", "late_generation", "late_audio", "late_sent", "late_resume"}
    assert late <= scene.counts.keys()
    assert scene.counts["late_failure"] == 2


def test_a_held_reply_keeps_no_caller_waiting_when_the_caller_is_cleared() -> None:
    scene = talking(AGENT)
    scene.speak("hm", ms=96)
    scene.feed(ev.ClearInput(scene.seen))
    assert any(isinstance(effect, ReleasePlayout) for effect in scene.effects)
    scene.silence(5_000)
    assert statuses(scene) == ["completed"]


def test_a_client_that_says_where_it_stopped_is_taken_at_its_word() -> None:
    """A Realtime client flushes and truncates at every ``speech_started``, also when the reply then goes on."""
    scene = talking(AGENT)
    scene.script.partial_after_ms = 150
    scene.speak("mm-hm", ms=96)
    item_id = scene.session.conversation.items[1].id
    scene.feed(ev.TruncateItem(item_id, 0, 1_250))
    scene.speak("mm-hm", ms=192)
    scene.silence(6_000)
    assert statuses(scene) == ["completed"]
    assert scene.texts[1][1] == REPLY
    spans = [(heard.start, heard.end) for heard in scene.sent]
    back = next(later[0] for earlier, later in itertools.pairwise(spans) if later[0] < earlier[1])
    assert 24 * 950 <= back <= 24 * 1_250
    scene = talking(AGENT)
    scene.speak("stop", ms=96)
    scene.feed(ev.TruncateItem(scene.session.conversation.items[1].id, 0, 750))
    scene.speak("stop it now please", ms=700)
    assert scene.texts[1][1] == "One two three"


def test_words_that_come_while_the_reply_goes_on_again_end_it() -> None:
    scene = talking(AGENT)
    scene.script.partial_after_ms = 150
    scene.speak("mm-hm", ms=1_300)
    assert scene.counts["barge_in_released"] == 1
    utterance = max(scene.open_streams)
    scene.feed(PartialTranscript(utterance, "mm-hm but what about Monday"))
    assert scene.counts["barge_in_committed"] == 1
    assert statuses(scene) == ["cancelled"]


def test_a_hold_that_nobody_answers_for_is_released() -> None:
    scene = talking(AGENT)
    scene.speak("hm", ms=96)
    scene._perform([effect for effect in _closed(scene) if not isinstance(effect, ReleasePlayout)])
    scene.run(6_000)
    assert scene.counts["barge_in_released"] == 1
    assert statuses(scene) == ["completed"]


def _closed(scene: Scene) -> list[Effect]:
    """The utterance is lost without a word, which no event does."""
    scene.session._effects = []
    scene.session._listening.close()
    return scene.session._effects
