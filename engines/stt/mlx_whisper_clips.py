"""Whisper on the executor's thread: the clips of all calls, encoded one by one and decoded together.

A job (:class:`engines.stt.utterance.Job`) is a few clips, mostly one. Each clip is one ``encode`` quantum and joins the
decode batch, whose ``transcribe`` quanta are a bounded number of tokens for every row. A hypothesis that loops sends
its clip back to be encoded in the full window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import structlog

from engines.api import Pcm16
from engines.executor.policy import Choice, Key, Kind
from engines.executor.thread import MlxExecutor
from engines.executor.workload import EVICTED
from engines.stt.mlx_whisper_batch import DecodeBatch, Row
from engines.stt.mlx_whisper_model import Keys, WhisperModel, window_frames
from engines.stt.mlx_whisper_warm import warm
from engines.stt.plausible import audible, verdict
from engines.stt.utterance import Job, Outcome
from engines.stt.whisper_decoder import MIN_SAMPLES, RETRY, DecodeOptions, max_tokens
from streaming.jobs import INPUT_RATE_HZ, Priority

_WORDS_PER_SECOND = 3
"""Tokens of brisk speech, for the estimate of how many quanta a clip needs."""

_log = structlog.get_logger(__name__)

Deliver = Callable[[int, Outcome], None]


class Allowance:
    """Time that may be spent at a share of all time, saved up for a second at most. ``now`` is the caller's clock."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._left_s = share
        self._at: float | None = None

    def left(self, now: float) -> bool:
        passed = 0.0 if self._at is None else now - self._at
        self._at = now
        self._left_s = min(self._share, self._left_s + passed * self._share)
        return self._left_s > 0

    def spend(self, seconds: float) -> None:
        self._left_s -= seconds


@dataclass(frozen=True, slots=True)
class ClipLimits:
    """``buckets`` are window lengths in mel frames of 10 ms, ascending, the last one the full window. ``pad``: as
    :class:`DecodeBatch` has it. ``warm_s`` bounds the warm-up."""

    buckets: Sequence[int]
    tokens_per_quantum: int
    max_rows: int
    final: DecodeOptions
    partial: DecodeOptions
    partial_share: float
    pad: bool | None = None
    warm_s: float = 60.0


@dataclass(eq=False, slots=True)
class _Clip:
    pcm: Pcm16
    options: DecodeOptions
    partial: bool = False
    text: str | None = None


@dataclass(eq=False, slots=True)
class _Task:
    """A job here. ``heard`` is its clip between its encoding and its turn in the batch, ``row`` after that."""

    serial: int
    key: Key
    job: Job
    clips: list[_Clip]
    at: int = 0
    heard: Keys | None = None
    row: Row | None = None

    @property
    def clip(self) -> _Clip:
        return self.clips[self.at]

    def next_clip(self) -> bool:
        """Go on to the next clip that has to be decoded; False when there is none."""
        while self.at < len(self.clips) and self.clip.text is not None:
            self.at += 1
        return self.at < len(self.clips)

    def outcome(self) -> Outcome:
        texts = [clip.text or "" for clip in self.clips]
        pieces = len(self.job.pieces)
        return Outcome(texts[:pieces], " ".join(texts[pieces:]))


@dataclass(slots=True)
class _Loaded:
    model: WhisperModel
    batch: DecodeBatch
    by_row: dict[Row, _Task] = field(default_factory=dict)


