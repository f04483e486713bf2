"""A language model on the CPU lane, one core a reply; by default SmolLM2 on CTranslate2, int8.

A reply begins as a job of its own on the lane that offers its slot at every token: a transcript of another call waits
for one step at most. The job says it to its end, or hands it to one that says others too
(:class:`engines.llm.text_model.TextModel`). CTranslate2 keeps no cache between calls and computes the whole prompt each
time, so history is bounded; it could keep the state of a system prompt (``cache_static_prompt``), never evicts one, and
has a cache a worker, so that is left off. :mod:`engines.llm.onnx_model` keeps prompts, and is what presets use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from engines.api import EngineError
from engines.in_flight import InFlight
from engines.lane import CpuLane, LaneFull, Slot
from engines.llm.ctranslate2_model import CTranslate2Model
from engines.llm.detokenize import Detokenizer
from engines.llm.history import ContextTooLongError, bounded
from engines.llm.text_model import TextModel, Wanted
from engines.llm.written_tools import written_out
from streaming.jobs import Generate, Generation, GenerationDone, GenerationFailed, Message, Priority, Token, Usage

HISTORY_TOKENS = 400
"""Older turns are dropped beyond it: 400 tokens are about half a second of reading on one core (1000 are 2.5 s)."""
MAX_PROMPT_TOKENS = 1536
"""What instructions and the caller's last words may take; more is ``context_too_long``."""
WORKERS = 4
"""Replies under way at once, paused ones among them. Each takes 60 MB for 200 tokens of prompt, 200 MB for 1000."""
MAX_WAITING = 64

_PROMOTED_WITHIN_S = 0.3
_WARM_TOKENS = 4

_log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class _Reply:
    """One generation. The loop sets ``cancelled``, the lane's thread sets ``begun``; each reads the other's."""

    request: Generate
    deliver: Callable[[Generation], None]
    priority: Priority
    deadline: float
    slot: Slot | None = None
    cancelled: bool = False
    begun: bool = False

    def urgency(self) -> tuple[Priority, float] | None:
        return None if self.cancelled else (self.priority, self.deadline)


class _Unhurried:
    """The slot of a warm-up."""

    def yield_if_needed(self) -> bool:
        return True

    def reprioritize(self, priority: Priority, deadline: float) -> None: ...


