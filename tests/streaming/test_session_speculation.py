"""Answering inside the silence (CASES.md: double reply, speculation while the context changed)."""

import msgspec
import pytest

from streaming import events as ev
from streaming import notices as nt
from streaming.config import SessionConfig, TurnDetection, TurnMode
from streaming.conversation import Item, PartKind
from streaming.effects import OpenPlayout, Promote
from streaming.jobs import Priority
from tests.streaming.scene import Scene, Script

CONFIG = SessionConfig(turn=TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=600))


def speculating(script: Script | None = None) -> Scene:
    """A scene whose caller paused long enough for a speculation, and not long enough for a turn."""
    scene = Scene(CONFIG, script or Script())
    scene.speak("what are your opening hours")
    scene.silence(480)
    assert [generation.priority for generation in scene.generations] == [Priority.SPECULATIVE]
    return scene


def test_nothing_of_a_speculation_is_told_or_played_before_the_turn_ends() -> None:
    scene = speculating()
    assert scene.kinds() == ["SpeechStarted"]
    assert scene.sent == []
    assert not any(isinstance(effect, OpenPlayout) for effect in scene.effects)
    assert len(scene.syntheses) == 1


def test_it_becomes_the_reply_when_the_turn_ends_as_expected() -> None:
    scene = speculating()
    scene.silence(4_000)
    assert len(scene.generations) == 1
    assert sum(isinstance(effect, Promote) for effect in scene.effects) == 1
    times = next(iter(scene.records.values()))
    assert times.speculative
    assert times.first_sent_ms == times.decision_ms
    assert scene.counts["speculation_promoted"] == 1


def test_it_saves_the_engines_time() -> None:
    first_sent: dict[bool, float] = {}
    for speculate in (False, True):
        scene = Scene(msgspec.structs.replace(CONFIG, turn=msgspec.structs.replace(CONFIG.turn, speculate=speculate)))
        scene.say("what are your opening hours", wait_ms=5_000)
        sent_ms = next(iter(scene.records.values())).first_sent_ms
        assert sent_ms is not None
        first_sent[speculate] = sent_ms
    assert first_sent[False] - first_sent[True] >= 200


def test_it_is_dropped_when_the_caller_goes_on() -> None:
    scene = speculating()
    first = scene.generations[0].epoch
    scene.speak("on Sunday")
    scene.silence(5_000)
    assert first in scene.cancelled
    assert scene.generations[-1].messages[-1].content == "what are your opening hours on Sunday"
    assert [role for role, _ in scene.texts] == ["user", "assistant"]


@pytest.mark.parametrize(
    "change",
    [
        ev.CreateItem(Item("x", "system", PartKind.INPUT_TEXT, "Be brief.")),
        ev.Configure(msgspec.structs.replace(CONFIG, instructions="Be rude.")),
    ],
)
def test_a_context_that_changed_meanwhile_makes_it_worthless(change: ev.Event) -> None:
    scene = speculating()
    scene.feed(change)
    scene.silence(4_000)
    assert len(scene.generations) == 2
    assert scene.generations[0].epoch in scene.cancelled
    assert any("Be" in message.content for message in scene.generations[1].messages)
    assert len(scene.told(nt.ResponseCreated)) == 1


def test_one_that_failed_is_tried_again_for_real() -> None:
    scene = speculating(Script(llm_fails_after=0))
    scene.script.llm_fails_after = None
    scene.silence(4_000)
    assert len(scene.generations) == 2
    done = scene.told(nt.ResponseDone)[0]
    assert isinstance(done, nt.ResponseDone)
    assert done.response.status == "completed"


def test_only_the_first_segment_is_spoken_in_advance() -> None:
    scene = speculating(Script(reply=lambda messages: "First sentence here. Second sentence here. Third one here."))
    assert len(scene.syntheses) == 1
    scene.silence(6_000)
    assert len(scene.syntheses) == 3


def test_a_client_response_drops_it() -> None:
    scene = speculating()
    scene.feed(ev.CreateResponse())
    assert scene.generations[0].epoch in scene.cancelled
    scene.silence(8_000)
    first = scene.told(nt.ResponseDone)[0]
    assert isinstance(first, nt.ResponseDone)
    assert first.response.status == "completed"


def test_the_same_words_again_are_not_generated_twice() -> None:
    scene = Scene(CONFIG, Script(stt_ms=10))
    scene.speak("what are your opening hours")
    scene.silence(320)
    scene.silence(128)
    assert len(scene.generations) == 1


def test_under_load_no_work_is_begun_for_a_turn_that_may_go_on_and_again_when_it_is_over() -> None:
    scene = Scene(CONFIG)
    scene.feed(ev.LoadChanged(speculate=False))
    scene.say("what are your opening hours", wait_ms=5_000)
    assert [generation.priority for generation in scene.generations] == [Priority.DECODE]
    scene.feed(ev.LoadChanged())
    scene.say("and on Sunday", wait_ms=5_000)
    assert scene.generations[-1].priority is Priority.SPECULATIVE


def test_under_load_the_first_clause_is_cut_shorter() -> None:
    reply = "Our shop in the old town is open every day from nine in the morning until six in the evening."
    first: dict[bool, str] = {}
    for short in (False, True):
        scene = Scene(CONFIG, Script(reply=lambda messages: reply))
        scene.feed(ev.LoadChanged(short_clauses=short))
        scene.say("what are your opening hours", wait_ms=9_000)
        first[short] = scene.syntheses[0].text
        assert "".join(text for role, text in scene.texts if role == "assistant") == reply
    assert 45 <= len(first[False]) <= 60
    assert 20 <= len(first[True]) <= 30
