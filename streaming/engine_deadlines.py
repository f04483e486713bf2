"""How long the engines may take over a reply before what there is of it is spoken, or it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from streaming.effects import Count, Effect
from streaming.reply import FIRST_TOKEN_S, STALL_S, STEP_S, Reply


class EngineDeadlines:
    """Looks after the replies that are being made: the live one, and a speculation."""

    def __init__(self, emit: Callable[[Effect], None]) -> None:
        self._stalled_at = 0.0
        self._emit = emit

    def times(self, replies: Iterable[Reply]) -> list[float]:
        """When :meth:`advance` wants to be called at the latest."""
        times: list[float] = []
        for reply in replies:
            if reply.waits_for_engine:
                times.append(_bound(reply))
            if self._may_stall(reply):
                times.append(reply.progress_at + STALL_S)
        return times

    def advance(self, replies: Iterable[Reply], now: float) -> None:
        for reply in replies:
            if self._may_stall(reply) and now >= reply.progress_at + STALL_S:
                self._stalled_at = reply.progress_at
                reply.stalled(now)
            if reply.waits_for_engine and now >= _bound(reply):
                self._emit(Count("engine_timeout"))
                reply.fail("engine_timeout", "an engine did not answer in time")

    def _may_stall(self, reply: Reply) -> bool:
        return reply.generated is None and bool(reply.raw) and reply.progress_at != self._stalled_at


def _bound(reply: Reply) -> float:
    return reply.progress_at + (STEP_S if reply.raw else FIRST_TOKEN_S)
