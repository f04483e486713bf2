"""An agent that calls tools, in a scene."""

from __future__ import annotations

import json

from streaming.config import BargeIn, SessionConfig, TurnDetection, TurnMode
from streaming.conversation import PartKind
from streaming.tools import TOOL_NAMES
from tests.streaming.scene import Scene, Script

AGENT = SessionConfig(
    instructions="Be nice.",
    turn=TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=300, barge_in=BargeIn.HOLD),
    tools=TOOL_NAMES,
    transfer_targets=(("sales", "sip:sales@pbx.example"), ("night desk", "+15551234567")),
    goodbye="Have a nice day.",
)
GOODBYE = "Thank you for calling us today and goodbye."
"""Eight words: 2 s of the scripted voice."""


def first_calls(*calls: tuple[str, str], words: str = GOODBYE) -> Script:
    """The first reply says the words and calls these, the later ones answer."""
    asked: list[int] = []

    def reply(messages: tuple[str, ...]) -> str:
        asked.append(1)
        return words if len(asked) == 1 else "All right then."

    return Script(reply=reply, calls=lambda request: calls if len(asked) == 1 else ())


def results(scene: Scene) -> list[dict[str, str]]:
    return [
        json.loads(item.text or "")
        for item in scene.session.conversation.items
        if item.kind is PartKind.FUNCTION_CALL_OUTPUT
    ]


def heard_until(scene: Scene) -> float:
    """When the last sample that was sent has been heard, by a far end that plays without gaps."""
    return scene.sent[0].at + scene.sent[-1].end / AGENT.output_rate_hz


def ended(scene: Scene, within_ms: float = 10_000) -> bool:
    until = scene.now + within_ms / 1000
    while scene.ended is None and scene.now < until:
        scene.silence(32)
    return scene.ended is not None
