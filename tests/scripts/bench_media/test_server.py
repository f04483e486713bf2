"""What the agents of all servers have in common: they talk to a caller whom they hear."""

import numpy as np

from scripts.bench_media.server import Conversation
from scripts.bench_media.talk import AGENT_FRAME, HEARD_HZ, Pattern, Speech

SPEECH = Speech(np.zeros(AGENT_FRAME, np.int16))


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_nobody_is_talked_to_who_was_never_heard() -> None:
    clock = Clock()
    conversation = Conversation(SPEECH, Pattern(3_000, 0), 1, clock)
    assert not conversation.talking
    conversation.hear(320)
    assert conversation.talking


def test_an_agent_that_hears_too_little_falls_silent_until_it_has_caught_up() -> None:
    clock = Clock()
    conversation = Conversation(SPEECH, Pattern(3_000, 0), 1, clock)
    conversation.hear(320)
    for _ in range(20):  # seconds of which it hears 90 %
        clock.now_s += 1
        conversation.hear(HEARD_HZ * 9 // 10)
    assert not conversation.talking
    conversation.hear(2 * HEARD_HZ)
    assert conversation.talking


def test_who_is_heard_whole_is_talked_to_as_the_pattern_has_it() -> None:
    clock = Clock()
    conversation = Conversation(SPEECH, Pattern(1_000, 1_000), 0, clock)
    talked = []
    conversation.hear(320)
    for _ in range(40):
        talked.append(conversation.talking)
        clock.now_s += 0.1
        conversation.hear(HEARD_HZ // 10)
    assert sum(talked) in range(18, 23)
