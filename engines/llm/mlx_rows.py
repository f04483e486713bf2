"""The generations of one mlx-lm model on the executor's thread.

A row goes: START (template, tokenise, fit, find the cache, first chunk) -> PREFILL (next chunks; the last one joins the
batch) -> DECODE (a token a step, with all other rows) -> gone, its cache kept for the call's next turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from engines.executor.batch import Prompt, Stepped, TokenBatch
from engines.executor.cache import KeptCache, KeptCaches, common_prefix
from engines.executor.policy import Choice, Key, Kind
from engines.executor.thread import MlxExecutor
from engines.llm.history import ContextTooLongError
from engines.llm.prompt_fit import fit_history
from streaming.jobs import Generate, Generation, GenerationDone, GenerationFailed, Message, Priority, Token, Usage

_INCOMPLETE = "\ufffd"
_MAX_ROWS = 1 << 20
_MAX_REMEMBERED_CUTS = 1024

_log = structlog.get_logger(__name__)

Deliver = Callable[[str, int, Generation], None]


@dataclass(frozen=True, slots=True)
class RowsLimits:
    max_context_tokens: int
    prefill_chunk_tokens: int
    max_kept_bytes: int
    max_kept_calls: int


@dataclass(slots=True)
class _Row:
    request: Generate
    key: Key
    prompt: Prompt | None = None
    uid: int | None = None
    detokenizer: Any = None
    prompt_tokens: int = 0
    prefilled_tokens: int = 0
    completion_tokens: int = 0
    keep: bool = True

    def usage(self) -> Usage:
        return Usage(self.prompt_tokens, self.prefilled_tokens, self.completion_tokens)


@dataclass(slots=True)
class _Loaded:
    """What lives as long as the weights do."""

    model: Any
    tokenizer: Any
    batch: TokenBatch
    stop_tokens: frozenset[int]
    special_tokens: frozenset[int]
    special_texts: tuple[str, ...]
    cuts: dict[str, int] = field(default_factory=dict)
    """Messages dropped at each call's last turn."""