class WhisperClips:
    """A :class:`engines.executor.thread.Workload`. Made anywhere; every method is for the executor's thread.

    ``deliver(serial, outcome)`` is called on the loop, once a job that was not cancelled.
    """

    def __init__(self, executor: MlxExecutor, limits: ClipLimits, deliver: Deliver) -> None:
        self._executor = executor
        self._limits = limits
        self._deliver = deliver
        self._tasks: dict[Key, _Task] = {}
        self._leaving: list[Row] = []
        self._loaded: _Loaded | None = None
        self._for_partials = Allowance(limits.partial_share)
        self._name = f"stt-{id(self):x}"
        self._encode = Kind(self._name, "encode", opens_stream=True)
        self._transcribe = Kind(self._name, "transcribe", max_batch=limits.max_rows)

    # --- the executor's side ----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._name

    @property
    def open_streams(self) -> int:
        """Rows in the batch and windows that wait to join it."""
        waiting = sum(task.heard is not None for task in self._tasks.values())
        return waiting + (len(self._loaded.batch) if self._loaded is not None else 0)

    def load(self, model_dir: Path) -> frozenset[str]:
        """Load, warm and attach; returns the languages the model knows."""
        self._executor.require_thread()
        model = WhisperModel(model_dir)
        self._loaded = _Loaded(model, DecodeBatch(model, pad=self._limits.pad))
        self._executor.attach(self)  # first, so that a failed warm-up is closed like everything else
        self._warm(self._loaded)
        return model.vocabulary.languages

    def detach(self) -> None:
        self._executor.detach(self)

    def close(self) -> None:
        self._executor.require_thread()
        loaded, self._loaded = self._loaded, None
        for key in self._tasks:
            self._executor.agenda.drop(key)
        self._tasks.clear()
        self._leaving.clear()
        if loaded is not None:
            loaded.batch.reset()
            loaded.by_row.clear()

    def insert(self, serial: int, job: Job, priority: Priority, deadline: float) -> None:
        """Queue a job. Nothing is computed here, so the inbox stays quick."""
        self._executor.require_thread()
        opened = job.opened
        task = _Task(serial, Key(self._name, opened.call, opened.utterance, serial), job, self._clips_of(job))
        if self._loaded is None:
            self._emit(task, Outcome(failure="the model does not run", code="engine_error"))
        elif not task.next_clip():
            self._emit(task, task.outcome())
        elif job.partial and len(self._executor.agenda) and not self._for_partials.left(self._executor.now()):
            # A partial decodes all of an utterance anew: many callers at once would leave nothing for finals.
            self._emit(task, Outcome(failure="partials had their share of the time", code="overloaded"))
        else:
            self._tasks[task.key] = task
            frames = self._frames(task.clip)
            now = self._executor.now()
            self._executor.agenda.add(task.key, self._encode, priority, deadline, now, units=frames, bucket=frames)

    def move(self, key: Key, priority: Priority, deadline: float) -> None:
        self._executor.agenda.move(key, self._executor.now(), priority=priority, deadline=deadline)

    def cancel(self, key: Key) -> None:
        task = self._tasks.pop(key, None)
        if task is None:
            return
        self._executor.agenda.drop(key)
        if task.row is not None:
            self._leaving.append(task.row)

    def key_of(self, serial: int, job: Job) -> Key:
        """Where the job is on the agenda. May be called anywhere."""
        return Key(self._name, job.opened.call, job.opened.utterance, serial)

    def settle(self) -> None:
        """Rows cancelled since the last quantum leave together."""
        if not self._leaving or self._loaded is None:
            return
        leaving, self._leaving = self._leaving, []
        for row in leaving:
            self._loaded.by_row.pop(row, None)
        try:
            self._loaded.batch.leave(leaving)
        except Exception as error:  # noqa: BLE001 (a model's defect fails its rows, not the thread)
            _log.exception("the batch failed to compact", rows=len(leaving))
            self._fail_batch(self._loaded, f"{type(error).__name__}: {error}")

    def quantum(self, choice: Choice) -> None:
        self._executor.require_thread()
        assert self._loaded is not None
        if choice.kind is self._encode:
            self._hear(self._loaded, self._tasks[choice.keys[0]])
        else:
            self._decode(self._loaded, [self._tasks[key] for key in choice.keys])

    def abandon(self, choice: Choice, message: str) -> None:
        """A failed encoding fails its job; a failed decode the jobs of the batch, whose state can't be trusted."""
        outcome = Outcome(failure=message)
        if message == EVICTED:
            outcome = Outcome(failure="more urgent work came", code="overloaded")
        elif choice.kind is self._transcribe and self._loaded is not None:
            self._fail_batch(self._loaded, message)
        for key in choice.keys:
            task = self._tasks.get(key)
            if task is not None:
                self.cancel(key)
                self._emit(task, outcome)

    def _fail_batch(self, loaded: _Loaded, message: str) -> None:
        failed = list(loaded.by_row.values())
        loaded.batch.reset()
        loaded.by_row.clear()
        self._leaving.clear()
        for task in failed:
            self._end(task, Outcome(failure=message))

    # --- one quantum ------------------------------------------------------------------------------------------

    def _hear(self, loaded: _Loaded, task: _Task) -> None:
        task.job.begun = True
        clip = task.clip
        began = self._executor.now()
        task.heard = loaded.model.encode(clip.pcm, self._frames(clip))
        if clip.partial:
            self._for_partials.spend(self._executor.now() - began)
        seconds = clip.pcm.size / INPUT_RATE_HZ
        quanta = 1 + int(seconds * _WORDS_PER_SECOND) // self._limits.tokens_per_quantum
        self._executor.agenda.advance(task.key, self._transcribe, remaining=quanta)

    def _decode(self, loaded: _Loaded, tasks: list[_Task]) -> None:
        """The chosen rows that wait join; then every row of the batch gets its tokens, chosen or not."""
        room = self._limits.max_rows - len(loaded.batch)
        joining = [task for task in tasks if task.row is None][:room]
        for task in joining:
            assert task.heard is not None
            task.row = self._row(loaded, task, task.heard)
            task.heard = None
            loaded.by_row[task.row] = task
        loaded.batch.join([task.row for task in joining if task.row is not None])
        for _ in range(self._limits.tokens_per_quantum):
            if all(row.ended for row in loaded.by_row):
                break
            loaded.batch.step()
        ended = [row for row in loaded.by_row if row.ended]
        loaded.batch.leave(ended)
        for row in ended:
            self._judge(loaded, loaded.by_row.pop(row), row)

    def _row(self, loaded: _Loaded, task: _Task, heard: Keys) -> Row:
        prompt = loaded.model.prompt(task.job.opened.language)
        most = min(max_tokens(task.clip.pcm.size), loaded.model.dims.n_text_ctx - len(prompt))
        return Row(heard, prompt, most, task.clip.options.repetition_penalty)

    def _judge(self, loaded: _Loaded, task: _Task, row: Row) -> None:
        task.row = None
        clip = task.clip
        if not math.isfinite(row.log_probability):  # or what the model could not compute would be taken for silence
            self._end(task, Outcome(failure="the model's numbers are none"))
            return
        retried = clip.options == RETRY
        clip.text = verdict(loaded.batch.hypothesis(row), partial=clip.partial, retried=retried)
        if clip.text is None:
            clip.options = RETRY
        if not task.next_clip():
            self._end(task, task.outcome())
            return
        frames = self._frames(task.clip)
        self._executor.agenda.advance(task.key, self._encode, units=frames, bucket=frames)

    def _end(self, task: _Task, outcome: Outcome) -> None:
        self._tasks.pop(task.key, None)
        self._executor.agenda.drop(task.key)
        self._emit(task, outcome)

    def _emit(self, task: _Task, outcome: Outcome) -> None:
        self._executor.emit(partial(self._deliver, task.serial, outcome))

    # --- clips ------------------------------------------------------------------------------------------------

    def _clips_of(self, job: Job) -> list[_Clip]:
        clips = [_Clip(piece, self._limits.final) for piece in job.pieces]
        if job.tail:
            options = self._limits.partial if job.partial else self._limits.final
            clips.append(_Clip(np.concatenate(job.tail), options, job.partial))
        for clip in clips:
            if clip.pcm.size < MIN_SAMPLES or not audible(clip.pcm):
                clip.text = ""
        return clips

    def _frames(self, clip: _Clip) -> int:
        return window_frames(clip.pcm.size, clip.options.pad_frames, self._limits.buckets)

    def _warm(self, loaded: _Loaded) -> None:
        costs, windows, rows = self._executor.agenda.costs, self._limits.buckets, self._limits.max_rows
        for timed in warm(loaded.model, loaded.batch, self._executor.now, windows, rows, self._limits.warm_s):
            if timed.step == "encode":
                costs.seed(self._encode, 1, timed.frames, timed.seconds)
            else:
                costs.seed(self._transcribe, timed.rows, 1, timed.seconds * self._limits.tokens_per_quantum)
