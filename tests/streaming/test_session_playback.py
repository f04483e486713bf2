"""Where the output buffer is ours: when a reply is told to sound, and what of a reply that is cut was heard."""

from __future__ import annotations

import pytest

from streaming import effects as fx
from streaming import events as ev
from streaming import notices as nt
from streaming.config import BargeIn, SessionConfig, TurnDetection, TurnMode
from tests.streaming.scene import Scene, Script

AGENT = SessionConfig(
    owns_playout=True,
    turn=TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=300, barge_in=BargeIn.HOLD),
)
PLAIN = SessionConfig(owns_playout=True, turn=TurnDetection())
LONG = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen."
LEAD_MS = 40
BUFFER = ("PlaybackStarted", "PlaybackStopped", "PlaybackCleared")


def scene_of(config: SessionConfig, reply: str = LONG, lead_ms: int = LEAD_MS) -> Scene:
    return Scene(config, Script(lead_ms=lead_ms, reply=lambda messages: reply))


def talking(config: SessionConfig, lead_ms: int = LEAD_MS) -> Scene:
    """A scene in which the agent has been talking for a while; its notices begin here."""
    scene = scene_of(config, lead_ms=lead_ms)
    scene.say("tell me a story", wait_ms=2_500)
    assert scene.session.state == "speaking"
    scene.notices.clear()
    return scene


def in_the_tail() -> Scene:
    """A plain client's scene in which the response is done, and its last 300 ms are still heard."""
    scene = scene_of(PLAIN, lead_ms=300)
    scene.say("tell me a story", wait_ms=1_000)
    while not scene.told(nt.ResponseDone):
        scene.silence(32)
    assert playback(scene) == ["PlaybackStarted"]
    scene.notices.clear()
    return scene


def playback(scene: Scene) -> list[str]:
    return [kind for kind in scene.kinds() if kind in BUFFER]


def cut_of(scene: Scene) -> nt.ItemTruncated:
    (cut,) = scene.told(nt.ItemTruncated)
    assert isinstance(cut, nt.ItemTruncated)
    return cut


def test_a_plain_reply_is_done_when_it_was_sent_and_stops_when_it_was_heard() -> None:
    scene = scene_of(PLAIN, lead_ms=300)
    at: dict[str, float] = {}

    def note(notice: nt.Notice) -> None:
        at.setdefault(type(notice).__name__, scene.now)

    scene.on_notice = note
    scene.say("tell me a story", wait_ms=6_500)
    kinds = scene.kinds()
    assert kinds[-6:] == [
        "PlaybackStarted",
        "OutputTranscriptDelta",
        "OutputTranscriptDelta",
        "OutputEnded",
        "ResponseDone",
        "PlaybackStopped",
    ]
    begun, last = scene.sent[0].at, scene.sent[-1]
    assert at["PlaybackStarted"] == begun
    assert at["ResponseDone"] == last.at
    assert at["PlaybackStopped"] == pytest.approx(begun + last.end / 24_000, abs=0.001)


def test_an_agents_reply_is_done_and_stops_when_it_was_heard() -> None:
    scene = scene_of(AGENT)
    scene.say("tell me a story", wait_ms=7_000)
    assert scene.kinds()[-3:] == ["OutputEnded", "ResponseDone", "PlaybackStopped"]
    assert playback(scene) == ["PlaybackStarted", "PlaybackStopped"]


@pytest.mark.parametrize("config", [PLAIN, AGENT])
def test_a_barge_in_clears_and_truncates_to_what_was_heard(config: SessionConfig) -> None:
    scene = talking(config)
    heard = scene.sent[-1].end
    scene.speak("stop it now please")
    assert scene.kinds() == ["SpeechStarted", "OutputEnded", "ResponseDone", "PlaybackCleared", "ItemTruncated"]
    cut = cut_of(scene)
    item = scene.session.conversation.get(cut.item_id)
    assert item.cut
    assert cut.text == item.text == " ".join(LONG.split()[: len((cut.text or "").split())])
    assert 0 <= cut.audio_end_ms - heard * 1000 / 24_000 <= 200
    scene.silence(8_000)
    assert playback(scene) == ["PlaybackCleared", "PlaybackStarted", "PlaybackStopped"]


def test_a_hold_that_is_released_is_no_end() -> None:
    scene = talking(AGENT)
    scene.speak("mm-hm", ms=200)
    scene.silence(8_000)
    assert scene.counts["barge_in_released"] == 1
    assert playback(scene) == ["PlaybackStopped"]


