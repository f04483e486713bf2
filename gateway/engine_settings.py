"""The ``[engines]`` table: what serves each stage in the preset's place, and where it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_settings import NoDecode

from engines.registry import Kind
from engines.selection import Choice


def comma_separated(value: object) -> object:
    """Lists come from the environment and from flags as ``a, b``."""
    if isinstance(value, str):
        return [part for part in (piece.strip() for piece in value.split(",")) if part]
    return value


def _server_url(value: str) -> str:
    """Said when the settings are read, not when the engines start; what is wrong with it is not repeated: it may hold
    a key."""
    try:
        parts = urlsplit(value)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)
        parts.port  # noqa: B018 (raises when it is none)
    except ValueError:
        whole = False
    if value and not whole:
        raise ValueError("must be like https://host/v1")
    if value and (parts.username is not None or parts.password is not None):
        raise ValueError("must hold no credentials: name the variable that holds the key by engines.key_env")
    return value


ServerUrl = Annotated[str, AfterValidator(_server_url)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(comma_separated)]


class EngineSettings(BaseModel):
    """``[engines]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    vad: str = Field(default="", description="voice activity: silero, or energy, a fake; empty: the preset's")
    stt: Names = Field(
        default=(), description="speech-to-text: backends, the first serves, the others stand in; empty: the preset's"
    )
    stt_model: str = Field(
        default="", description="the first one's model: a name, a folder, or owner/name[@revision] of a hub"
    )
    stt_url: ServerUrl = Field(
        default="", description="where an openai-compatible server is, such as http://127.0.0.1:8000/v1"
    )
    llm: Names = Field(default=(), description="language model: backends, as for stt")
    llm_model: str = Field(default="", description="its model, as for stt")
    llm_url: ServerUrl = Field(default="", description="its server, as for stt")
    tts: Names = Field(default=(), description="text-to-speech: backends, as for stt")
    tts_model: str = Field(default="", description="its model, as for stt")
    tts_url: ServerUrl = Field(default="", description="its server, as for stt")
    tts_voices: Names = Field(default=(), description="the voices of that server, the default first")
    key_env: str = Field(
        default="",
        description="environment variable with the key of these servers; empty: none; for OpenAI's own OPENAI_API_KEY",
    )
    hosts: bool = Field(default=True, description="run models in child processes, so that a crash of one ends no call")
    mlx_python: Path | None = Field(default=None, description="interpreter of the MLX host; unset: the gateway's own")
    cpu_python: Path | None = Field(default=None, description="interpreter of the CPU host; unset: the gateway's own")
    memory_reserve_mb: int = Field(
        default=1536, ge=0, description="memory that must stay available when a model was loaded"
    )

    def python(self, host: Literal["mlx", "cpu"]) -> Path | None:
        """The interpreter of a host, if it has one of its own."""
        if not self.hosts:
            return None
        return self.mlx_python if host == "mlx" else self.cpu_python

    def choices(self) -> dict[Kind, Choice]:
        """For :func:`engines.selection.select`."""
        return {
            "vad": Choice((self.vad,) if self.vad else ()),
            "stt": Choice(self.stt, self.stt_model, self._server(self.stt_url)),
            "llm": Choice(self.llm, self.llm_model, self._server(self.llm_url)),
            "tts": Choice(
                self.tts,
                self.tts_model,
                {**self._server(self.tts_url), **({"voices": self.tts_voices} if self.tts_voices else {})},
            ),
        }

    def _server(self, url: str) -> dict[str, object]:
        if not url:
            return {}
        return {"base_url": url, **({"api_key_env": self.key_env} if self.key_env else {})}
