"""How long a turn took, and where the time went."""

from __future__ import annotations

import msgspec


class TurnTimes(msgspec.Struct, frozen=True):
    """Milliseconds after the caller's last voiced sample, None where it did not happen (yet). What answers no speech
    counts from its own beginning."""

    response_id: str
    utterance: int
    speculative: bool
    decision_ms: float | None = None
    final_ms: float | None = None
    first_token_ms: float | None = None
    first_clause_ms: float | None = None
    first_audio_ms: float | None = None
    first_sent_ms: float | None = None
    cut_to_silence_ms: float | None = None
    """From the onset of the caller's interrupting speech to the moment the leg was told to be silent."""
    prompt_tokens: int = 0
    prefilled_tokens: int = 0
    completion_tokens: int = 0
    spoke_ms: float | None = None
    """How long the caller had spoken, from the onset to the last voiced sample."""
    ended_ms: float | None = None
    """When the response was over: all of it sent, or cut."""
    failure: str | None = None
    """The code of what ended it early, of an engine or a defect."""
    at_ms: float | None = None
    """When the time is that all others count from: since the call began."""