def test_a_barge_in_after_the_response_was_done_cuts_what_is_still_heard() -> None:
    scene = in_the_tail()
    scene.speak("stop it now please", ms=200)
    assert scene.kinds() == ["SpeechStarted", "PlaybackCleared", "ItemTruncated"]
    assert scene.session.conversation.get(cut_of(scene).item_id).text == cut_of(scene).text
    assert cut_of(scene).text != LONG


def test_a_stock_clients_cancel_and_clear_give_one_end() -> None:
    scene = talking(PLAIN)
    scene.feed(ev.CancelResponse())
    scene.feed(ev.ClearOutput())
    assert scene.kinds() == ["OutputEnded", "ResponseDone", "PlaybackCleared", "ItemTruncated"]
    assert scene.counts["nothing_to_clear"] == 1


@pytest.mark.parametrize("config", [PLAIN, AGENT])
def test_a_clear_alone_ends_the_response_too(config: SessionConfig) -> None:
    scene = talking(config)
    scene.feed(ev.ClearOutput())
    done = scene.notices[1]
    assert isinstance(done, nt.ResponseDone)
    assert (done.response.status, done.response.reason) == ("cancelled", "client_cancelled")
    sent = len(scene.sent)
    scene.run(3_000)
    assert len(scene.sent) == sent
    assert scene.texts[-1] == ("assistant", cut_of(scene).text)


def test_a_clear_after_the_response_was_done_cuts_what_is_still_heard() -> None:
    scene = in_the_tail()
    scene.feed(ev.ClearOutput())
    assert scene.kinds() == ["PlaybackCleared", "ItemTruncated"]
    scene.run(3_000)
    assert playback(scene) == ["PlaybackCleared"]


def test_a_clear_of_nothing_leaves_a_reply_that_is_yet_to_sound() -> None:
    scene = scene_of(PLAIN)
    scene.feed(ev.CreateResponse())
    scene.feed(ev.ClearOutput())
    scene.run(7_000)
    assert scene.counts["nothing_to_clear"] == 1
    assert playback(scene) == ["PlaybackStarted", "PlaybackStopped"]


@pytest.mark.parametrize("config", [PLAIN, AGENT])
@pytest.mark.parametrize("held", [False, True])
def test_a_truncate_of_what_sounds_silences_it(config: SessionConfig, held: bool) -> None:
    """A client that hears the reply by RTP cannot stop it by itself. It may have heard less than was played."""
    scene = talking(config)
    if held and config is AGENT:
        scene.speak("mm-hm", ms=100)
        assert scene.session.state == "held"
        scene.notices.clear()
    (item_id,) = [item.id for item in scene.session.conversation.items if item.role == "assistant"]
    epoch, sent = scene.sent[-1].epoch, len(scene.sent)
    scene.feed(ev.TruncateItem(item_id, 0, 500))
    assert scene.kinds() == ["OutputEnded", "ResponseDone", "PlaybackCleared", "ItemTruncated"]
    done = scene.notices[1]
    assert isinstance(done, nt.ResponseDone)
    assert (done.response.status, done.response.reason) == ("cancelled", "client_cancelled")
    cut = cut_of(scene)
    assert (cut.item_id, cut.audio_end_ms, cut.text) == (item_id, 500, "One two")
    scene.run(3_000)
    assert not [frame for frame in scene.sent[sent:] if frame.epoch == epoch]
    assert scene.session.conversation.get(item_id).text == "One two"


def test_nobody_has_heard_more_than_was_played() -> None:
    scene = talking(PLAIN, lead_ms=300)
    item_id, sent_ms = scene.session.conversation.items[-1].id, scene.sent[-1].end * 1000 // 24_000
    scene.feed(ev.TruncateItem(item_id, 0, sent_ms))
    assert sent_ms - 300 <= cut_of(scene).audio_end_ms < sent_ms - 200


def test_a_truncate_of_more_than_was_sent_is_refused_and_silences_nothing() -> None:
    scene = talking(PLAIN)
    scene.feed(ev.TruncateItem(scene.session.conversation.items[-1].id, 0, 60_000))
    assert scene.kinds() == ["CommandFailed"]
    scene.run(8_000)
    assert playback(scene) == ["PlaybackStopped"]


