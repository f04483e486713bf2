"""What a slow peer has not taken yet when its caller cuts in."""

from __future__ import annotations

import itertools
import json

import numpy as np

from gateway.realtime.protocol import RealtimeProtocol
from gateway.realtime.session_object import SessionDefaults
from gateway.transports.outbox import CONGESTED_BYTES
from gateway.transports.websocket import WebSocketLeg
from streaming.config import SessionConfig
from streaming.notices import InputCleared


async def test_audio_that_was_not_taken_is_dropped_and_nothing_else() -> None:
    ids = itertools.count()
    protocol = RealtimeProtocol(
        call_id="call_1",
        model="offhook",
        defaults=SessionDefaults(SessionConfig(voice="joe"), ("joe",)),
        new_id=lambda kind: f"{kind}_{next(ids)}",
        now_s=lambda: 0.0,
        count=lambda _: None,
    )
    leg = WebSocketLeg(protocol)
    protocol.open()
    assert not leg.clear()
    frame = np.zeros(480, np.int16)
    leg.play("resp_1", "item_1", frame)
    leg.notify(InputCleared())
    while not leg.congested:
        leg.play("resp_1", "item_1", frame)
    assert leg.clear()
    assert leg.outbox.size < CONGESTED_BYTES
    assert not leg.clear()
    kinds = [json.loads(waiting.text)["type"] for waiting in leg.outbox.frames]
    assert kinds == ["session.created", "input_audio_buffer.cleared"]
