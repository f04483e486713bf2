"""Where an OpenAI-compatible server is, what it is sent to know us, and how long it may take."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict
from urllib.parse import urlsplit

from engines.api import EngineError


class ConnectionOptions(TypedDict, total=False):
    """Options of every OpenAI-compatible engine, as a preset or the settings give them; see :class:`Connection`."""

    base_url: str
    model: str
    api_key_env: str
    headers: Mapping[str, str]
    headers_from_env: Mapping[str, str]
    connect_s: float
    first_s: float
    between_s: float
    total_s: float
    attempts: int
    max_running: int


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a server is and how long it may take. Limits are seconds and hold whatever the server does."""

    base_url: str = "https://api.openai.com/v1"
    model: str = ""
    """Empty: the first that the server lists."""
    api_key_env: str = ""
    """The environment variable that holds the bearer key; empty: no key is sent."""
    headers: Mapping[str, str] = field(default_factory=dict)
    headers_from_env: Mapping[str, str] = field(default_factory=dict)
    """Header name to the environment variable with its value, for servers that take their key elsewhere."""
    connect_s: float = 3.0
    first_s: float = 15.0
    """To the first token, sound or text, all attempts and waits together."""
    between_s: float = 10.0
    total_s: float = 120.0
    attempts: int = 2
    max_running: int = 256

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise EngineError("bad_options", "base_url must be like https://host/v1")
        if parts.username is not None or parts.password is not None:
            raise EngineError("bad_options", "base_url must hold no credentials: name them by api_key_env")
        if min(self.connect_s, self.first_s, self.between_s, self.total_s) <= 0:
            raise EngineError("bad_options", "time limits must be above 0")
        if self.attempts < 1 or self.max_running < 1:
            raise EngineError("bad_options", "attempts and max_running must be at least 1")

    @classmethod
    def of(cls, options: ConnectionOptions, **defaults: Any) -> Connection:
        """``options`` over a stage's own ``defaults``.

        Raises:
            EngineError: ``bad_options``.
        """
        unknown = set(options) - {known.name for known in fields(cls)}
        if unknown:
            raise EngineError("bad_options", f"no such option: {', '.join(sorted(unknown))}")
        return cls(**{**defaults, **options})

    @property
    def is_loopback(self) -> bool:
        host = urlsplit(self.base_url).hostname or ""
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(host).is_loopback
        return host == "localhost"


def headers_of(connection: Connection) -> dict[str, str]:
    """With the keys they name.

    Raises:
        EngineError: ``no_api_key``.
    """
    headers = dict(connection.headers)
    for name, variable in connection.headers_from_env.items():
        headers[name] = _secret(variable)
    if connection.api_key_env:
        headers["Authorization"] = f"Bearer {_secret(connection.api_key_env)}"
    return headers


_HINTS = {"OPENAI_API_KEY": ": set it, or give the URL of a server of your own (stt_url, llm_url, tts_url)"}


def _secret(variable: str) -> str:
    value = os.environ.get(variable, "").strip()
    if not value:
        raise EngineError("no_api_key", f"the environment variable {variable} is not set{_HINTS.get(variable, '')}")
    if not (value.isascii() and value.isprintable()):
        raise EngineError("no_api_key", f"the environment variable {variable} holds no key")
    return value
