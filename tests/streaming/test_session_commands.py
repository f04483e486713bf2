"""What a Realtime client may ask for, and how it is refused."""

import msgspec
import pytest

from streaming import events as ev
from streaming import notices as nt
from streaming.config import BargeIn, ResponseOptions, SessionConfig, TurnDetection, TurnMode
from streaming.conversation import Item, PartKind
from streaming.jobs import Message, Token
from tests.streaming.scene import Scene, Script

PLAIN = SessionConfig(instructions="Be nice.", turn=TurnDetection())
MANUAL = SessionConfig(turn=TurnDetection(mode=TurnMode.MANUAL))
REPLY = "One two three four five six seven eight nine ten eleven twelve."


def codes(scene: Scene) -> list[tuple[str, str | None]]:
    return [
        (notice.code, notice.event_id)
        for notice in scene.told(nt.CommandFailed)
        if isinstance(notice, nt.CommandFailed)
    ]


def done(scene: Scene) -> list[nt.Response]:
    return [notice.response for notice in scene.told(nt.ResponseDone) if isinstance(notice, nt.ResponseDone)]


def text(item_id: str, words: str) -> ev.CreateItem:
    return ev.CreateItem(Item(item_id, "user", PartKind.INPUT_TEXT, words), event_id=f"e-{item_id}")


def append(scene: Scene, ms: int) -> None:
    scene.seen += ms * 16
    scene._voiced_ms, scene.says = 1_000, "push to talk"
    scene.feed(ev.InputAppended(scene.seen))


def test_a_typed_message_is_answered() -> None:
    scene = Scene(PLAIN)
    scene.feed(text("a", "hello"))
    scene.feed(ev.CreateResponse())
    scene.run(4_000)
    assert scene.texts == [("user", "hello"), ("assistant", "You said hello")]
    assert scene.generations[0].messages == (Message("system", "Be nice."), Message("user", "hello"))


def test_a_text_reply_has_text_deltas_and_no_sound() -> None:
    scene = Scene(msgspec.structs.replace(PLAIN, audio_output=False))
    scene.feed(text("a", "hello"))
    scene.feed(ev.CreateResponse())
    scene.run(1_000)
    deltas = [notice.delta for notice in scene.told(nt.OutputTextDelta) if isinstance(notice, nt.OutputTextDelta)]
    assert "".join(deltas) == "You said hello"
    assert len(deltas) == 3
    assert not scene.syntheses
    assert scene.kinds()[-2:] == ["OutputEnded", "ResponseDone"]


def test_a_cancelled_text_reply_keeps_what_was_written() -> None:
    scene = Scene(msgspec.structs.replace(PLAIN, audio_output=False), Script(token_ms=100))
    scene.feed(text("a", "hello"))
    scene.feed(ev.CreateResponse())
    scene.run(200)
    first = scene.generations[0].epoch
    scene.feed(ev.CancelResponse())
    assert scene.texts[1] == ("assistant", "You said")
    scene.feed(ev.CreateResponse())
    scene.feed(Token(first, " late"))
    scene.run(2_000)
    assert scene.counts["late_token"] == 1
    assert scene.texts[1] == ("assistant", "You said")


def test_one_response_may_override_the_session() -> None:
    scene = Scene(PLAIN)
    scene.feed(text("a", "hello"))
    options = ResponseOptions(
        instructions="Be rude.",
        audio_output=False,
        max_output_tokens=5,
        input_text=(("user", "only this"),),
        metadata={"k": "v"},
    )
    scene.feed(ev.CreateResponse(options))
    scene.run(1_000)
    generation = scene.generations[0]
    assert generation.messages == (Message("system", "Be rude."), Message("user", "only this"))
    assert generation.max_tokens == 5
    assert done(scene)[0].metadata == {"k": "v"}
    scene.feed(ev.CreateResponse(ResponseOptions(instructions="", input_text=())))
    assert scene.generations[1].messages == ()


def test_a_second_response_is_refused_while_one_is_made() -> None:
    scene = Scene(PLAIN)
    scene.feed(text("a", "hello"))
    scene.feed(ev.CreateResponse())
    scene.feed(ev.CreateResponse(event_id="e1"))
    assert codes(scene) == [("conversation_already_has_active_response", "e1")]


