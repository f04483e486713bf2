"""Tools and the line: what never answers, comes late or twice, or breaks; and what a client sees of them."""

from __future__ import annotations

import pytest

from streaming import effects as fx
from streaming import events as ev
from streaming import notices as nt
from streaming.call_control import CONTROL_BOUND_S, TRANSFER_BOUND_S
from streaming.config import BargeIn, SessionConfig, TurnDetection, TurnMode
from streaming.conversation import PartKind
from streaming.jobs import Generate, Message, ToolCalled
from streaming.tools import TOOL_NAMES
from tests.streaming.calling import AGENT, ended, first_calls, results
from tests.streaming.scene import Scene, Script

# --- time and faults ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "bound_s"),
    [
        (("transfer", '{"target":"sales"}'), TRANSFER_BOUND_S),
        (("send_dtmf", '{"digits":"1"}'), CONTROL_BOUND_S),
        (("hold", "{}"), CONTROL_BOUND_S),
    ],
)
def test_a_line_that_never_answers_is_given_up(call: tuple[str, str], bound_s: float) -> None:
    script = first_calls(call, words="")
    script.control_ms = None
    scene = Scene(AGENT, script)
    scene.say("do something for me", wait_ms=2_000)
    scene.silence(bound_s * 1000 - 3_000)
    assert results(scene) == []
    scene.silence(5_000)
    assert [result["error"] for result in results(scene)] == ["timeout"]
    assert scene.counts["control_timeout"] == 1
    assert scene.texts[-1] == ("assistant", "All right then.")
    scene.feed(ev.ControlDone("call_1_0"))
    assert scene.counts["late_control"] == 1
    assert scene.ended == ("transferred" if call[0] == "transfer" else None), "who was handed over is gone"
    back = [fx.HoldCaller("call_1_0", on=False)] if call[0] == "hold" else []
    assert [effect for _, effect in scene.controls[1:]] == back, "who is on hold after all is taken back"


def test_an_answer_that_comes_twice_is_counted() -> None:
    scene = Scene(AGENT, first_calls(("send_dtmf", '{"digits":"1"}'), words=""))
    scene.say("press one for sales", wait_ms=3_000)
    scene.feed(ev.ControlDone("call_1_0"))
    scene.feed(ev.ControlDone("nobody", "x", "y"))
    assert scene.counts["late_control"] == 2
    assert len(results(scene)) == 1


def test_a_call_of_a_dead_epoch_is_counted_and_nothing_else() -> None:
    scene = Scene(AGENT, first_calls())
    scene.say("hello there", wait_ms=6_000)
    scene.feed(ToolCalled(1, "x", "end_call", "{}"))
    scene.feed(ToolCalled(99, "y", "end_call", "{}"))
    scene.silence(2_000)
    assert scene.counts["late_tool_call"] == 2
    assert (scene.ended, results(scene)) == (None, [])


def test_ids_are_unique_whatever_the_engine_says() -> None:
    script = Script(reply=lambda messages: "Yes.", calls=lambda request: ())
    scene = Scene(SessionConfig(turn=AGENT.turn, tools=TOOL_NAMES), script)
    for _ in range(2):
        scene.speak("press one for sales")
        while len(scene.generations) == len(results(scene)):
            scene.silence(32)
        epoch = scene.generations[-1].epoch
        for call_id in ("same", "same", "", "x" * 100):
            scene.feed(ToolCalled(epoch, call_id, "dance", "{}"))
        scene.silence(400)
        scene.silence(3_000)
    calls = [item.call_id for item in scene.session.conversation.items if item.kind is PartKind.FUNCTION_CALL]
    outputs = [item.call_id for item in scene.session.conversation.items if item.kind is PartKind.FUNCTION_CALL_OUTPUT]
    assert len(calls) == len(set(calls)) >= 4
    assert sorted(calls) == sorted(outputs)
    assert all(0 < len(call_id) <= 64 for call_id in calls)


