"""A call whose agent acts on its line: what the leg is asked, what is recorded, what is logged."""

from __future__ import annotations

import asyncio

import msgspec
from structlog.testing import capture_logs

from streaming.effects import SendDtmf
from streaming.events import ControlDone, Dtmf
from tests.gateway.call_rig import QUIET_AGENT, CallRig
from tests.virtual_time import virtual

CONFIG = msgspec.structs.replace(QUIET_AGENT, tools=("send_dtmf",))


@virtual
async def test_keys_go_both_ways_and_into_no_log() -> None:
    with capture_logs() as logs:
        rig = CallRig(CONFIG)
        rig.call.answered()
        for key in "*24711#":
            rig.call.handle(Dtmf(key))
        await rig.until(lambda: rig.leg.controls)
        (effect,) = rig.leg.controls
        assert isinstance(effect, SendDtmf)
        assert effect.digits == "4711", "the scripted model passes them on"
        assert rig.record.phase == "acting"
        rig.call.handle(ControlDone(effect.tool_call))
        await rig.until(lambda: len(rig.leg.done) == 2)
        rig.call.handle(ControlDone(effect.tool_call))
        await rig.end()
        await asyncio.sleep(0)
    said = [entry.text.strip() for entry in rig.record.transcript]
    assert said == ["(keypad: *24711)", "You said: (keypad: * 2 4 7 1 1).", "The result is status done."]
    assert "4711" not in str(logs)
    assert "4 7 1 1" not in str(logs)
    assert rig.counted("tool_send_dtmf") == 1
    assert rig.counted("late_control") == 1
