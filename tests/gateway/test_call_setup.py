"""What every way in does alike, and audio that cannot wait."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from gateway.agents.agent import UnknownAgent
from gateway.call_setup import (
    MAX_MODEL_CHARS,
    CallNotSetUp,
    first_config,
    new_id,
    open_call,
    open_protocol,
    perform,
)
from gateway.caller_audio import BACKLOG_SAMPLES
from gateway.realtime.protocol import AppendAudio, ClearAudio, CommitAudio
from gateway.settings import AgentSettings, Settings
from streaming.config import BargeIn
from streaming.events import CreateResponse
from tests.gateway.call_rig import MANUAL, PLAIN, CallRig, CountingVad, Engines, RecordingLeg, hush, voice
from tests.gateway.transports.fake_peer import gateway_with
from tests.virtual_time import virtual


def test_ids_are_of_a_kind_and_never_the_same() -> None:
    ids = {new_id("event") for _ in range(100)}
    assert len(ids) == 100
    assert all(each.startswith("event_") for each in ids)


@virtual
async def test_a_call_of_another_transport() -> None:
    settings = Settings(preset="null", max_calls=4, agents={"anna": AgentSettings(greeting="Hello there.")})
    async with gateway_with(settings=settings) as (_, gateway):
        with pytest.raises(UnknownAgent):
            first_config(gateway, "nobody")
        config = first_config(gateway, "anna")
        assert (config.greeting, config.turn.barge_in) == ("Hello there.", BargeIn.HOLD)
        assert first_config(gateway, None).greeting == ""
        with await gateway.switchboard.admit() as admission:
            protocol = open_protocol(
                gateway, admission.call_id, config=config, agent_name="anna", model="m" * 200, media=True
            )
            leg = RecordingLeg()
            leg.lead_ms = 40
            call = open_call(gateway, admission, transport="webrtc", agent_name="anna", config=protocol.config, leg=leg)
            gateway.switchboard.register(admission, call)
            assert call.record.summary()["transport"] == "webrtc"
            assert protocol.show_session()["model"] == "m" * MAX_MODEL_CHARS
            call.answered()
            await asyncio.sleep(5)
            assert leg.kinds[-3:] == ["ResponseDone", "TurnRecorded", "PlaybackStopped"]
            call.hang_up("caller_hung_up")
            assert call.finished.is_set()
            assert leg.kinds[-1] == "CallEnded"


class BrokenVad(CountingVad):
    def open(self, deliver: Any) -> Any:
        raise ZeroDivisionError("no call is taken")


@virtual
async def test_an_engine_that_takes_no_call_is_an_answer() -> None:
    async with gateway_with(Engines(vad=BrokenVad())) as (_, gateway):
        with await gateway.switchboard.admit() as admission:
            config = first_config(gateway, None)
            protocol = open_protocol(gateway, admission.call_id, config=config, agent_name=None, model=None, media=True)
            assert protocol.show_session()["model"] == "offhook"
            with pytest.raises(CallNotSetUp) as refusal:
                open_call(
                    gateway, admission, transport="webrtc", agent_name=None, config=protocol.config, leg=RecordingLeg()
                )
    assert refusal.value.status == 503
    assert refusal.value.body["error"]["code"] == "engine_failed"
    assert "no call is taken" not in str(refusal.value.body)


@virtual
async def test_what_a_client_asks_is_done_in_order() -> None:
    rig = CallRig(MANUAL)
    rig.call.answered()
    await rig.hear(voice(800))
    await perform(ClearAudio(), rig.call)
    await perform(CommitAudio("e1"), rig.call)
    assert rig.leg.kinds == ["InputCleared", "CommandFailed"]
    await rig.hear(voice(800))
    await perform(CommitAudio(), rig.call)
    await perform(CreateResponse(), rig.call)
    await rig.until(lambda: rig.leg.done)
    with pytest.raises(ValueError, match="decoded where its format is known"):
        await perform(AppendAudio(b"\0\0"), rig.call)
    await rig.end()


# --- audio that cannot wait -----------------------------------------------------------------------------------


@virtual
async def test_audio_of_a_real_time_wire_makes_turns() -> None:
    rig = CallRig(PLAIN)
    rig.call.answered()
    for pcm in (voice(800), hush(4_000)):
        for at in range(0, len(pcm), 320):
            await asyncio.sleep(0.02)
            assert rig.call.hear_now(pcm[at : at + 320])
    assert len(rig.leg.done) == 1
    assert rig.call.heard_samples == 4_800 * 16
    await rig.end()
    assert rig.call.hear_now(hush(20)), "what comes after the end is nobody's, and nobody's loss"


@virtual
async def test_a_detector_that_is_behind_costs_audio_and_no_waiting() -> None:
    vad = StuckVad()
    rig = CallRig(PLAIN, Engines(vad=vad))
    rig.call.answered()
    begun = rig.loop.time()
    taken = [rig.call.hear_now(np.zeros(320, np.int16)) for _ in range(200)]
    room = BACKLOG_SAMPLES // 320 + 1
    assert taken == [True] * room + [False] * (200 - room)
    assert rig.counted("caller_audio_dropped") == 200 - room
    assert rig.call.heard_samples == room * 320
    vad.stream.backlog_samples = 0
    assert rig.call.hear_now(hush(20))
    assert rig.loop.time() == begun
    await rig.end()


class StuckVad(CountingVad):
    """Scores nothing."""

    def open(self, deliver: Any) -> Any:
        self.stream = SimpleNamespace(backlog_samples=0, close=lambda: None)

        def feed(pcm: Any) -> None:
            self.stream.backlog_samples += len(pcm)

        self.stream.feed = feed
        return cast(Any, self.stream)
