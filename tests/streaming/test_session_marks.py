"""A far end that plays late and says by its marks what it has played; and one that puts us on hold."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pytest

from streaming import events as ev
from streaming import notices as nt
from streaming.config import BargeIn, SessionConfig, TurnDetection, TurnMode
from streaming.effects import Effect
from tests.streaming.scene import Scene, Script

AGENT = SessionConfig(turn=TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=300, barge_in=BargeIn.HOLD))
PLAIN = SessionConfig(turn=TurnDetection())
REPLY = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen."
CASES = pytest.mark.parametrize("config", [AGENT, PLAIN])


@dataclass
class MarkedScene(Scene):
    """The far end plays ``late_ms`` late, and returns at once a mark that follows every tenth frame and the last one.
    None: it returns none."""

    late_ms: float | None = 700.0
    marks: list[tuple[int, int, float]] = field(default_factory=list)
    """Epoch, mark and when it comes back."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.numbers = itertools.count(1)
        self.free_at = 0.0

    def feed(self, event: ev.Event) -> list[Effect]:
        if isinstance(event, ev.AudioSent):
            self.free_at = max(self.free_at, self.now) + 0.02
            pacer = self._pacers[event.epoch]
            if event.sent_samples % 4_800 == 0 or not pacer.pending_samples:
                self._mark(event)
        return super().feed(event)

    def _mark(self, event: ev.AudioSent) -> None:
        mark = next(self.numbers)
        super().feed(ev.MarkSent(event.epoch, mark, event.sent_samples))
        back_at = self.free_at + (self.late_ms or 0.0) / 1000
        self.marks.append((event.epoch, mark, back_at))
        if self.late_ms is not None:
            self._schedule(back_at, partial(self._come_back, event.epoch, mark))

    def _come_back(self, epoch: int, mark: int) -> None:
        cleared = epoch in self.cancelled or epoch == self._held
        self._alive(ev.MarkReturned(epoch, mark, cleared))


def talking(config: SessionConfig, late_ms: float | None, *, for_ms: float) -> MarkedScene:
    scene = MarkedScene(config, Script(reply=lambda messages: REPLY), late_ms=late_ms)
    scene.speak("tell me a story")
    while not scene.sent:
        scene.silence(32)
    scene.silence(for_ms)
    return scene


def kept_words(scene: Scene) -> int:
    return len(next(text for role, text in scene.texts if role == "assistant").split())


@CASES
@pytest.mark.parametrize("late_ms", [0.0, 300.0, 700.0, 1_500.0])
def test_a_cut_keeps_the_words_that_the_far_end_had_played(config: SessionConfig, late_ms: float) -> None:
    scene = talking(config, late_ms, for_ms=3_008)
    scene.speak("stop that please", 800)
    cut = next(item for item in scene.session.conversation.items if item.role == "assistant")
    assert cut.cut
    played_s = 3.008 + 0.1 - late_ms / 1000
    assert abs(kept_words(scene) * 0.25 - played_s) <= 0.125 + 0.1, "half a word, and when the onset was known"
    assert "mark_given_up" not in scene.counts


def test_a_mark_that_comes_after_a_cut_lengthens_what_was_heard() -> None:
    scene = talking(PLAIN, None, for_ms=1_504)
    epoch, marks = scene.sent[0].epoch, list(scene.marks)
    scene.session.handle(ev.CancelResponse(), scene.now)
    before = kept_words(scene)
    assert before == 1, "not one mark has come back, of which the first is at 200 ms"
    scene.feed(ev.MarkReturned(epoch, marks[4][1]))
    assert kept_words(scene) == 4, "a second"
    scene.feed(ev.MarkReturned(epoch, marks[1][1]))
    assert kept_words(scene) == 4
    scene.feed(ev.MarkReturned(epoch, marks[5][1], cleared=True))
    assert kept_words(scene) == 4
    assert scene.counts["late_mark"] == 1


def test_a_cut_reply_that_the_client_deleted_is_not_brought_back() -> None:
    scene = talking(PLAIN, None, for_ms=1_504)
    epoch, marks = scene.sent[0].epoch, list(scene.marks)
    scene.feed(ev.CancelResponse())
    item = next(item for item in scene.session.conversation.items if item.role == "assistant")
    scene.feed(ev.DeleteItem(item.id))
    scene.feed(ev.MarkReturned(epoch, marks[4][1]))
    assert all(role != "assistant" for role, _ in scene.texts)


def test_a_reply_is_over_when_its_last_mark_is_back() -> None:
    scene = talking(AGENT, 700.0, for_ms=0)
    scene.silence(6_000)
    assert len(scene.told(nt.ResponseDone)) == 1
    last_sent = max(heard.at for heard in scene.sent)
    assert scene.marks[-1][2] > last_sent + 0.7
    assert scene.counts.get("mark_given_up") is None
    scene = talking(AGENT, 700.0, for_ms=4_300)
    assert not scene.told(nt.ResponseDone), "by the clock it was heard 300 ms ago"


def test_marks_that_never_come_hold_a_reply_up_for_two_seconds() -> None:
    scene = talking(AGENT, None, for_ms=0)
    while not scene.told(nt.ResponseDone):
        scene.silence(32)
    begun = scene.sent[0].at
    assert scene.now - begun == pytest.approx(4 + 2, abs=0.1)
    assert scene.counts["mark_given_up"] == 20
    assert kept_words(scene) == 16


def test_marks_of_nothing_that_is_known_are_counted() -> None:
    scene = talking(AGENT, 700.0, for_ms=992)
    scene.feed(ev.MarkSent(99, 1, 480))
    scene.feed(ev.MarkReturned(99, 1))
    scene.feed(ev.MarkReturned(scene.sent[0].epoch, 9_999))
    assert scene.counts["late_mark"] == 2


def test_more_marks_than_a_reply_may_have_under_way() -> None:
    scene = MarkedScene(AGENT, Script(reply=lambda messages: REPLY, lead_ms=3_000), late_ms=None)
    scene.speak("tell me a story")
    while not scene.sent:
        scene.silence(32)
    for number in range(1_000, 1_070):
        scene.feed(ev.MarkSent(scene.sent[0].epoch, number, 480))
    assert scene.counts["mark_given_up"] >= 6


# --- on hold ----------------------------------------------------------------------------------------------------


def test_a_caller_on_hold_is_not_asked_whether_they_are_there() -> None:
    turn = msgspec.structs.replace(AGENT.turn, idle_timeout_ms=2_000)
    scene = Scene(msgspec.structs.replace(AGENT, turn=turn, greeting="Hello."), Script())
    scene.feed(ev.Answered())
    scene.silence(1_000)
    scene.feed(ev.LineHeld(True))
    scene.run(60_000)
    assert not scene.told(nt.IdleTimeout)
    scene.feed(ev.LineHeld(False))
    scene.silence(1_900)
    assert not scene.told(nt.IdleTimeout)
    scene.silence(200)
    assert len(scene.told(nt.IdleTimeout)) == 1