def test_a_drain_says_its_farewell_and_begins_nothing_more() -> None:
    script = first_calls(("send_dtmf", '{"digits":"1"}'), ("transfer", '{"target":"sales"}'), words="")
    script.control_ms = 200
    scene = Scene(AGENT, script)
    scene.say("press one for sales", wait_ms=400)
    while not scene.controls:
        scene.silence(32)
    scene.feed(ev.Drain("We are closing now."))
    assert ended(scene)
    assert scene.ended == "server_drain"
    assert len(scene.controls) == 1
    assert len(results(scene)) == 2
    assert [item.text for item in scene.session.conversation.items if item.spoken][-1] == "We are closing now."


def test_a_defect_leaves_no_call_without_its_result() -> None:
    script = first_calls(("send_dtmf", '{"digits":"1"}'), ("send_dtmf", '{"digits":"2"}'), words="")
    script.control_ms = None
    scene = Scene(AGENT, script)
    scene.say("press one for sales", wait_ms=2_000)
    assert len(scene.controls) == 1
    scene._perform(scene.session.recover(scene.now))
    assert [result["error"] for result in results(scene)] == ["internal_error"] * 2
    scene.say("hello again", wait_ms=3_000)
    assert scene.texts[-1] == ("assistant", "All right then.")


def test_a_client_is_told_of_calls_and_results_as_items() -> None:
    scene = Scene(AGENT, first_calls(("send_dtmf", '{"digits":"1"}')))
    scene.say("press one for sales", wait_ms=6_000)
    added = [
        notice for notice in scene.told(nt.ItemAdded) if isinstance(notice, nt.ItemAdded) and not notice.item.spoken
    ]
    assert [(notice.item.kind, notice.item.name, notice.item.call_id) for notice in added] == [
        (PartKind.FUNCTION_CALL, "send_dtmf", "call_1_0"),
        (PartKind.FUNCTION_CALL_OUTPUT, "send_dtmf", "call_1_0"),
    ]
    order = [item.id for item in scene.session.conversation.items]
    for notice in added:
        assert order[order.index(notice.item.id) - 1] == notice.previous_item_id
    kinds = scene.kinds()
    assert kinds.index("ResponseDone") < kinds.index("ItemAdded", kinds.index("ResponseDone"))


def test_a_call_whose_result_a_client_deleted_still_makes_a_prompt() -> None:
    scene = Scene(AGENT, first_calls(("send_dtmf", '{"digits":"1"}')))
    scene.say("press one for sales", wait_ms=6_000)
    for kind in (PartKind.FUNCTION_CALL_OUTPUT, PartKind.OUTPUT_AUDIO):
        item = next(item for item in scene.session.conversation.items if item.kind is kind)
        scene.feed(ev.DeleteItem(item.id))
    scene.say("hello again", wait_ms=2_000)
    prompt: tuple[Message, ...] = scene.generations[-1].messages
    called = next(message for message in prompt if message.calls)
    after = prompt[prompt.index(called) + 1]
    assert (after.role, after.call_id, after.content) == ("tool", called.calls[0].id, '{"status":"unknown"}')
    assert isinstance(scene.generations[-1], Generate)


def test_nobody_is_prompted_while_on_hold() -> None:
    turn = TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=300, barge_in=BargeIn.HOLD, idle_timeout_ms=1_000)
    scene = Scene(SessionConfig(turn=turn, tools=("hold",)), first_calls(("hold", '{"seconds": 20}'), words=""))
    scene.say("can you look it up", wait_ms=15_000)
    assert len(scene.generations) == 1
    assert scene.told(nt.IdleTimeout) == []


def test_a_reply_that_is_deleted_while_it_is_spoken_leaves_its_call_and_the_result() -> None:
    scene = Scene(AGENT, first_calls(("send_dtmf", '{"digits": "1"}')))
    scene.say("press one please", wait_ms=500)
    while not scene.sent:
        scene.silence(32)
    scene.feed(ev.DeleteItem(scene.session.conversation.items[-1].id))
    scene.silence(6_000)
    assert results(scene) == [{"status": "done"}]
    assert scene.ended is None
