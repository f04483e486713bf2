"""The generations of one mlx-lm model on the executor's thread.

A row goes: START (template, tokenise, fit, find the cache) -> PREFILL (chunks, several prompts together; who has one
token left joins the batch) -> DECODE (a token a step, with all other rows) -> gone, its cache kept for the call's next
turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from engines.executor import device
from engines.executor.batch import Joining, Prompt, TokenBatch, open_batch
from engines.executor.cache import KeptCache
from engines.executor.policy import Choice, Key, Kind
from engines.executor.thread import MlxExecutor
from engines.executor.workload import EVICTED
from engines.llm.history import ContextTooLongError
from engines.llm.mlx_contexts import Contexts, RowsLimits
from engines.llm.mlx_fused import fuse
from engines.llm.mlx_warm import Extent, warm
from engines.llm.mlx_words import Words
from streaming.jobs import Generate, Generation, GenerationDone, GenerationFailed, Message, Priority, Token, Usage

_CLAUSE_TOKENS = 12
"""Tokens of a clause: how many steps a row needs until its deadline is met."""
_STARTS_TOGETHER = 8
_PREFILLS_TOGETHER = 8
_WARM_CPU_S = 2.0
_WARM_GPU_S = 120.0
_KV_CPU_BYTES = 2 * 2**30
_KV_GPU_PART = 4

_log = structlog.get_logger(__name__)

Deliver = Callable[[str, int, Generation], None]
Load = Callable[[Path], tuple[Any, Any]]
"""Makes a model of mlx-lm and its tokenizer (mlx-lm's wrapper) from a folder, on the MLX thread."""


def load_checkpoint(folder: Path) -> tuple[Any, Any]:
    """As ``mlx_lm.load``."""
    from mlx_lm.utils import load

    model, tokenizer = load(str(folder))
    return model, tokenizer


@dataclass(slots=True)
class _Row:
    request: Generate
    key: Key
    live: bool
    prompt: Prompt | None = None
    shared_tokens: int = 0
    """Where the prompt's system part ends, until that has been computed and handed to :class:`SharedPrefixes`."""
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

    batch: TokenBatch
    words: Words
    contexts: Contexts
    model: Any
    tokenizer: Any


class Rows:
    """An :class:`engines.executor.thread.Workload`. Made anywhere; every method is for the executor's thread.

    Usage counts: ``prompt_tokens`` is the whole prompt after fitting, ``prefilled_tokens`` what was computed of it,
    ``completion_tokens`` what was sampled, without the stop token.
    """

    def __init__(self, executor: MlxExecutor, limits: RowsLimits, deliver: Deliver) -> None:
        self._executor = executor
        self._limits = limits
        self._deliver = deliver
        self._rows: dict[Key, _Row] = {}
        self._by_uid: dict[int, _Row] = {}
        self._leaving: list[_Row] = []
        self._loaded: _Loaded | None = None
        self._refused_for_memory = 0
        self._name = f"llm-{id(self):x}"
        self._start = Kind(self._name, "start", max_batch=_STARTS_TOGETHER, opens_stream=True)
        self._chunk = Kind(self._name, "prefill", max_batch=_PREFILLS_TOGETHER, max_units=limits.prefill_chunk_tokens)
        self._step = Kind(self._name, "decode", max_batch=limits.max_generations)

    # --- the executor's side ----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._name

    @property
    def open_streams(self) -> int:
        """Rows with a cache in use, in prefill or in the batch. Caches at rest don't count."""
        started = sum(row.prompt is not None or row.uid is not None for row in self._rows.values())
        return started + len(self._leaving)

    def snapshot(self) -> dict[str, int]:
        """Counts and bytes of now, for the metrics."""
        counts = {
            "rows": len(self._by_uid),
            "waiting": len(self._rows) - len(self._by_uid),
            "refused_for_memory": self._refused_for_memory,
        }
        loaded = self._loaded
        if loaded is not None:
            counts |= {"batch_width": loaded.batch.width, "batch_kv_bytes": loaded.batch.nbytes}
            counts |= loaded.contexts.snapshot()
        return counts

    def load(self, model_dir: Path, load: Load) -> None:
        """Load, attach and warm. The weights are evaluated here: a lazy one would belong to this thread's stream."""
        self._executor.require_thread()
        import mlx.core as mx

        model, tokenizer = load(model_dir)
        mx.eval(model.parameters())
        on_cpu = mx.default_device() == mx.cpu
        limits = self._limits
        if limits.pad if limits.pad is not None else not on_cpu:  # a CPU gains nothing from fewer products
            fuse(model)
        words = Words(tokenizer)
        batch = open_batch(model, words.stop_tokens, pad=limits.pad)
        max_bytes = limits.max_kv_bytes or (_KV_CPU_BYTES if on_cpu else device.memory_bytes() // _KV_GPU_PART)
        contexts = Contexts(batch, words, limits.max_context_tokens, max_bytes, limits.max_kept_calls)
        loaded = _Loaded(batch, words, contexts, model, tokenizer)
        self._loaded = loaded
        self._executor.attach(self)  # first, so that a failed warm-up is closed like everything else
        kinds = {"prefill": self._chunk, "decode": self._step}
        for timed in warm(
            loaded.batch,
            words.encode([Message("user", "hello")]),
            self._executor.now,
            Extent(
                max_rows=limits.max_generations,
                max_prefill_tokens=limits.prefill_chunk_tokens,
                max_prefill_rows=_PREFILLS_TOGETHER,
                max_context_tokens=limits.max_context_tokens,
                max_bytes=max_bytes,
            ),
            limits.warm_s if limits.warm_s is not None else _WARM_CPU_S if on_cpu else _WARM_GPU_S,
            compiles=not on_cpu,
        ):
            self._executor.agenda.costs.seed(kinds[timed.step], timed.batch, timed.length, timed.seconds)

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
            loaded.contexts.clear()
        self._rows.clear()
        self._by_uid.clear()
        self._leaving.clear()

    def insert(self, request: Generate) -> None:
        """Queue a generation. Nothing is computed here, so the inbox stays quick."""
        self._executor.require_thread()
        key = self._key(request.call, request.epoch)
        if self._loaded is None or key in self._rows:
            self._emit(request, GenerationFailed(request.epoch, "engine_error", "the model does not run"))
            return
        self._rows[key] = _Row(request, key, request.priority is not Priority.SPECULATIVE)
        deadline = request.deadline - self._limits.speech_reserve_s
        self._executor.agenda.add(key, self._start, request.priority, deadline, self._executor.now())

    def prioritize(self, call: str, epoch: int) -> None:
        row = self._rows.get(self._key(call, epoch))
        if row is not None and not row.live:
            row.live = True
            self._executor.agenda.move(row.key, self._executor.now(), priority=Priority.FIRST_AUDIO)

    def postpone(self, call: str, epoch: int, until: float) -> None:
        """The next clause's words are due then."""
        row = self._rows.get(self._key(call, epoch))
        if row is None or not row.live:
            return
        self._executor.agenda.move(row.key, self._executor.now(), priority=Priority.DECODE, deadline=until)
        if row.uid is not None:
            self._executor.agenda.advance(row.key, self._step, remaining=_CLAUSE_TOKENS)

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
        if self._loaded is not None:
            self._loaded.contexts.forget(call)

    def settle(self) -> None:
        """Rows cancelled since the last quantum leave together."""
        if self._loaded is None:
            return
        self._executor.require_thread()
        leaving, self._leaving = self._leaving, []
        joined = {row.uid: row for row in leaving if row.uid is not None}
        for uid in joined:  # first: whatever fails below, they are nobody's rows any more
            self._by_uid.pop(uid, None)
        try:
            for row in leaving:
                if row.uid is None and row.prompt is not None:
                    self._keep(row, row.prompt.cache)
            for uid, cache in self._loaded.batch.leave(joined).items():
                self._keep(joined[uid], cache)
            self._loaded.batch.tidy()
        except Exception as error:  # noqa: BLE001 (a model's defect fails its rows, not the thread)
            _log.exception("the batch failed to compact", rows=len(joined))
            self._fail_batch(f"{type(error).__name__}: {error}")

    def quantum(self, choice: Choice) -> None:
        self._executor.require_thread()
        assert self._loaded is not None
        if choice.kind is self._step:
            self._decode(self._loaded)
            return
        rows = [self._rows[key] for key in choice.keys]
        if choice.kind is self._start:
            for row in rows:
                self._begin(self._loaded, row)
        else:
            self._prefill(self._loaded, rows, choice.max_units or self._limits.prefill_chunk_tokens)

    def abandon(self, choice: Choice, message: str) -> None:
        """A failed decode step fails its rows, a failed chunk its prompts; the thread and all others go on."""
        if message == EVICTED:  # they leave as if cancelled
            for row in [self._rows[key] for key in choice.keys if key in self._rows]:
                self.cancel(row.request.call, row.request.epoch)
                self._emit(row.request, GenerationFailed(row.request.epoch, "overloaded", "more urgent work came"))
        elif choice.kind is self._step:
            self._fail_batch(message)
        else:
            for key in choice.keys:
                self._fail(self._rows.get(key), "engine_error", message)

    # --- one quantum ------------------------------------------------------------------------------------------

    def _begin(self, loaded: _Loaded, row: _Row) -> None:
        try:
            self._prepare(loaded, row)
        except ContextTooLongError as error:
            self._fail(row, "context_too_long", str(error))
        except Exception as error:  # noqa: BLE001 (one prompt's defect is not that of those prepared with it)
            _log.exception("a prompt could not be prepared", call=row.request.call)
            self._fail(row, "engine_error", f"{type(error).__name__}: {error}")

    def _prepare(self, loaded: _Loaded, row: _Row) -> None:
        request = row.request
        tokens = loaded.contexts.fit(request.call, request.messages)
        if not tokens:
            raise ValueError("the template makes no prompt of these messages")
        row.prompt_tokens = len(tokens)
        begun = [one for one in self._rows.values() if one.prompt is not None or one.uid is not None]
        # The batch's rows all have the room of the longest.
        longest = max(one.prompt_tokens + one.request.max_tokens for one in [*begun, row])
        in_use = loaded.batch.nbytes_for(len(begun) + 1, longest)
        in_use += sum(one.prompt.cache.nbytes for one in begun if one.prompt is not None)
        if not loaded.contexts.make_room(len(tokens) * loaded.batch.token_nbytes, in_use):
            self._refused_for_memory += 1
            self._fail(row, "overloaded", "no memory is left for another context")
            return
        beside = [
            other.prompt if other.prompt is not None else other.uid
            for other in self._rows.values()
            if other.request.call == request.call and other is not row
        ]
        prefix = loaded.contexts.system_prefix(request.messages, tokens)
        cache = loaded.contexts.cache_for(request.call, tokens, prefix, [one for one in beside if one is not None])
        row.shared_tokens = len(prefix) if len(cache.tokens) < len(prefix) else 0
        row.prefilled_tokens = len(tokens) - len(cache.tokens)
        row.detokenizer = loaded.words.detokenizer()
        row.prompt = Prompt(cache, tokens[len(cache.tokens) :])
        self._await_prefill(row, row.prompt)

    def _await_prefill(self, row: _Row, prompt: Prompt) -> None:
        self._executor.agenda.advance(row.key, self._chunk, units=max(len(prompt.rest) - 1, 1))

    def _prefill(self, loaded: _Loaded, rows: Iterable[_Row], budget: int) -> None:
        prompts, most = list[tuple[_Row, Prompt]](), list[int]()
        for row in rows:
            assert row.prompt is not None
            share = min(budget, len(row.prompt.rest) - 1)
            if row.shared_tokens:  # stop where the part ends that others will want
                share = min(share, row.shared_tokens - len(row.prompt.cache.tokens))
            budget -= share
            prompts.append((row, row.prompt))
            most.append(share)
        loaded.batch.prefill([prompt for _, prompt in prompts], most)
        ready = []
        for row, prompt in prompts:
            if row.shared_tokens and len(prompt.cache.tokens) == row.shared_tokens:
                row.shared_tokens = 0
                loaded.contexts.share(prompt.cache)
            if len(prompt.rest) == 1:
                ready.append((row, prompt))
            else:
                self._await_prefill(row, prompt)
        if ready:
            self._join(loaded, ready)

    def _join(self, loaded: _Loaded, ready: Sequence[tuple[_Row, Prompt]]) -> None:
        uids = loaded.batch.join(
            [Joining(prompt, row.request.max_tokens, row.request.temperature) for row, prompt in ready]
        )
        for (row, _), uid in zip(ready, uids, strict=True):
            row.uid, row.prompt = uid, None
            self._by_uid[uid] = row
            self._executor.agenda.advance(row.key, self._step, remaining=_CLAUSE_TOKENS)

    def _decode(self, loaded: _Loaded) -> None:
        for stepped in loaded.batch.step():
            row = self._by_uid[stepped.uid]
            if stepped.token not in loaded.words.stop_tokens:
                row.completion_tokens += 1
            try:
                text = loaded.words.text(row.detokenizer, stepped.token, last=stepped.finish is not None)
            except Exception as error:  # noqa: BLE001 (one row's text is not the batch's failure)
                _log.exception("a token could not be made text", call=row.request.call, token=stepped.token)
                cache = stepped.cache or loaded.batch.leave([stepped.uid]).get(stepped.uid)
                message = f"{type(error).__name__}: {error}"
                self._end(row, GenerationFailed(row.request.epoch, "engine_error", message), cache)
                continue
            if text:
                self._emit(row.request, Token(row.request.epoch, text))
            if stepped.finish is not None:
                self._end(row, GenerationDone(row.request.epoch, stepped.finish, row.usage()), stepped.cache)

    def _keep(self, row: _Row, cache: KeptCache | None) -> None:
        if cache is not None and row.keep and self._loaded is not None:
            self._loaded.contexts.keep(row.request.call, cache)

    # --- ends -------------------------------------------------------------------------------------------------

    def _end(self, row: _Row, result: GenerationDone | GenerationFailed, cache: KeptCache | None) -> None:
        del self._rows[row.key]
        if row.uid is not None:
            self._by_uid.pop(row.uid, None)
        self._executor.agenda.drop(row.key)
        self._keep(row, cache)
        self._emit(row.request, result)

    def _fail(self, row: _Row | None, code: str, message: str) -> None:
        if row is not None:
            self._end(row, GenerationFailed(row.request.epoch, code, message), None)

    def _fail_batch(self, message: str) -> None:
        """The batch's state can't be trusted after a failure inside it: its rows fail and a new batch begins. Prompts
        on their way to it live on; one whose beginning rested in the batch is computed anew."""
        assert self._loaded is not None
        self._loaded.batch.reset()
        for row in list(self._by_uid.values()):
            self._fail(row, "engine_error", message)
        for row in self._rows.values():
            if row.prompt is not None and row.prompt.cache.lost:
                row.prompt = self._loaded.contexts.anew(row.prompt)
                row.prefilled_tokens = row.prompt_tokens
                self._await_prefill(row, row.prompt)

    def _emit(self, request: Generate, result: Generation) -> None:
        self._executor.emit(partial(self._deliver, request.call, request.epoch, result))

    def _key(self, call: str, epoch: int) -> Key:
        return Key(self._name, call, epoch)
