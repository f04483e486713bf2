"""What a call can be told about how to listen and answer. Immutable: a change is a new one."""

from __future__ import annotations

import enum

import msgspec

from streaming.jobs import Message


class TurnMode(enum.Enum):
    """Who decides that the caller has finished."""

    MANUAL = "manual"
    """The client commits (Realtime ``turn_detection: null``)."""
    SERVER_VAD = "server_vad"
    """Silence of a fixed length (Realtime ``server_vad``)."""
    SEMANTIC = "semantic_vad"
    """Silence, then how finished it sounds and reads (Realtime ``semantic_vad``, and every agent)."""


class Eagerness(enum.Enum):
    """How long a caller who sounds unfinished is waited for (Realtime ``semantic_vad.eagerness``)."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    AUTO = "auto"


MAX_WAIT_MS = {Eagerness.LOW: 8_000, Eagerness.MEDIUM: 4_000, Eagerness.AUTO: 4_000, Eagerness.HIGH: 2_000}


class BargeIn(enum.Enum):
    """What a caller's voice does to a reply."""

    IGNORE = "ignore"
    """Realtime ``interrupt_response: false``: the reply goes on, the turn is answered after it."""
    ONSET = "onset"
    """Realtime ``interrupt_response: true``: the reply ends at the onset of speech."""
    HOLD = "hold"
    """Agents: the sound stops at the onset; the reply ends or goes on once it is known what was said."""


class TurnDetection(msgspec.Struct, frozen=True):
    mode: TurnMode = TurnMode.SERVER_VAD
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    """SERVER_VAD: the silence that ends a turn. SEMANTIC: the least silence before a turn may end."""
    eagerness: Eagerness = Eagerness.AUTO
    create_response: bool = True
    barge_in: BargeIn = BargeIn.ONSET
    idle_timeout_ms: int | None = None
    speculate: bool = True
    """Transcribe and generate inside the silence, before the turn is known to have ended."""


class KeypadRules(msgspec.Struct, frozen=True):
    """When an entry on the keypad is whole."""

    pause_ms: int = 2_000
    """No key for this long: long enough to find the next key of a number, short for a menu's one digit."""
    end_key: str = "#"
    """Ends an entry at once, and is no part of it; alone it is one. Empty: only the pause ends an entry."""


class SessionConfig(msgspec.Struct, frozen=True):
    instructions: str = ""
    examples: tuple[tuple[str, str], ...] = ()
    """Exchanges (caller, agent) shown to the model before the conversation."""
    voice: str = ""
    language: str = "en"
    speed: float = 1.0
    audio_output: bool = True
    """False: replies are text only (``output_modalities: ["text"]``)."""
    output_rate_hz: int = 24_000
    """Samples of the reply are counted at this rate, the leg's."""
    owns_playout: bool = False
    """The output buffer is ours (WebRTC, SIP): its playing is told, and a reply that is cut is truncated to what was
    heard. Else the client plays, and says what it played."""
    max_output_tokens: int = 256
    temperature: float = 0.0
    turn: TurnDetection = TurnDetection()
    greeting: str = ""
    apology: str = ""
    """Spoken when an engine fails a turn; empty: the failure is only reported."""
    max_call_s: float = 3_600.0
    tools: tuple[str, ...] = ()
    """What of :data:`streaming.tools.TOOL_NAMES` the model may call; only what the leg can do."""
    transfer_targets: tuple[tuple[str, str], ...] = ()
    """(name, address): the model knows the names only."""
    goodbye: str = ""
    """Spoken when the model hangs up without a word."""
    keypad: KeypadRules = KeypadRules()

    def preamble(self) -> tuple[Message, ...]:
        """What the model is told before the conversation: instructions, then the examples as real exchanges."""
        told = [Message("system", self.instructions)] if self.instructions else []
        for caller, agent in self.examples:
            told += [Message("user", caller), Message("assistant", agent)]
        return tuple(told)


class ResponseOptions(msgspec.Struct, frozen=True):
    """What one ``response.create`` overrides. None: as the session says."""

    instructions: str | None = None
    audio_output: bool | None = None
    max_output_tokens: int | None = None
    input_text: tuple[tuple[str, str], ...] | None = None
    """(role, text) pairs that replace the conversation as the prompt; () is no history at all."""
    metadata: dict[str, str] | None = None
    tools: bool = True
    """False: this response is made without any."""

    def over(self, config: SessionConfig) -> SessionConfig:
        """The session's configuration, with what this response has of its own."""
        changes = {
            name: value
            for name in ("instructions", "audio_output", "max_output_tokens")
            if (value := getattr(self, name)) is not None
        }
        if not self.tools:
            changes["tools"] = ()
        return msgspec.structs.replace(config, **changes)