class Rows:
    """A :class:`engines.executor.thread.Workload`. Made anywhere; every method is for the executor's thread.

    Usage counts: ``prompt_tokens`` is the whole prompt after fitting, ``prefilled_tokens`` what was computed of it,
    ``completion_tokens`` what was sampled, without the stop token.
    """

    def __init__(self, executor: MlxExecutor, limits: RowsLimits, deliver: Deliver) -> None:
        self._executor = executor
        self._limits = limits
        self._deliver = deliver
        self._kept = KeptCaches(limits.max_kept_bytes, limits.max_kept_calls)
        self._rows: dict[Key, _Row] = {}
        self._by_uid: dict[int, _Row] = {}
        self._leaving: list[_Row] = []
        self._loaded: _Loaded | None = None
        self._name = f"llm-{id(self):x}"
        self._start = Kind(self._name, "start", opens_stream=True)
        self._chunk = Kind(self._name, "prefill")
        self._step = Kind(self._name, "decode", max_batch=_MAX_ROWS)

    # --- the executor's side ----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._name

    @property
    def open_streams(self) -> int:
        """Rows with a cache in use, in prefill or in the batch. Caches at rest don't count."""
        started = sum(row.prompt is not None or row.uid is not None for row in self._rows.values())
        return started + len(self._leaving)

    def load(self, model_dir: Path) -> None:
        """Load, warm and attach. The weights are evaluated here: a lazy one would belong to this thread's stream."""
        self._executor.require_thread()
        import mlx.core as mx
        from mlx_lm.utils import load

        model, tokenizer = load(str(model_dir))
        mx.eval(model.parameters())
        special = [token for token in tokenizer.all_special_tokens if len(token) > 1]
        self._loaded = _Loaded(
            model=model,
            tokenizer=tokenizer,
            batch=TokenBatch(model, tokenizer.eos_token_ids),
            stop_tokens=frozenset(tokenizer.eos_token_ids),
            special_tokens=frozenset(tokenizer.all_special_ids),
            special_texts=tuple(special),
        )
        self._executor.attach(self)  # first, so that a failed warm-up is closed like everything else
        self._warm(self._loaded)

    def detach(self) -> None:
        self._executor.detach(self)

    def close(self) -> None:
        """Take the rows out while the streams still live, then let go of everything that holds arrays."""
        self._executor.require_thread()
        loaded, self._loaded = self._loaded, None
        for key in self._rows:
            self._executor.agenda.drop(key)
        if loaded is not None:
            loaded.batch.leave(list(self._by_uid))
            loaded.batch.reset()
        self._rows.clear()
        self._by_uid.clear()
        self._leaving.clear()
        self._kept.clear()

    def insert(self, request: Generate) -> None:
        """Queue a generation. Nothing is computed here, so the inbox stays quick."""
        self._executor.require_thread()
        key = self._key(request.call, request.epoch)
        if self._loaded is None or key in self._rows:
            self._emit(request, GenerationFailed(request.epoch, "engine_error", "the model does not run"))
            return
        self._rows[key] = _Row(request, key)
        self._executor.agenda.add(key, self._start, request.priority, request.deadline, self._executor.now())

    def prioritize(self, call: str, epoch: int) -> None:
        key = self._key(call, epoch)
        row = self._rows.get(key)
        if row is not None and row.request.priority is Priority.SPECULATIVE:
            self._executor.agenda.move(key, self._executor.now(), priority=Priority.FIRST_AUDIO)

    def cancel(self, call: str, epoch: int) -> None:
        row = self._rows.pop(self._key(call, epoch), None)
        if row is not None:
            self._executor.agenda.drop(row.key)
            self._leaving.append(row)

    def forget(self, call: str) -> None:
        for key in [key for key in self._rows if key.call == call]:
            self._rows[key].keep = False
            self.cancel(call, key.epoch)
        for row in self._leaving:
            row.keep = row.keep and row.request.call != call
        self._kept.forget(call)
        if self._loaded is not None:
            self._loaded.cuts.pop(call, None)

    def settle(self) -> None:
        """Rows cancelled since the last quantum leave together: one compaction of the batch, however many."""
        if not self._leaving or self._loaded is None:
            return
        self._executor.require_thread()
        leaving, self._leaving = self._leaving, []
        for row in leaving:
            if row.uid is None:
                self._keep(row, row.prompt.cache if row.prompt is not None else None)
        joined = {row.uid: row for row in leaving if row.uid is not None}
        if not joined:
            return
        for uid in joined:
            del self._by_uid[uid]
        try:
            caches = self._loaded.batch.leave(joined)
        except Exception as error:  # noqa: BLE001 (a model's defect fails its rows, not the thread)
            _log.exception("the batch failed to compact", rows=len(joined))
            self._fail_batch(f"{type(error).__name__}: {error}")
            return
        for uid, cache in caches.items():
            self._keep(joined[uid], cache)

    def quantum(self, choice: Choice) -> None:
        self._executor.require_thread()
        assert self._loaded is not None
        if choice.kind is self._step:
            self._decode(self._loaded)
            return
        row = self._rows[choice.keys[0]]
        if row.prompt is None:
            self._prepare(self._loaded, row)
        if row.prompt is not None:
            self._prefill(self._loaded, row, row.prompt)

    def abandon(self, choice: Choice, message: str) -> None:
        """A failed decode step fails its rows, a failed chunk its own row; the thread and all others go on."""
        if choice.kind is self._step:
            self._fail_batch(message)
            return
        row = self._rows.get(choice.keys[0])
        if row is not None:
            self._end(row, GenerationFailed(row.request.epoch, "engine_error", message), None)

    # --- one quantum ------------------------------------------------------------------------------------------

    def _prepare(self, loaded: _Loaded, row: _Row) -> None:
        call = row.request.call
        try:
            fitted = fit_history(
                row.request.messages,
                partial(self._encode, loaded),
                self._limits.max_context_tokens,
                loaded.cuts.get(call, 0),
            )
        except ContextTooLongError as error:
            self._end(row, GenerationFailed(row.request.epoch, "context_too_long", str(error)), None)
            return
        self._remember_cut(loaded, call, fitted.dropped)
        cache = self._cache_for(loaded, row, fitted.tokens)
        rest = fitted.tokens[len(cache.tokens) :]
        row.prompt_tokens = len(fitted.tokens)
        row.prefilled_tokens = len(rest)
        row.detokenizer = loaded.tokenizer.detokenizer
        row.prompt = Prompt(cache, rest)
        self._executor.agenda.advance(row.key, self._chunk)

    def _prefill(self, loaded: _Loaded, row: _Row, prompt: Prompt) -> None:
        budget = self._limits.prefill_chunk_tokens
        budget -= loaded.batch.prefill(prompt, budget)
        if len(prompt.rest) > 1 or budget == 0:
            return
        row.uid = loaded.batch.join(prompt, row.request.max_tokens, row.request.temperature)
        row.prompt = None
        self._by_uid[row.uid] = row
        self._executor.agenda.advance(row.key, self._step)

    def _decode(self, loaded: _Loaded) -> None:
        for stepped in loaded.batch.step():
            row = self._by_uid[stepped.uid]
            try:
                text = self._text(loaded, row, stepped)
            except Exception as error:  # noqa: BLE001 (one row's text is not the batch's failure)
                _log.exception("a token could not be made text", call=row.request.call, token=stepped.token)
                cache = stepped.cache or loaded.batch.leave([stepped.uid]).get(stepped.uid)
                message = f"{type(error).__name__}: {error}"
                self._end(row, GenerationFailed(row.request.epoch, "engine_error", message), cache)
                continue
            if text:
                self._emit(row.request, Token(row.request.epoch, text))
            if stepped.finish is not None:
                done = GenerationDone(row.request.epoch, stepped.finish, row.usage())
                self._end(row, done, stepped.cache)

    def _text(self, loaded: _Loaded, row: _Row, stepped: Stepped) -> str:
        if stepped.token not in loaded.stop_tokens:
            row.completion_tokens += 1
            if stepped.token not in loaded.special_tokens:  # a marker is not speech
                row.detokenizer.add_token(stepped.token)
        if stepped.finish is not None:
            row.detokenizer.finalize()
        text: str = row.detokenizer.last_segment
        return text.rstrip(_INCOMPLETE) if stepped.finish is not None else text

    # --- caches -----------------------------------------------------------------------------------------------

    def _cache_for(self, loaded: _Loaded, row: _Row, tokens: Sequence[int]) -> KeptCache:
        """The cache that saves most of this prompt's prefill: the call's kept one, or a copy of another row's of the
        same call (a speculation beside the reply that is still being generated)."""
        call = row.request.call
        shared = self._kept.shared(call, tokens)
        for other in self._rows.values():
            if other.request.call != call or other is row:
                continue
            copied = self._copy_if_longer(loaded, other, tokens, shared)
            if copied is not None:
                return copied
        return self._kept.take(call, tokens) or loaded.batch.new_cache()

    def _copy_if_longer(self, loaded: _Loaded, other: _Row, tokens: Sequence[int], shared: int) -> KeptCache | None:
        if other.prompt is not None:
            held: Sequence[int] = other.prompt.cache.tokens
        else:
            held = loaded.batch.tokens_of(other.uid) if other.uid is not None else ()
        reuse = min(common_prefix(held, tokens), len(tokens) - 1)
        if reuse <= shared:
            return None
        if other.prompt is not None:
            copied = loaded.batch.clone(other.prompt.cache)
        else:
            assert other.uid is not None
            copied = loaded.batch.fork(other.uid)
        return copied if copied.cut_to(reuse) else None

    def _keep(self, row: _Row, cache: KeptCache | None) -> None:
        if cache is not None and row.keep:
            self._kept.keep(row.request.call, cache)

    def _remember_cut(self, loaded: _Loaded, call: str, dropped: int) -> None:
        loaded.cuts.pop(call, None)
        if dropped:
            loaded.cuts[call] = dropped
            if len(loaded.cuts) > _MAX_REMEMBERED_CUTS:
                del loaded.cuts[next(iter(loaded.cuts))]

    # --- ends -------------------------------------------------------------------------------------------------

    def _end(self, row: _Row, result: GenerationDone | GenerationFailed, cache: KeptCache | None) -> None:
        del self._rows[row.key]
        if row.uid is not None:
            self._by_uid.pop(row.uid, None)
        self._executor.agenda.drop(row.key)
        self._keep(row, cache)
        self._emit(row.request, result)

    def _fail_batch(self, message: str) -> None:
        """The batch's state can't be trusted after a failure inside it: its rows fail and a new batch begins."""
        assert self._loaded is not None
        self._loaded.batch.reset()
        for row in list(self._by_uid.values()):
            self._end(row, GenerationFailed(row.request.epoch, "engine_error", message), None)
        self._by_uid.clear()

    def _emit(self, request: Generate, result: Generation) -> None:
        self._executor.emit(partial(self._deliver, request.call, request.epoch, result))

    # --- text -------------------------------------------------------------------------------------------------

    def _key(self, call: str, epoch: int) -> Key:
        return Key(self._name, call, epoch)

    def _encode(self, loaded: _Loaded, messages: Sequence[Message]) -> list[int]:
        turns = [{"role": message.role, "content": self._plain(loaded, message.content)} for message in messages]
        tokens: list[int] = loaded.tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, enable_thinking=False
        )
        return list(tokens)

    def _plain(self, loaded: _Loaded, text: str) -> str:
        """The text with the template's markers broken up: a caller's words can't end a message."""
        for marker in loaded.special_texts:
            text = text.replace(marker, f"{marker[:1]} {marker[1:]}")
        return text

    def _warm(self, loaded: _Loaded) -> None:
        """Run one prefill and a batch of one and of two, so that kernels are made before the first call."""
        tokens = self._encode(loaded, [Message("user", "hello")])
        for _ in range(2):
            prompt = Prompt(loaded.batch.new_cache(), list(tokens))
            loaded.batch.prefill(prompt, self._limits.prefill_chunk_tokens)
            del prompt.rest[:-1]
            loaded.batch.join(prompt, 4, 0.0)
        while len(loaded.batch):
            loaded.batch.step()