def test_a_cancelled_response_keeps_what_was_heard() -> None:
    scene = Scene(PLAIN, Script(reply=lambda messages: REPLY))
    scene.feed(text("a", "hello"))
    scene.feed(ev.CreateResponse())
    scene.run(1_300)
    scene.feed(ev.CancelResponse("resp_other", event_id="e1"))
    scene.feed(ev.CancelResponse(event_id="e2"))
    scene.feed(ev.CancelResponse(event_id="e3"))
    assert codes(scene) == [("response_cancel_not_active", "e1"), ("response_cancel_not_active", "e3")]
    assert done(scene)[0].reason == "client_cancelled"
    assert REPLY.startswith(scene.texts[1][1])
    assert 0 < len(scene.texts[1][1]) < len(REPLY)


def test_a_client_that_played_less_truncates_also_after_the_response_is_done() -> None:
    scene = Scene(PLAIN, Script(reply=lambda messages: REPLY))
    scene.feed(text("a", "hello"))
    scene.feed(ev.CreateResponse())
    scene.run(5_000)
    item_id = scene.session.conversation.items[1].id
    assert done(scene)[0].status == "completed"
    scene.feed(ev.TruncateItem(item_id, 0, 1_000))
    assert scene.texts[1] == ("assistant", "One two three four")
    assert scene.session.conversation.items[1].cut
    assert scene.kinds()[-1] == "ItemTruncated"
    scene.feed(ev.CreateResponse())
    assert scene.generations[-1].messages[-1].content == "One two three four…"
    scene.run(5_000)
    scene.feed(ev.TruncateItem(item_id, 0, 3_000))
    assert scene.texts[1] == ("assistant", REPLY)


def test_truncating_while_the_tail_is_still_playing() -> None:
    scene = Scene(PLAIN, Script(reply=lambda messages: REPLY))
    scene.feed(text("a", "hello"))
    scene.feed(ev.CreateResponse())
    while not done(scene):
        scene.run(20)
    item_id = scene.session.conversation.items[1].id
    scene.feed(ev.TruncateItem(item_id, 0, 500))
    assert scene.texts[1] == ("assistant", "One two")
    scene.speak("now stop")
    assert scene.texts[1] == ("assistant", "One two")


def test_a_response_that_goes_on_after_a_truncation_is_told_as_it_was_made() -> None:
    """Its item keeps what the client heard; a completed response has a completed item all the same."""
    scene = Scene(PLAIN, Script(reply=lambda messages: REPLY))
    scene.feed(text("a", "hello"))
    scene.feed(ev.CreateResponse())
    scene.run(1_300)
    scene.feed(ev.TruncateItem(scene.session.conversation.items[1].id, 0, 500))
    scene.run(5_000)
    (response,) = done(scene)
    assert response.item is not None
    assert (response.status, response.item.status, response.item.text) == ("completed", "completed", REPLY)
    assert scene.texts[1] == ("assistant", "One two")


def test_what_cannot_be_truncated() -> None:
    scene = Scene(PLAIN)
    scene.feed(text("a", "hello"))
    scene.feed(ev.CreateResponse())
    scene.run(4_000)
    item_id = scene.session.conversation.items[1].id
    for number, event in enumerate(
        [
            ev.TruncateItem("nobody", 0, 0, "e0"),
            ev.TruncateItem("a", 0, 0, "e1"),
            ev.TruncateItem(item_id, 1, 0, "e2"),
            ev.TruncateItem(item_id, 0, 60_000, "e3"),
        ]
    ):
        scene.feed(event)
        assert codes(scene)[-1][1] == f"e{number}"
    assert [code for code, _ in codes(scene)] == ["item_not_found", *["invalid_truncate"] * 3]
    scene.feed(ev.CreateItem(Item("own", "assistant", PartKind.OUTPUT_AUDIO, "not made here")))
    scene.feed(ev.TruncateItem("own", 0, 0, "e4"))
    assert codes(scene)[-1] == ("invalid_truncate", "e4")


def test_items_are_retrieved_and_deleted() -> None:
    scene = Scene(PLAIN)
    scene.feed(text("a", "hello"))
    scene.feed(ev.RetrieveItem("a"))
    scene.feed(ev.DeleteItem("a"))
    scene.feed(ev.RetrieveItem("a", "e1"))
    scene.feed(ev.DeleteItem("a", "e2"))
    scene.feed(text("b", "hello"))
    scene.feed(text("b", "again"))
    assert scene.kinds() == [
        "ItemAdded",
        "ItemRetrieved",
        "ItemDeleted",
        "CommandFailed",
        "CommandFailed",
        "ItemAdded",
        "CommandFailed",
    ]
    assert codes(scene) == [("item_not_found", "e1"), ("item_not_found", "e2"), ("item_already_exists", "e-b")]


