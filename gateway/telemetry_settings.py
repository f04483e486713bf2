"""The ``[telemetry]`` table: where traces go."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

TRACES_PATH = "/v1/traces"
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\x20-\x7e\t]*")


def _collector_url(value: str) -> str:
    """What is wrong with it is not repeated: it may hold a key."""
    try:
        parts = urlsplit(value)
        if not value.isascii() or not value.isprintable() or " " in value:
            raise ValueError
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)
        parts.port  # noqa: B018 (raises when it is none)
    except ValueError:
        whole = False
    if value and not whole:
        raise ValueError("must be like http://127.0.0.1:4318")
    if value and (parts.username is not None or parts.password is not None):
        raise ValueError("must hold no credentials: name the variable with the headers by telemetry.otlp_headers_env")
    return value.rstrip("/")


class TelemetrySettings(BaseModel):
    """``[telemetry]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    otlp_endpoint: Annotated[str, AfterValidator(_collector_url)] = Field(
        default="",
        description="collector that traces go to (OTLP over HTTP), such as http://127.0.0.1:4318; empty: none",
    )
    otlp_headers_env: str = Field(
        default="", description="environment variable with headers for it, as OTLP has them: name=value,name=value"
    )
    sample_ratio: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="share of calls that are traced; those that ended by a fault are whatever it is",
    )

    @property
    def traces_url(self) -> str:
        """As OTLP has it: below the endpoint, unless that is the whole address already."""
        return self.otlp_endpoint if self.otlp_endpoint.endswith(TRACES_PATH) else self.otlp_endpoint + TRACES_PATH

    def headers(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Raises :class:`ValueError` for what are none. Nothing of them is repeated: they are keys, as often as not
        (OpenTelemetry's own parser would log them)."""
        headers: dict[str, str] = {}
        for pair in filter(str.strip, environ.get(self.otlp_headers_env, "").split(",")):
            name, equals, value = (unquote(part).strip() for part in pair.partition("="))
            if not (equals and _NAME.fullmatch(name) and _VALUE.fullmatch(value)):
                raise ValueError(
                    f"what is in {self.otlp_headers_env} must be like name=value,name=value, with %2C for a comma"
                )
            headers[name.lower()] = value
        return headers
