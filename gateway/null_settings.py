"""The ``[null]`` table: how long the scripted engines of the ``null`` preset take, where a model would work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field

from engines.registry import Kind, Lineup

MAX_DELAY_MS = 60_000


class NullSettings(BaseModel):
    """``[null]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stt_ms: float = Field(
        default=0.0, ge=0, le=MAX_DELAY_MS, description="scripted engines: from the end of a turn to its transcript"
    )
    llm_first_token_ms: float = Field(
        default=0.0, ge=0, le=MAX_DELAY_MS, description="from the prompt to the first token"
    )
    llm_token_ms: float = Field(
        default=0.0, ge=0, le=MAX_DELAY_MS, description="from each token, which is a word, to the next"
    )
    tts_ms: float = Field(default=0.0, ge=0, le=MAX_DELAY_MS, description="from a clause to its first sound")
    tts_realtime_factor: float = Field(
        default=0.0, ge=0, le=100, description="what further sound takes, as a multiple of its own length"
    )

    def applied_to(self, lineup: Lineup) -> Lineup:
        """The same backends, the fakes among them with these delays."""
        delays: dict[Kind, Mapping[str, float]] = {
            "stt": {"final_delay_s": self.stt_ms / 1000},
            "llm": {
                "first_token_delay_s": self.llm_first_token_ms / 1000,
                "token_delay_s": self.llm_token_ms / 1000,
            },
            "tts": {"first_chunk_delay_s": self.tts_ms / 1000, "realtime_factor": self.tts_realtime_factor},
        }
        chains = {
            kind: tuple(
                replace(spec, options={**spec.options, **delays.get(kind, {})}) if spec.fake else spec for spec in chain
            )
            for kind, chain in lineup.chains.items()
        }
        return Lineup(lineup.name, chains)

    def stated(self, lineup: Lineup) -> str:
        """For a person: which engines of the lineup are fakes, and their delays; empty if none is."""
        fakes = lineup.fakes()
        if not fakes:
            return ""
        delays = ", ".join(said for kind, value, said in self._delays() if kind in fakes and value) or "none"
        return f"FAKE engines ({', '.join(fakes)}): no figure tells of a model; delays: {delays}"

    def _delays(self) -> Iterator[tuple[Kind, float, str]]:
        yield "stt", self.stt_ms, f"stt {self.stt_ms:g} ms"
        yield "llm", self.llm_first_token_ms, f"first token {self.llm_first_token_ms:g} ms"
        yield "llm", self.llm_token_ms, f"each further token {self.llm_token_ms:g} ms"
        yield "tts", self.tts_ms, f"tts {self.tts_ms:g} ms"
        yield "tts", self.tts_realtime_factor, f"speech at {self.tts_realtime_factor:g} x its own length"