def test_push_to_talk() -> None:
    scene = Scene(MANUAL)
    append(scene, 400)
    append(scene, 400)
    scene.feed(ev.CommitInput(scene.seen))
    assert scene.kinds() == ["InputCommitted", "ItemAdded"]
    scene.feed(ev.CreateResponse())
    assert not scene.generations
    scene.run(4_000)
    assert scene.texts == [("user", "push to talk"), ("assistant", "You said push to talk")]
    assert scene.kinds()[2:5] == ["TranscriptDelta", "TranscriptCompleted", "ResponseCreated"]
    times = next(iter(scene.records.values()))
    assert times.final_ms == pytest.approx(100)


def test_a_commit_alone_starts_no_response() -> None:
    scene = Scene(MANUAL)
    append(scene, 400)
    scene.feed(ev.CommitInput(scene.seen))
    scene.run(4_000)
    assert scene.texts == [("user", "push to talk")]


def test_two_commits_before_the_first_words_are_there_keep_their_order() -> None:
    scene = Scene(MANUAL, Script(stt_ms=1_000))
    append(scene, 400)
    scene.feed(ev.CommitInput(scene.seen))
    append(scene, 400)
    scene.feed(ev.CommitInput(scene.seen))
    assert scene.kinds() == ["InputCommitted", "ItemAdded", "InputCommitted", "ItemAdded"]
    scene.run(3_000)
    assert scene.texts == [("user", "push to talk"), ("user", "push to talk")]


def test_less_than_100_ms_cannot_be_committed() -> None:
    scene = Scene(MANUAL)
    scene.feed(ev.CommitInput(0, "e1"))
    append(scene, 90)
    scene.feed(ev.CommitInput(scene.seen, "e2"))
    assert codes(scene) == [("input_audio_buffer_commit_empty", "e1"), ("input_audio_buffer_commit_empty", "e2")]
    append(scene, 10)
    scene.feed(ev.CommitInput(scene.seen, "e3"))
    assert scene.kinds()[-1] == "ItemAdded"


def test_a_cleared_buffer_is_forgotten() -> None:
    scene = Scene(MANUAL)
    append(scene, 400)
    scene.feed(ev.ClearInput(scene.seen))
    assert scene.kinds() == ["InputCleared"]
    assert not scene.open_streams
    scene.feed(ev.CommitInput(scene.seen))
    assert codes(scene)[0][0] == "input_audio_buffer_commit_empty"


def test_a_commit_without_words_has_one_transcript_and_the_wanted_response_comes() -> None:
    scene = Scene(MANUAL, Script(reply=lambda messages: "Hm?"))
    append(scene, 400)
    scene.says = ""
    scene.feed(ev.CommitInput(scene.seen))
    scene.feed(ev.CreateResponse())
    scene.run(3_000)
    completed = scene.told(nt.TranscriptCompleted)
    assert len(completed) == 1
    assert done(scene)[0].status == "completed"


def test_a_commit_whose_transcription_fails_says_so() -> None:
    scene = Scene(MANUAL, Script(stt_fails="overloaded"))
    append(scene, 400)
    scene.feed(ev.CommitInput(scene.seen))
    scene.run(3_000)
    failed = scene.told(nt.TranscriptFailed)
    assert [notice.code for notice in failed if isinstance(notice, nt.TranscriptFailed)] == ["overloaded"]


def test_one_response_at_most_is_wanted_before_the_words_are_there() -> None:
    scene = Scene(MANUAL, Script(stt_ms=1_000))
    append(scene, 400)
    scene.feed(ev.CommitInput(scene.seen))
    for number in range(3):
        scene.feed(ev.CreateResponse(event_id=f"e{number}"))
    assert [event_id for _, event_id in codes(scene)] == ["e1", "e2"]


def test_a_response_that_is_taken_back_before_its_words_are_there_never_comes() -> None:
    scene = Scene(MANUAL)
    append(scene, 400)
    scene.feed(ev.CommitInput(scene.seen))
    scene.feed(ev.CreateResponse())
    scene.feed(ev.CancelResponse())
    scene.run(4_000)
    assert not scene.told(nt.ResponseCreated)
    assert codes(scene) == []
    scene.feed(ev.CreateResponse())
    assert len(scene.told(nt.ResponseCreated)) == 1


def test_an_item_cannot_take_the_id_of_what_the_caller_is_saying() -> None:
    scene = Scene(PLAIN)
    scene.speak("hello there")
    started = scene.told(nt.SpeechStarted)[0]
    assert isinstance(started, nt.SpeechStarted)
    scene.feed(text(started.item_id, "mine"))
    assert codes(scene) == [("item_already_exists", f"e-{started.item_id}")]
    scene.silence(4_000)
    assert scene.texts[0] == ("user", "hello there")


