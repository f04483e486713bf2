"""The segments of one MLX Kokoro on the executor's thread.

A row goes: ENCODE (ids to frames, in a bucket of ids) -> SPEAK (frames to samples, in a bucket of frames) -> gone, or
ENCODE again for the rest of a long text. Rows of one bucket share a quantum. A batch runs in the next of a few sizes,
the rest of it filled with copies: each (size, bucket) is a shape, and each shape was run once before the first call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import structlog

from engines.executor.policy import Choice, Key, Kind
from engines.executor.thread import MlxExecutor
from engines.executor.workload import EVICTED
from engines.tts.kokoro_audio import spoken_pcm
from engines.tts.kokoro_text import RATE_HZ, KokoroInput
from engines.tts.mlx_segments import Answers
from engines.tts.spoken_audio import BadAudioError, chunks
from streaming.jobs import Priority, SynthesisFailed, Synthesize

if TYPE_CHECKING:
    from engines.tts.mlx_kokoro_net import KokoroNet, Spoken

_log = structlog.get_logger(__name__)


ID_BUCKETS = (16, 32, 64, 128, 256)
FRAME_BUCKETS = (48, 96, 192, 384, 768, 1536)
"""25 ms each: 1.2 s to 38 s."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """The shapes a batch may have. Sizes rise; a bucket takes as many rows as fit its ``_units``, so that no quantum is
    longer, and no batch larger in memory, than one row of the longest bucket (speech) or four (text)."""

    ids: tuple[int, ...] = ID_BUCKETS
    frames: tuple[int, ...] = FRAME_BUCKETS
    batches: tuple[int, ...] = (1, 2, 4, 8)
    id_units: int = 4 * ID_BUCKETS[-1]
    frame_units: int = FRAME_BUCKETS[-1]

    def __post_init__(self) -> None:
        for sizes in (self.ids, self.frames, self.batches):
            if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
                raise ValueError(f"sizes must rise from at least 1: {sizes}")
        if self.batches[0] != 1 or not 3 <= self.ids[-1] <= 512:
            raise ValueError("the first batch size must be 1, and the last bucket of ids in 3..512")

    @property
    def max_phonemes(self) -> int:
        return self.ids[-1] - 2

    def for_ids(self, count: int) -> int:
        return next(size for size in self.ids if size >= count)

    def for_frames(self, count: int) -> int:
        """Past the last bucket, a multiple of it: such a shape compiles when it first comes."""
        step = self.frames[-1]
        return next((size for size in self.frames if size >= count), -(-count // step) * step)

    def for_batch(self, count: int) -> int:
        return next(size for size in self.batches if size >= count)

    def rows(self, bucket: int, units: int) -> int:
        """How many rows of a bucket share a quantum at most."""
        return max(1, min(self.batches[-1], units // bucket))

    def shapes(self) -> Iterator[tuple[str, int, int]]:
        """Every (kind, batch, bucket) that a quantum of known length may have."""
        for name, buckets, units in (("encode", self.ids, self.id_units), ("speak", self.frames, self.frame_units)):
            for bucket in buckets:
                for batch in sorted({self.for_batch(rows + 1) for rows in range(self.rows(bucket, units))}):
                    yield name, batch, bucket


@dataclass(slots=True)
class _Row:
    request: Synthesize
    key: Key
    speed: float
    inputs: deque[KokoroInput]
    deadline: float
    spoken: Spoken | None = None
    sent_samples: int = 0


@dataclass(slots=True)
class _Loaded:
    net: KokoroNet
    voices: dict[str, Any]
    """(rows, 256) each."""


class KokoroRows:
    """A :class:`engines.executor.thread.Workload`. Made anywhere; every method is for the executor's thread."""

    open_streams = 0
    """What a row holds between its two quanta is evaluated: clearing the cache can't hurt it."""

    def __init__(self, executor: MlxExecutor, buckets: Buckets, answer: Answers) -> None:
        self._executor = executor
        self._buckets = buckets
        self._answer = answer
        self._rows: dict[Key, _Row] = {}
        self._loaded: _Loaded | None = None
        self._name = f"kokoro-{id(self):x}"

    @property
    def name(self) -> str:
        return self._name

    def _encode(self, bucket: int) -> Kind:
        rows = self._buckets.rows(bucket, self._buckets.id_units)
        return Kind(self._name, "encode", max_batch=rows, alike=True)

    def _speak(self, bucket: int) -> Kind:
        rows = self._buckets.rows(bucket, self._buckets.frame_units)
        return Kind(self._name, "speak", max_batch=rows, alike=True)

    def load(self, model_dir: Path, voices: Sequence[str]) -> None:
        """Load and attach. Warm each of :meth:`Buckets.shapes` next."""
        self._executor.require_thread()
        import mlx.core as mx
        from mlx_audio.tts.utils import load_model

        from engines.tts.mlx_kokoro_net import KokoroNet

        net = KokoroNet(load_model(model_dir))
        tables = {}
        for voice in voices:
            stored: Any = mx.load(str(model_dir / "voices" / f"{voice}.safetensors"))
            table = stored["voice"].astype(mx.float32)
            tables[voice] = table.reshape(table.shape[0], -1)
        mx.eval(list(tables.values()))
        self._loaded = _Loaded(net, tables)
        self._executor.attach(self)

    def warm(self, name: str, batch: int, bucket: int) -> None:
        """Run one shape twice: once to compile it, so that no call has to wait for that, once to learn its cost."""
        assert self._loaded is not None
        net, table = self._loaded.net, next(iter(self._loaded.voices.values()))
        size = self._buckets.ids[0]
        [row] = net.encode([[0] * size], [table[0]], [1.0], size)
        row.durations[:] = 0
        row.durations[0] = bucket
        for _ in range(2):
            began = self._executor.now()
            if name == "encode":
                net.encode([[0] * bucket] * batch, [table[0]] * batch, [1.0] * batch, bucket)
            else:
                net.speak([row] * batch, bucket)
            seconds = self._executor.now() - began
        kind = self._encode(bucket) if name == "encode" else self._speak(bucket)
        self._executor.agenda.costs.seed(kind, batch, bucket, seconds)

    def detach(self) -> None:
        self._executor.detach(self)

    def close(self) -> None:
        self._executor.require_thread()
        for key in self._rows:
            self._executor.agenda.drop(key)
        self._rows.clear()
        self._loaded = None

    def insert(self, request: Synthesize, speed: float, inputs: Sequence[KokoroInput]) -> None:
        """Queue a segment (at least one input); nothing is computed here."""
        self._executor.require_thread()
        key = Key(self._name, request.call, request.epoch, request.segment)
        if self._loaded is None or key in self._rows:
            self._fail(request, "synthesis_failed", "the model does not run")
            return
        row = self._rows[key] = _Row(request, key, speed, deque(inputs), request.deadline)
        bucket = self._buckets.for_ids(len(row.inputs[0].ids))
        self._executor.agenda.add(
            key,
            self._encode(bucket),
            request.priority,
            request.deadline - self._speaking_s(bucket),
            self._executor.now(),
            units=bucket,
            bucket=bucket,
        )

    def cancel(self, call: str, epoch: int) -> None:
        for key in [key for key in self._rows if key.call == call and key.epoch == epoch]:
            self._drop(key)

    def settle(self) -> None:
        """Cancels have left at once."""

    def quantum(self, choice: Choice) -> None:
        self._executor.require_thread()
        assert self._loaded is not None
        rows = [self._rows[key] for key in choice.keys]
        size = self._buckets.for_batch(len(rows))
        filled = [*rows, *([rows[0]] * (size - len(rows)))]
        if choice.kind.name == "encode":
            self._do_encode(self._loaded, rows, filled)
        else:
            self._do_speak(self._loaded, rows, filled)

    def abandon(self, choice: Choice, message: str) -> None:
        code = "overloaded" if message == EVICTED else "synthesis_failed"
        for key in choice.keys:
            row = self._rows.get(key)
            if row is not None:
                self._drop(key)
                self._fail(row.request, code, message)

    # --- one quantum ------------------------------------------------------------------------------------------

    def _do_encode(self, loaded: _Loaded, rows: list[_Row], filled: list[_Row]) -> None:
        bucket = self._buckets.for_ids(max(len(row.inputs[0].ids) for row in filled))
        styles = []
        for row in filled:
            table = loaded.voices[row.request.voice]
            styles.append(table[min(row.inputs[0].style, table.shape[0] - 1)])
        spoken = loaded.net.encode([row.inputs[0].ids for row in filled], styles, [row.speed for row in filled], bucket)
        for row, result in zip(rows, spoken, strict=False):
            row.spoken = result
            frames = self._buckets.for_frames(result.frames)
            self._executor.agenda.advance(row.key, self._speak(frames), units=frames, bucket=frames)
            self._executor.agenda.move(row.key, self._executor.now(), deadline=row.deadline)

    def _do_speak(self, loaded: _Loaded, rows: list[_Row], filled: list[_Row]) -> None:
        spoken = [row.spoken for row in filled if row.spoken is not None]
        bucket = self._buckets.for_frames(max(one.frames for one in spoken))
        audio = loaded.net.speak(spoken, bucket)
        for row, one, samples in zip(rows, spoken, audio, strict=False):
            self._land(loaded, row, one, samples[: one.frames * loaded.net.frame_samples])

    def _land(self, loaded: _Loaded, row: _Row, spoken: Spoken, samples: np.ndarray[Any, Any]) -> None:
        said, request = row.inputs.popleft(), row.request
        try:
            pcm, ends_ms = spoken_pcm(samples, spoken.durations, said, loaded.net.frame_samples)
        except BadAudioError as error:
            _log.error("speech synthesis made no audio", voice=request.voice, reason=str(error))
            self._drop(row.key)
            self._fail(request, "bad_audio", str(error))
            return
        last = not row.inputs
        results = chunks(
            request, pcm, RATE_HZ, last=last, words=said.words, ends_ms=ends_ms, before_samples=row.sent_samples
        )
        row.sent_samples += pcm.size
        if last:
            self._drop(row.key)
        else:
            self._go_on(row, pcm.size / RATE_HZ)
        self._executor.emit(partial(self._answer, request, results, last))

    def _go_on(self, row: _Row, heard_s: float) -> None:
        """The rest of a long text is not needed before what was made has been heard."""
        row.spoken = None
        agenda, now = self._executor.agenda, self._executor.now()
        bucket = self._buckets.for_ids(len(row.inputs[0].ids))
        row.deadline = max(row.deadline, now) + heard_s
        agenda.advance(row.key, self._encode(bucket), units=bucket, bucket=bucket)
        priority = max(row.request.priority, Priority.PLAYOUT)
        agenda.move(row.key, now, priority=priority, deadline=row.deadline - self._speaking_s(bucket))

    def _speaking_s(self, ids: int) -> float:
        """What the second stage of a text costs: about three frames an id, at the usual rate of speech."""
        frames = self._buckets.for_frames(3 * ids)
        return self._executor.agenda.costs.estimate(self._speak(frames), 1, frames)

    def _drop(self, key: Key) -> None:
        del self._rows[key]
        self._executor.agenda.drop(key)

    def _fail(self, request: Synthesize, code: str, message: str) -> None:
        failed = SynthesisFailed(request.epoch, request.segment, code, message)
        self._executor.emit(partial(self._answer, request, [failed], True))
