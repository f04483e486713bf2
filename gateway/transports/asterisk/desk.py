"""What a gateway remembers of Asterisk's calls that are not there yet, or not any more."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from gateway.bridge_settings import AudioSocketSettings
from gateway.transports.asterisk.expected import ExpectedCalls, NextSteps


@dataclass(frozen=True, slots=True)
class AsteriskDesk:
    """One a gateway."""

    expected: ExpectedCalls
    next_steps: NextSteps

    @classmethod
    def of(cls, settings: AudioSocketSettings, now: Callable[[], float] = time.monotonic) -> AsteriskDesk:
        agents = {uuid.UUID(call): agent for call, agent in settings.uuids.items()}
        return cls(ExpectedCalls(now, agents=agents, anyone=settings.calls == "any"), NextSteps(now))