def test_a_truncation_of_a_reply_that_goes_on_stands() -> None:
    scene = Scene(PLAIN, Script(reply=lambda messages: REPLY))
    scene.feed(text("a", "hello"))
    scene.feed(ev.CreateResponse())
    scene.run(1_500)
    scene.feed(ev.TruncateItem(scene.session.conversation.items[1].id, 0, 500))
    scene.run(5_000)
    assert done(scene)[0].status == "completed"
    item = scene.session.conversation.items[1]
    assert (item.text, item.cut, item.status) == ("One two", True, "incomplete")


def test_a_response_asked_for_while_a_turns_words_are_missing_is_that_turns_answer() -> None:
    scene = Scene(PLAIN, Script(stt_ms=1_000))
    scene.say("hello there", wait_ms=700)
    scene.feed(ev.CreateResponse(ResponseOptions(instructions="Be rude.")))
    scene.silence(5_000)
    assert scene.texts == [("user", "hello there"), ("assistant", "You said hello there")]
    assert scene.generations[-1].messages[0].content == "Be rude."
    scene.feed(ev.CreateResponse(event_id="e1"))
    assert codes(scene) == []


def test_a_response_asked_for_while_a_noise_is_looked_into_comes_all_the_same() -> None:
    scene = Scene(PLAIN, Script(stt_ms=1_000, partial_after_ms=None))
    scene.feed(text("a", "hello"))
    scene.speak("", ms=400)
    scene.silence(700)
    scene.feed(ev.CreateResponse())
    scene.silence(5_000)
    assert scene.texts == [("user", "hello"), ("assistant", "You said hello")]


def test_committing_under_server_vad_ends_the_turn_early() -> None:
    scene = Scene(PLAIN)
    scene.speak("hello there")
    scene.feed(ev.CommitInput(scene.seen))
    assert scene.kinds() == ["SpeechStarted", "SpeechStopped"]
    scene.run(4_000)
    assert scene.texts == [("user", "hello there"), ("assistant", "You said hello there")]


def test_going_manual_in_mid_speech_drops_what_was_being_said() -> None:
    scene = Scene(PLAIN)
    scene.speak("hello there")
    scene.feed(ev.Configure(MANUAL))
    assert not scene.open_streams
    scene.silence(2_000)
    assert scene.texts == []
    assert scene.session.manual
    append(scene, 400)
    scene.feed(ev.Configure(PLAIN))
    assert not scene.open_streams


def test_a_new_threshold_in_mid_speech_goes_on_with_the_utterance() -> None:
    scene = Scene(PLAIN)
    scene.speak("hello there")
    scene.feed(ev.Configure(msgspec.structs.replace(PLAIN, turn=TurnDetection(threshold=0.8))))
    scene.silence(4_000)
    assert scene.texts[0] == ("user", "hello there")
    assert len(scene.told(nt.SpeechStarted)) == 1


def test_a_held_and_a_closing_call_say_so() -> None:
    agent = SessionConfig(turn=TurnDetection(barge_in=BargeIn.HOLD))
    scene = Scene(agent, Script(reply=lambda messages: REPLY))
    scene.speak("hello there")
    while not scene.sent:
        scene.silence(32)
    scene.speak("hm", ms=96)
    assert scene.session.state == "held"
    scene = Scene(PLAIN, Script(stt_ms=None))
    scene.say("hello there", wait_ms=600)
    assert scene.session.state == "thinking"


def test_a_cancelled_farewell_still_ends_the_call() -> None:
    scene = Scene(PLAIN)
    scene.feed(ev.Drain("Goodbye."))
    scene.run(100)
    scene.feed(ev.CreateResponse(event_id="e1"))
    assert codes(scene) == [("conversation_already_has_active_response", "e1")]
    scene.feed(ev.CancelResponse())
    scene.run(400)
    assert scene.ended == "server_drain"


def test_the_state_is_told_in_words() -> None:
    scene = Scene(PLAIN, Script(reply=lambda messages: REPLY, first_token_ms=300))
    seen = [scene.session.state]
    scene.speak("hello there")
    seen.append(scene.session.state)
    scene.silence(544)
    seen.append(scene.session.state)
    scene.silence(1_000)
    seen.append(scene.session.state)
    scene.feed(ev.HungUp("caller_hung_up"))
    seen.append(scene.session.state)
    assert seen == ["waiting", "hearing", "thinking", "speaking", "ended"]
    assert scene.ended == "caller_hung_up"
