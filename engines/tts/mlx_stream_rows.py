"""The segments of streaming voices on the executor's thread.

A row goes: START (takes an instance of the pool, reads the text, makes the first chunk) -> CHUNK (one more, again and
again) -> gone, its instance free. Its next chunk is due when what was made so far has been heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import structlog

from engines.executor.policy import Choice, Key, Kind
from engines.executor.thread import MlxExecutor
from engines.executor.workload import EVICTED
from engines.tts.mlx_segments import Answers
from engines.tts.spoken_audio import chunks
from streaming.jobs import Priority, SynthesisChunk, SynthesisFailed, Synthesize

if TYPE_CHECKING:
    from engines.tts.mlx_speakers import Floats, Speaker

_AUDIBLE = 0.001
"""-60 dB: quieter samples at the start of a segment are the model's hesitation."""
_LEAD_MS = 10
_LEAST_S, _LEAST_S_A_LETTER = 3.0, 0.2
"""A model that misses its end babbles on; speech of ordinary speed has 15 letters a second."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Row:
    request: Synthesize
    language: str
    key: Key
    speaker: Speaker | None = None
    stream: Iterator[Floats] | None = None
    made_s: float = 0.0
    sent_s: float = 0.0
    heard_from: float = 0.0

    @property
    def most_s(self) -> float:
        return _LEAST_S + _LEAST_S_A_LETTER * len(self.request.text)


class StreamRows:
    """A :class:`engines.executor.thread.Workload`. Made anywhere; every method is for the executor's thread."""

    def __init__(self, executor: MlxExecutor, interval_s: float, rate_hz: int, answer: Answers) -> None:
        self._executor = executor
        self._interval_s = interval_s
        self._rate_hz = rate_hz
        self._answer = answer
        self._rows: dict[Key, _Row] = {}
        self._free: list[Speaker] = []
        self._loaded = False
        self._name = f"speech-{id(self):x}"
        self._pool = f"{self._name}-instances"
        self._start = Kind(self._name, "start", opens_stream=True, pool=self._pool)
        self._chunk = Kind(self._name, "chunk", pool=self._pool)

    @property
    def name(self) -> str:
        return self._name

    @property
    def open_streams(self) -> int:
        return sum(row.stream is not None for row in self._rows.values())

    def snapshot(self) -> dict[str, int]:
        return {"segments": len(self._rows), "instances_free": len(self._free)}

    def load(self, make: Callable[[], Sequence[Speaker]]) -> int:
        """Load and attach; returns how many instances there are. :meth:`warm` each next."""
        self._executor.require_thread()
        self._free = list(make())
        self._loaded = True
        self._executor.agenda.set_pool(self._pool, len(self._free))
        self._executor.attach(self)
        return len(self._free)

    def warm(self, instance: int, voice: str, language: str) -> None:
        """Run the first chunks of a segment, so that no call waits for a compilation, and learn what they cost."""
        speaker = self._free[instance]
        stream = speaker.stream("Yes, we are open.", voice, language, self._interval_s, _LEAST_S)
        try:
            for kind in (self._start, self._chunk, self._chunk):
                began = self._executor.now()
                next(stream, None)
                self._executor.agenda.costs.seed(kind, 1, 1, self._executor.now() - began)
        finally:
            _close(stream)
            speaker.rest()

    def detach(self) -> None:
        self._executor.detach(self)

    def close(self) -> None:
        self._executor.require_thread()
        for key in list(self._rows):
            self._drop(key)
        self._free.clear()
        self._loaded = False

    def insert(self, request: Synthesize, language: str) -> None:
        self._executor.require_thread()
        key = Key(self._name, request.call, request.epoch, request.segment)
        if not self._loaded or key in self._rows:
            self._fail(request, "synthesis_failed", "the model does not run")
            return
        self._rows[key] = _Row(request, language, key)
        now = self._executor.now()
        self._executor.agenda.add(key, self._start, request.priority, request.deadline, now)

    def cancel(self, call: str, epoch: int) -> None:
        """Its streams are closed and their instances free before the next quantum is chosen."""
        for key in [key for key in self._rows if key.call == call and key.epoch == epoch]:
            self._drop(key)

    def settle(self) -> None:
        """Cancels have left at once."""

    def quantum(self, choice: Choice) -> None:
        self._executor.require_thread()
        row = self._rows[choice.keys[0]]
        if row.stream is None:
            row.speaker = self._free.pop()
            request = row.request
            row.stream = row.speaker.stream(request.text, request.voice, row.language, self._interval_s, row.most_s)
        samples = next(row.stream, None)
        if samples is None:
            self._finish(row)
        elif not np.isfinite(samples).all():
            self._fail_row(row, "bad_audio", "the model made samples that are not numbers")
        else:
            self._take(row, samples)

    def abandon(self, choice: Choice, message: str) -> None:
        code = "overloaded" if message == EVICTED else "synthesis_failed"
        for key in choice.keys:
            row = self._rows.get(key)
            if row is not None:
                self._fail_row(row, code, message)

    # --- one quantum ------------------------------------------------------------------------------------------

    def _take(self, row: _Row, samples: Floats) -> None:
        row.made_s += samples.size / self._rate_hz
        if not row.sent_s:
            samples = self._from_first_sound(samples)
        now = self._executor.now()
        if samples.size and not row.sent_s:
            row.heard_from = now
        row.sent_s += samples.size / self._rate_hz
        pcm = np.rint(np.clip(samples, -1.0, 1.0) * 32767).astype(np.int16)
        if pcm.size:
            results = chunks(row.request, pcm, self._rate_hz, last=False)
            self._executor.emit(partial(self._answer, row.request, results, False))
        if row.made_s >= row.most_s:
            _log.warning("speech cut off: it went on for longer than its text", text_letters=len(row.request.text))
            self._finish(row)
            return
        self._executor.agenda.advance(row.key, self._chunk)
        if row.sent_s:
            priority = max(row.request.priority, Priority.PLAYOUT)
            self._executor.agenda.move(row.key, now, priority=priority, deadline=row.heard_from + row.sent_s)

    def _finish(self, row: _Row) -> None:
        if not row.sent_s:
            self._fail_row(row, "bad_audio", "the model made silence")
            return
        request = row.request
        self._drop(row.key)
        last = SynthesisChunk(request.epoch, request.segment, b"", self._rate_hz, last=True)
        self._executor.emit(partial(self._answer, request, [last], True))

    def _from_first_sound(self, samples: Floats) -> Floats:
        loud = np.flatnonzero(np.abs(samples) > _AUDIBLE)
        if not loud.size:
            return samples[:0]
        return samples[max(0, int(loud[0]) - self._rate_hz * _LEAD_MS // 1000) :]

    def _drop(self, key: Key) -> None:
        """The row is gone, its stream closed, its instance as fresh."""
        row = self._rows.pop(key)
        self._executor.agenda.drop(key)
        if row.speaker is None:
            return
        try:
            if row.stream is not None:
                _close(row.stream)
            row.speaker.rest()
        except Exception:  # noqa: BLE001 (a stream begins with a fresh state anyway)
            _log.exception("a stream did not close cleanly", call=row.request.call)
        self._free.append(row.speaker)

    def _fail_row(self, row: _Row, code: str, message: str) -> None:
        self._drop(row.key)
        self._fail(row.request, code, message)

    def _fail(self, request: Synthesize, code: str, message: str) -> None:
        failed = SynthesisFailed(request.epoch, request.segment, code, message)
        self._executor.emit(partial(self._answer, request, [failed], True))


def _close(stream: Iterator[Floats]) -> None:
    close = getattr(stream, "close", None)
    if close is not None:
        close()
