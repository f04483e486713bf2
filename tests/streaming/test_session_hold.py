"""Nobody is left on hold: whatever happens meanwhile, the line is asked to take them back."""

from __future__ import annotations

import pytest

from streaming import effects as fx
from streaming import events as ev
from streaming.call_control import TAKE_BACK_PAUSE_S, TAKE_BACK_TRIES
from tests.streaming.calling import AGENT, ended, first_calls, results
from tests.streaming.scene import Scene, Script

ON, OFF = fx.HoldCaller("call_1_0", on=True), fx.HoldCaller("call_1_0", on=False)


def on_hold(seconds: int = 200) -> tuple[Scene, Script]:
    script = first_calls(("hold", f'{{"seconds": {seconds}}}'))
    scene = Scene(AGENT, script)
    scene.say("can you look it up", wait_ms=500)
    while scene.session.state != "on_hold":
        scene.silence(32)
    return scene, script


@pytest.mark.parametrize("wanted_by", ["time", "a key", "words"])
def test_a_line_that_refuses_to_take_a_caller_back_is_asked_again(wanted_by: str) -> None:
    scene, script = on_hold(5)
    script.control_fails = "hold_failed"
    if wanted_by == "a key":
        scene.feed(ev.Dtmf("#"))
    if wanted_by == "words":
        scene.say("hello I have no time", wait_ms=300)
    while len(scene.controls) < 3:
        scene.silence(32)
    script.control_fails = None
    scene.silence(8_000)
    first, second, third = scene.controls[1:]
    assert [effect for _, effect in scene.controls] == [ON, OFF, OFF, OFF]
    assert second[0] - first[0] >= TAKE_BACK_PAUSE_S
    assert third[0] - second[0] >= TAKE_BACK_PAUSE_S
    assert results(scene) == [{"status": "done"}]
    assert scene.texts[-1] == ("assistant", "All right then.")


def test_it_is_asked_so_often_and_then_the_model_is_told() -> None:
    scene, script = on_hold(5)
    script.control_fails = "hold_failed"
    scene.silence(20_000)
    assert [effect for _, effect in scene.controls] == [ON, *[OFF] * TAKE_BACK_TRIES]
    assert [result["error"] for result in results(scene)] == ["hold_failed"]
    assert scene.texts[-1] == ("assistant", "All right then.")


@pytest.mark.parametrize("after_ms", [0, 2_000])
def test_a_farewell_is_not_said_to_someone_on_hold(after_ms: int) -> None:
    """Nor to someone who is about to be."""
    scene, _ = on_hold()
    scene.silence(after_ms)
    scene.feed(ev.Drain("We are closing now, and say goodbye in rather many words."))
    scene.silence(1_000)
    assert [effect for _, effect in scene.controls] == [ON, OFF]
    assert ended(scene)
    assert scene.ended == "server_drain"


def test_a_defect_leaves_nobody_on_hold() -> None:
    scene, _ = on_hold()
    scene.silence(1_000)
    scene._perform(scene.session.recover(scene.now))
    scene.silence(3_000)
    assert [effect for _, effect in scene.controls] == [ON, OFF]
    assert [result["error"] for result in results(scene)] == ["internal_error"]
    scene.say("hello again", wait_ms=3_000)
    assert scene.texts[-1] == ("assistant", "All right then.")
