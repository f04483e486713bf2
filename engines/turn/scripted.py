"""A fake end-of-turn detector for tests and the ``null`` preset: it knows the answer beforehand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, MutableSequence, Sequence

from engines.api import Pcm16
from streaming.jobs import EndOfTurnScored, ScoreEndOfTurn


class ScriptedTurn:
    """A fake: answers with the next probability of the script (the last one again when it runs out) after a fixed
    delay, exact under a virtual clock. None in the script is a failure: nothing is delivered. ``requests`` records what
    was asked of it, unless ``records`` is False: a server that runs for days keeps no lists."""

    def __init__(
        self, probabilities: Sequence[float | None] = (1.0,), *, delay_ms: float = 0.0, records: bool = True
    ) -> None:
        if not probabilities:
            raise ValueError("the script needs at least one probability")
        self._probabilities = tuple(probabilities)
        self._delay_ms = delay_ms
        self.requests: MutableSequence[ScoreEndOfTurn] = [] if records else deque(maxlen=0)
        self._asked = 0
        self._pending: set[asyncio.TimerHandle] = set()

    async def start(self) -> None: ...

    async def close(self) -> None:
        for handle in self._pending:
            handle.cancel()
        self._pending.clear()

    def score(self, request: ScoreEndOfTurn, pcm: Pcm16, deliver: Callable[[EndOfTurnScored], None]) -> None:
        probability = self._probabilities[min(self._asked, len(self._probabilities) - 1)]
        self._asked += 1
        self.requests.append(request)
        if probability is None:
            return
        scored = EndOfTurnScored(request.utterance, request.revision, probability)

        def answer() -> None:
            self._pending.discard(handle)
            deliver(scored)

        handle = asyncio.get_running_loop().call_later(self._delay_ms / 1000, answer)
        self._pending.add(handle)