class CTranslate2LanguageModel:
    """A :class:`engines.api.LanguageModel`.

    At most ``workers`` replies are in the lane, the rest wait here, most urgent first: a reply that holds a slot and
    waits for a worker would wait for ever, as the paused reply that holds the worker waits for the slot. Speculative
    replies take at most half of the workers. ``load(model_dir, workers)`` makes the model; one that keeps prompts
    wants a ``history_step`` above 1 (:func:`engines.llm.history.bounded`).
    """

    def __init__(
        self,
        model_dir: Path,
        lane: CpuLane,
        *,
        workers: int = WORKERS,
        history_tokens: int = HISTORY_TOKENS,
        history_step: int = 1,
        max_prompt_tokens: int = MAX_PROMPT_TOKENS,
        load: Callable[[Path, int], TextModel] = CTranslate2Model,
    ) -> None:
        self._model_dir = model_dir
        self._lane = lane
        self._workers = workers
        self._history_tokens = history_tokens
        self._history_step = history_step
        self._max_prompt_tokens = max_prompt_tokens
        self._load = load
        self._model: TextModel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_flight = InFlight()
        self._replies: dict[tuple[str, int], _Reply] = {}
        self._waiting: list[_Reply] = []
        self._admitted: set[_Reply] = set()

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._model = await asyncio.to_thread(self._load_and_warm)

    def generate(self, request: Generate, deliver: Callable[[Generation], None]) -> None:
        loop = self._running_loop()
        key = (request.call, request.epoch)
        request, deliver = written_out(request, deliver)
        reply = _Reply(request, deliver, request.priority, request.deadline)
        if key in self._replies:
            loop.call_soon(deliver, GenerationFailed(request.epoch, "duplicate_epoch", "this epoch has a reply"))
            return
        self._replies[key] = reply
        if len(self._waiting) >= MAX_WAITING:
            loop.call_soon(self._finish, reply, GenerationFailed(request.epoch, "overloaded", "too many replies wait"))
            return
        self._waiting.append(reply)
        self._admit()

    def prioritize(self, call: str, epoch: int) -> None:
        reply = self._replies.get((call, epoch))
        if reply is None or reply.priority <= Priority.DECODE:
            return
        # A speculation has no deadline; what the caller now waits for has one.
        reply.priority = Priority.DECODE
        reply.deadline = min(reply.deadline, self._running_loop().time() + _PROMOTED_WITHIN_S)
        self._reorder(reply, reply.priority, reply.deadline)
        self._admit()

    def postpone(self, call: str, epoch: int, until: float) -> None:
        reply = self._replies.get((call, epoch))
        if reply is not None:
            reply.deadline = until
            self._reorder(reply, reply.priority, until)

    def cancel(self, call: str, epoch: int) -> None:
        reply = self._replies.pop((call, epoch), None)
        if reply is None:
            return
        reply.cancelled = True
        if reply in self._waiting:
            self._waiting.remove(reply)
        # Paused or queued, it would hold its place until its turn: let it come up at once, and end.
        self._reorder(reply, Priority.FINAL, 0.0)
        if not reply.begun:
            self._admitted.discard(reply)
        self._admit()

    def forget(self, call: str) -> None:
        for key in [key for key in self._replies if key[0] == call]:
            self.cancel(*key)

    async def close(self) -> None:
        for key in list(self._replies):
            self.cancel(*key)
        await self._in_flight.drain()
        model, self._model = self._model, None
        if model is not None:
            await asyncio.to_thread(model.close)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._model is None:
            raise EngineError("not_started", "the language model is not running")
        return self._loop

    def _load_and_warm(self) -> TextModel:
        model = self._load(self._model_dir, self._workers)
        prompt = model.chat.prompt_ids([Message("system", "Be brief. " * 20), Message("user", "Hello?")])
        failures: list[Exception | None] = []
        wanted = Wanted(
            prompt,
            _WARM_TOKENS,
            0.0,
            on_token=lambda _: False,
            on_end=lambda _, failure: failures.append(failure),
            urgency=lambda: (Priority.DECODE, 0.0),
        )
        model.generate(wanted, _Unhurried())
        for failure in filter(None, failures):
            raise failure
        return model

    def _reorder(self, reply: _Reply, priority: Priority, deadline: float) -> None:
        if reply.slot is not None:
            reply.slot.reprioritize(priority, deadline)
        if reply.begun and self._model is not None:
            self._model.reorder()  # it may be said by another's slot by now, or others by its own

    def _admit(self) -> None:
        """Hand waiting replies to the lane while there are workers for them."""
        self._waiting.sort(key=lambda reply: (reply.priority, reply.deadline))
        while self._waiting and len(self._admitted) < self._workers:
            reply = self._waiting[0]
            speculative = sum(other.priority is Priority.SPECULATIVE for other in self._admitted)
            if reply.priority is Priority.SPECULATIVE and speculative >= max(1, self._workers // 2):
                return
            self._waiting.pop(0)
            self._submit(reply)

    def _submit(self, reply: _Reply) -> None:
        try:
            reply.slot = self._lane.submit(
                reply.priority,
                reply.deadline,
                lambda slot: self._run(reply, slot),
                abandoned=lambda: reply.cancelled,
            )
        except LaneFull as error:
            failure = GenerationFailed(reply.request.epoch, "overloaded", str(error))
            self._running_loop().call_soon(self._finish, reply, failure)
            return
        self._admitted.add(reply)

    def _run(self, reply: _Reply, slot: Slot) -> None:
        """On a lane thread."""
        loop, model = self._loop, self._model
        assert loop is not None
        reply.begun = True
        if reply.cancelled or not self._in_flight.begin():
            loop.call_soon_threadsafe(self._release, reply)
            return
        assert model is not None
        try:
            wanted = self._wanted(reply, model, loop)
        except Exception as error:  # noqa: BLE001 (whatever it was, the caller must hear of it)
            self._ended(reply, loop, self._failed(reply, error))
            return
        model.generate(wanted, slot)

    def _wanted(self, reply: _Reply, model: TextModel, loop: asyncio.AbstractEventLoop) -> Wanted:
        request = reply.request
        prompt = self._prompt(request, model)
        text = Detokenizer(model.decode)
        completion = 0
        ended = False

        def on_token(token: int) -> bool:
            nonlocal completion, ended
            if reply.cancelled:
                return True
            completion += 1
            if token in model.end_ids:
                ended = True
                return True
            if piece := text.feed(token):
                loop.call_soon_threadsafe(self._tell, reply, Token(request.epoch, piece))
            return False

        def done(prefilled: int) -> Generation:
            if piece := text.finish():
                loop.call_soon_threadsafe(self._tell, reply, Token(request.epoch, piece))
            usage = Usage(len(prompt), prefilled, completion)
            stopped = ended or completion < request.max_tokens
            return GenerationDone(request.epoch, "stop" if stopped else "length", usage)

        def on_end(prefilled: int, error: Exception | None) -> None:
            try:
                end = done(prefilled) if error is None else self._failed(reply, error)
            except Exception as failure:  # noqa: BLE001 (the last piece of text)
                end = self._failed(reply, failure)
            self._ended(reply, loop, end)

        return Wanted(prompt, request.max_tokens, request.temperature, on_token, on_end, reply.urgency)

    def _prompt(self, request: Generate, model: TextModel) -> list[int]:
        encoded: dict[int, list[int]] = {}

        def count(message: Message) -> int:
            ids = encoded[id(message)] = model.chat.message_ids(message)
            return len(ids)

        kept = bounded(
            request.messages,
            count,
            history_tokens=self._history_tokens,
            max_tokens=self._max_prompt_tokens,
            step=self._history_step,
        )
        return [token for message in kept for token in encoded[id(message)]] + model.chat.reply_ids

    def _failed(self, reply: _Reply, error: Exception) -> GenerationFailed:
        epoch = reply.request.epoch
        if isinstance(error, ContextTooLongError):
            return GenerationFailed(epoch, "context_too_long", str(error))
        _log.error("a reply failed", call=reply.request.call, exc_info=error)
        return GenerationFailed(epoch, "generation_failed", f"{type(error).__name__}: {error}")

    def _ended(self, reply: _Reply, loop: asyncio.AbstractEventLoop, end: Generation) -> None:
        self._in_flight.end()
        loop.call_soon_threadsafe(self._finish, reply, end)

    def _tell(self, reply: _Reply, token: Token) -> None:
        if not reply.cancelled:
            reply.deliver(token)

    def _finish(self, reply: _Reply, end: Generation) -> None:
        if not reply.cancelled:
            del self._replies[(reply.request.call, reply.request.epoch)]
            reply.cancelled = True
            reply.deliver(end)
        self._release(reply)

    def _release(self, reply: _Reply) -> None:
        self._admitted.discard(reply)
        self._admit()
