"""Calling an engine that must not raise, and may all the same."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from gateway.telemetry.metrics import Metrics

_log = structlog.get_logger(__name__)

ENGINE_RAISED = "engine_raised"
"""The code of a job whose engine raised where it must not, and the counter of every such fault."""


class Guarded:
    """One call's way to its engines: the job fails, not the call, and not what else has to be done beside it."""

    def __init__(self, call_id: str, metrics: Metrics) -> None:
        self._call_id = call_id
        self._metrics = metrics

    def ask(self, method: Callable[..., object], *args: object) -> bool:
        """False if the engine raised."""
        try:
            method(*args)
        except Exception as error:  # noqa: BLE001
            self.raised(error, method.__qualname__)
            return False
        return True

    def raised(self, error: Exception, method: str) -> None:
        """Count and log it."""
        self._metrics.count(ENGINE_RAISED)
        _log.error("an engine raised", call=self._call_id, method=method, exc_info=error)
