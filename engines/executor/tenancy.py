"""An engine's stay on the MLX executor, from the event loop's side: how it moves in, has work taken away, moves out."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import structlog

from engines.api import EngineError
from engines.executor.thread import ExecutorUnavailableError, MlxExecutor
from streaming.jobs import Priority

_log = structlog.get_logger(__name__)


class Tenancy:
    """``on_death(code, message)`` is called on the loop when the thread dies: the engine's jobs will get no other
    answer. The executor itself goes on after the engine: its owner closes it."""

    def __init__(self, executor: MlxExecutor, on_death: Callable[[str, str], None]) -> None:
        self._executor = executor
        self._on_death = on_death
        executor.on_death(on_death)

    @contextlib.asynccontextmanager
    async def loading(self, model_dir: Path) -> AsyncIterator[None]:
        """Start the executor if need be; inside, the weights of ``model_dir`` are loaded. Raises
        :class:`EngineError`: ``load_failed`` for whatever else was raised there, and the executor's."""
        await self._executor.start()
        _require_folder(model_dir)
        try:
            yield
        except EngineError:
            raise
        except ExecutorUnavailableError as error:
            raise EngineError(error.code, str(error)) from error
        except Exception as error:
            raise EngineError("load_failed", f"{model_dir}: {type(error).__name__}: {error}") from error

    def control(self, act: Callable[[], None]) -> None:
        """Have ``act``, which adds no work, called on the thread if there is one."""
        with contextlib.suppress(ExecutorUnavailableError):  # nothing runs there any more
            self._executor.post(act, control=True)

    async def leave(self, detach: Callable[[], None]) -> None:
        """Run ``detach`` on the thread, which frees the weights there. Raises nothing."""
        self._executor.off_death(self._on_death)
        try:
            # However full the inbox and the agenda are: what is not freed now is never freed.
            await self._executor.run(detach, priority=Priority.FINAL, control=True)
        except ExecutorUnavailableError:
            pass  # its thread has ended, and closed us on its way out
        except Exception:  # noqa: BLE001 (what could not be freed is no reason to leave the thread running)
            _log.exception("a model did not close cleanly")


def _require_folder(model_dir: Path) -> None:
    if not model_dir.is_dir():
        # Libraries take a missing folder for the name of a repository, and ask the network for it.
        raise EngineError("load_failed", f"there is no model folder {model_dir}")
