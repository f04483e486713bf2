"""A language model on mlx-lm: all calls decode as one batch on the executor's thread.

The class here is the event loop's half; :class:`engines.llm.mlx_rows.Rows` is the thread's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog

from engines.executor.tenancy import Tenancy
from engines.executor.thread import ExecutorUnavailableError, MlxExecutor
from engines.llm.mlx_contexts import RowsLimits
from engines.llm.mlx_rows import Load, Rows, load_checkpoint
from engines.llm.written_tools import written_out
from streaming.jobs import Generate, Generation, GenerationDone, GenerationFailed

_log = structlog.get_logger(__name__)


class MlxLanguageModel:
    """:class:`engines.api.LanguageModel` over a checkpoint folder that ``mlx_lm.load`` takes.

    The prompt is the message list and nothing else: each call's KV cache is kept between turns and reused as far as it
    begins like the new prompt (the list holds what was heard, the cache what was generated). Failure codes:
    ``context_too_long``, ``overloaded``, ``invalid_request``, ``engine_error``, ``executor_dead``, ``executor_closed``.
    """

    def __init__(
        self,
        model_dir: Path,
        executor: MlxExecutor,
        max_context_tokens: int = 2048,
        *,
        max_generations: int = 64,
        prefill_chunk_tokens: int = 512,
        max_kv_bytes: int | None = None,
        max_kept_calls: int = 256,
        warm_s: float | None = None,
        speech_reserve_s: float = 0.15,
        pad: bool | None = None,
        load: Load = load_checkpoint,
    ) -> None:
        self._model_dir = model_dir
        self._load = load
        self._executor = executor
        self._max_generations = max_generations
        self._live: dict[tuple[str, int], Callable[[Generation], None]] = {}
        self._rows = Rows(
            executor,
            RowsLimits(
                max_context_tokens,
                max_generations,
                prefill_chunk_tokens,
                max_kv_bytes,
                max_kept_calls,
                warm_s,
                speech_reserve_s,
                pad,
            ),
            self._on_result,
        )
        self._tenancy = Tenancy(executor, self._on_death)

    async def start(self) -> None:
        """Start the executor if need be, load the weights and warm the batch.

        Raises :class:`engines.api.EngineError`.
        """
        async with self._tenancy.loading(self._model_dir):
            await self._executor.run(partial(self._rows.load, self._model_dir, self._load))

    async def close(self) -> None:
        """Cancel everything and free the weights and caches; the executor goes on: its owner closes it."""
        self._live.clear()
        await self._tenancy.leave(self._rows.detach)

    def generate(self, request: Generate, deliver: Callable[[Generation], None]) -> None:
        key = (request.call, request.epoch)
        request, deliver = written_out(request, deliver)
        if key in self._live:
            _log.error("a second generation for one epoch", call=request.call, epoch=request.epoch)
            self._refuse(request, deliver, "invalid_request", "this epoch is already being generated")
        elif request.max_tokens < 1:
            self._refuse(request, deliver, "invalid_request", "max_tokens must be at least 1")
        elif len(self._live) >= self._max_generations:
            self._refuse(request, deliver, "overloaded", f"{self._max_generations} generations run already")
        else:
            try:
                self._executor.post(partial(self._rows.insert, request))
            except ExecutorUnavailableError as error:
                self._refuse(request, deliver, error.code, str(error))
            else:
                self._live[key] = deliver

    def prioritize(self, call: str, epoch: int) -> None:
        if (call, epoch) in self._live:
            self._tenancy.control(partial(self._rows.prioritize, call, epoch))

    def postpone(self, call: str, epoch: int, until: float) -> None:
        if (call, epoch) in self._live:
            self._tenancy.control(partial(self._rows.postpone, call, epoch, until))

    def cancel(self, call: str, epoch: int) -> None:
        if self._live.pop((call, epoch), None) is not None:
            self._tenancy.control(partial(self._rows.cancel, call, epoch))

    def forget(self, call: str) -> None:
        for key in [key for key in self._live if key[0] == call]:
            del self._live[key]
        self._tenancy.control(partial(self._rows.forget, call))

    def _refuse(self, request: Generate, deliver: Callable[[Generation], None], code: str, message: str) -> None:
        """Never from inside :meth:`generate`: the caller is not done with its own bookkeeping there."""
        self._executor.soon(partial(deliver, GenerationFailed(request.epoch, code, message)))

    def _on_result(self, call: str, epoch: int, result: Generation) -> None:
        """On the loop. What comes for an epoch cancelled meanwhile ends here."""
        deliver = self._live.get((call, epoch))
        if deliver is None:
            return
        if isinstance(result, GenerationDone | GenerationFailed):
            del self._live[(call, epoch)]
        deliver(result)

    def _on_death(self, code: str, message: str) -> None:
        for call, epoch in list(self._live):
            self._on_result(call, epoch, GenerationFailed(epoch, code, message))
