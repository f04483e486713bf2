"""Logs: constant messages, data under keys, secrets and callers' words never by accident."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, TextIO

import structlog
from structlog.typing import Processor

SECRET_KEYS = frozenset({"key", "api_key", "authorization", "token", "password", "secret"})
CALLER_KEYS = frozenset({"text", "transcript", "instructions", "message_text", "heard", "said", "prompt", "greeting"})
NUMBER_KEYS = frozenset(
    {"caller", "dialled", "number", "from", "to", "from_uri", "to_uri", "target", "digit", "digits", "dtmf"}
)
"""Who calls whom, and what keys a caller presses: a card's number may be among them."""
REDACTED = "[redacted]"
_DEEPEST = 4

_NOISY = ("httpx", "httpcore", "websockets", "asyncio", "uvicorn.error", "huggingface_hub", "aioice", "aiortc")
"""Libraries that are heard from warnings on, at any level: aioice names callers' addresses in what it tells of each
check."""


def redactor(*, caller_text: bool) -> Processor:
    """A processor that hides secrets, numbers and keys always, and what people say unless ``caller_text``; at any
    depth: what lies deeper than it looks is hidden."""
    hidden = SECRET_KEYS | NUMBER_KEYS if caller_text else SECRET_KEYS | NUMBER_KEYS | CALLER_KEYS

    def hide(value: object, key: str | None = None, depth: int = 0) -> object:
        if key is not None and key.lower() in hidden and value is not None:
            return REDACTED
        if not isinstance(value, Mapping | list | tuple | set | frozenset):
            return value
        if depth == _DEEPEST:
            return REDACTED
        if isinstance(value, Mapping):
            return {inner: hide(item, str(inner), depth + 1) for inner, item in value.items()}
        return [hide(item, None, depth + 1) for item in value]

    def redact(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {key: value if key == "event" else hide(value, key) for key, value in event.items()}

    return redact


def configure_logs(*, level: str, as_json: bool, caller_text: bool, stream: TextIO | None = None) -> None:
    """Everything, also what libraries log, goes to ``stream`` (standard error) through the same processors."""
    out = stream or sys.stderr
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        redactor(caller_text=caller_text),
    ]
    render: list[Processor]
    # Tracebacks without local variables, which both of structlog's defaults print: they hold what callers said.
    if as_json:
        tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        render = [structlog.processors.ExceptionRenderer(tracebacks), structlog.processors.JSONRenderer()]
    else:
        plain = structlog.dev.plain_traceback
        render = [structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=plain)]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render]
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
    server = logging.getLogger("uvicorn.error")
    server.filters[:] = [_no_fault]


def _no_fault(record: logging.LogRecord) -> bool:
    """uvicorn calls every WebSocket that was answered without an upgrade an error; being turned away is none."""
    return record.getMessage() != "ASGI callable returned without completing handshake."