def test_a_truncate_after_the_response_was_done_cuts_what_is_still_heard() -> None:
    scene = in_the_tail()
    item_id = scene.session.conversation.items[-1].id
    scene.feed(ev.TruncateItem(item_id, 0, 500))
    assert scene.kinds() == ["PlaybackCleared", "ItemTruncated"]
    assert (cut_of(scene).audio_end_ms, cut_of(scene).text) == (500, "One two")
    scene.run(3_000)
    assert scene.texts[-1] == ("assistant", "One two")
    assert playback(scene) == ["PlaybackCleared"]


def test_a_truncate_of_a_reply_that_is_yet_to_sound_ends_it() -> None:
    scene = scene_of(PLAIN)
    scene.feed(ev.CreateResponse())
    scene.notices.clear()
    scene.feed(ev.TruncateItem(scene.session.conversation.items[-1].id, 0, 0))
    assert scene.kinds() == ["OutputEnded", "ResponseDone", "ItemTruncated"]
    scene.run(7_000)
    assert scene.sent == []
    assert playback(scene) == []


def test_a_truncate_of_what_was_heard_only_changes_the_conversation() -> None:
    scene = scene_of(PLAIN)
    scene.feed(ev.CreateResponse())
    scene.run(8_000)
    scene.notices.clear()
    scene.feed(ev.TruncateItem(scene.session.conversation.items[-1].id, 0, 500))
    assert scene.kinds() == ["ItemTruncated"]
    assert scene.texts[-1] == ("assistant", "One two")


def test_an_item_that_the_client_deleted_is_cleared_and_not_truncated() -> None:
    scene = talking(PLAIN)
    scene.feed(ev.DeleteItem(scene.session.conversation.items[-1].id))
    scene.feed(ev.ClearOutput())
    assert playback(scene) == ["PlaybackCleared"]
    assert scene.told(nt.ItemTruncated) == []


def test_the_next_reply_begins_after_the_one_before_it_has_stopped() -> None:
    scene = in_the_tail()
    scene.script.first_token_ms = scene.script.tts_ms = 1.0
    scene.feed(ev.CreateResponse())
    scene.run(200)
    assert playback(scene) == ["PlaybackStopped", "PlaybackStarted"]
    scene.run(8_000)
    assert playback(scene) == ["PlaybackStopped", "PlaybackStarted", "PlaybackStopped"]


def test_a_reply_that_fails_is_heard_to_its_end() -> None:
    scene = scene_of(PLAIN, "One two three. Four five six seven eight nine ten eleven.", lead_ms=300)
    scene.script.tts_fails = 1
    scene.say("tell me a story", wait_ms=3_000)
    assert scene.kinds()[-2:] == ["ResponseDone", "PlaybackStopped"]
    assert playback(scene) == ["PlaybackStarted", "PlaybackStopped"]


def test_what_still_sounds_of_a_reply_that_failed_is_let_go_on() -> None:
    scene = scene_of(PLAIN, "One two three. Four five six seven eight nine ten eleven.", lead_ms=300)
    scene.script.tts_fails = 1
    scene.say("tell me a story", wait_ms=1_000)
    while not scene.told(nt.ResponseDone):
        scene.silence(32)
    scene.feed(ev.ClearOutput())
    assert playback(scene) == ["PlaybackStarted"]
    scene.run(400)
    assert playback(scene) == ["PlaybackStarted", "PlaybackStopped"]


def test_a_call_that_ends_silences_what_sounds() -> None:
    scene = talking(AGENT)
    effects = scene.feed(ev.HungUp("caller_hung_up"))
    assert playback(scene) == ["PlaybackCleared"]
    assert isinstance(effects[-1], fx.EndCall)


def test_a_defect_silences_what_sounds() -> None:
    scene = talking(AGENT)
    scene._perform(scene.session.recover(scene.now))
    assert playback(scene) == ["PlaybackCleared"]
    scene.run(5_000)
    assert playback(scene) == ["PlaybackCleared"]


def test_a_text_reply_does_not_sound() -> None:
    scene = scene_of(SessionConfig(owns_playout=True, audio_output=False))
    scene.say("tell me a story", wait_ms=3_000)
    assert len(scene.told(nt.ResponseDone)) == 1
    assert playback(scene) == []


@pytest.mark.parametrize("agent", [False, True])
def test_a_client_that_plays_by_itself_is_told_nothing_of_it(agent: bool) -> None:
    turn = AGENT.turn if agent else PLAIN.turn
    scene = talking(SessionConfig(turn=turn), lead_ms=300)
    scene.speak("stop it now please")
    scene.silence(8_000)
    assert playback(scene) == []
    assert scene.told(nt.ItemTruncated) == []
