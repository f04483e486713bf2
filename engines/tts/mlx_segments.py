"""The segments that MLX voices are speaking, on the event loop's side: who gets the answers, and who no longer does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import structlog

from engines.executor.thread import ExecutorUnavailableError, MlxExecutor
from streaming.jobs import Synthesis, SynthesisFailed, Synthesize

Deliver = Callable[[Synthesis], None]
Answers = Callable[[Synthesize, Sequence[Synthesis], bool], None]
"""``(request, results, last)``, on the loop."""

_log = structlog.get_logger(__name__)


class Segments:
    """At most ``limit`` at once. Every method is for the loop's thread."""

    def __init__(self, executor: MlxExecutor, limit: int) -> None:
        self._executor = executor
        self._limit = limit
        self._live: dict[tuple[str, int], dict[int, Deliver]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def open(self, request: Synthesize, deliver: Deliver) -> bool:
        """Take the segment on; False (and a failure delivered soon) if there are too many or it is there already."""
        segments = self._live.get((request.call, request.epoch), {})
        if request.segment in segments:
            _log.error("a segment was asked for twice", call=request.call, epoch=request.epoch, segment=request.segment)
            self.refuse(request, deliver, "invalid_request", "this segment is already being spoken")
            return False
        if self._count >= self._limit:
            self.refuse(request, deliver, "overloaded", f"{self._limit} segments are being spoken already")
            return False
        self._live.setdefault((request.call, request.epoch), {})[request.segment] = deliver
        self._count += 1
        return True

    def is_open(self, request: Synthesize) -> bool:
        return request.segment in self._live.get((request.call, request.epoch), ())

    def cancel(self, call: str, epoch: int) -> bool:
        """Nothing is delivered for the epoch from now on. False if none of it is open."""
        segments = self._live.pop((call, epoch), None)
        if segments is None:
            return False
        self._count -= len(segments)
        return True

    def clear(self) -> None:
        """As cancelling all."""
        self._live.clear()
        self._count = 0

    def answer(self, request: Synthesize, results: Sequence[Synthesis], last: bool) -> None:
        """Deliver in order, for as long as the segment is wanted: a receiver may cancel on what it just got."""
        key, segment = (request.call, request.epoch), request.segment
        deliver = self._live.get(key, {}).get(segment)
        if deliver is None:
            return
        for index, result in enumerate(results):
            if last and index == len(results) - 1:
                self._forget(request)
            elif self._live.get(key, {}).get(segment) is not deliver:
                return
            deliver(result)

    def fail(self, request: Synthesize, code: str, message: str) -> None:
        self.answer(request, [SynthesisFailed(request.epoch, request.segment, code, message)], last=True)

    def refuse(self, request: Synthesize, deliver: Deliver, code: str, message: str) -> None:
        """A failure for a segment that was not taken on. Not from inside the call: the caller is not done with its own
        bookkeeping there."""
        failed = SynthesisFailed(request.epoch, request.segment, code, message)
        self._executor.soon(partial(deliver, failed))

    def post(self, request: Synthesize, act: Callable[[], None]) -> None:
        """Have ``act`` called on the MLX thread, or the segment fails."""
        try:
            self._executor.post(act)
        except ExecutorUnavailableError as error:
            code, message = error.code, str(error)
            self._executor.soon(lambda: self.fail(request, code, message))

    def fail_all(self, code: str, message: str) -> None:
        """The thread died: no segment will get another answer."""
        for call, epoch in list(self._live):
            for segment in list(self._live.get((call, epoch), ())):
                deliver = self._live.get((call, epoch), {}).pop(segment, None)
                if deliver is not None:  # what one receiver is told may have it cancel another
                    self._count -= 1
                    deliver(SynthesisFailed(epoch, segment, code, message))
            self._live.pop((call, epoch), None)

    def _forget(self, request: Synthesize) -> None:
        key = (request.call, request.epoch)
        del self._live[key][request.segment]
        self._count -= 1
        if not self._live[key]:
            del self._live[key]
