"""The Realtime session object: how an update merges, what is echoed, what the call gets.

An update is a partial merge: a field left out keeps its value. ``null`` switches off what can be off
(``turn_detection``, ``transcription``, ``tracing``, ``idle_timeout_ms``), empties ``instructions`` and ``include``, and
restores the default everywhere else. A ``turn_detection`` or ``transcription`` object merges with the current one; a
``turn_detection`` of another ``type`` replaces it, starting from that type's defaults.
"""

from __future__ import annotations

import enum
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from gateway.realtime.errors import Rejected
from gateway.realtime.session_patch import (
    MAX_OUTPUT_TOKENS,
    AudioPatch,
    FormatPatch,
    InputPatch,
    OutputPatch,
    RetentionRatio,
    SessionPatch,
    Tracing,
    TranscriptionPatch,
    TurnDetectionPatch,
    VoiceId,
)
from streaming.config import BargeIn, Eagerness, SessionConfig, TurnDetection, TurnMode

STOCK_VOICES = frozenset({"alloy", "ash", "ballad", "cedar", "coral", "echo", "marin", "sage", "shimmer", "verse"})
"""OpenAI's voices. Stock clients ask for one by default, so each is an alias of the default voice."""


class WireFormat(enum.Enum):
    """Encoding of audio on the wire: mono, base64. The value is the ``type`` of the format object."""

    PCM = "audio/pcm"
    """16-bit little-endian at 24 kHz."""
    PCMU = "audio/pcmu"
    """G.711 µ-law at 8 kHz."""
    PCMA = "audio/pcma"
    """G.711 A-law at 8 kHz."""

    @property
    def rate_hz(self) -> int:
        return 24_000 if self is WireFormat.PCM else 8_000

    @property
    def bytes_per_sample(self) -> int:
        return 2 if self is WireFormat.PCM else 1

    def show(self) -> dict[str, Any]:
        """The format object: ``rate`` only where there is one to choose."""
        return {"type": self.value, "rate": self.rate_hz} if self is WireFormat.PCM else {"type": self.value}


class SessionDefaults(msgspec.Struct, frozen=True):
    """What a call starts with. ``config`` is the whole initial configuration, an agent's if ``agent``.

    ``config.voice`` must be one of ``voices``, or empty for the first of them. ``server_vad`` and ``semantic_vad``
    are where a client's own ``turn_detection`` of that type starts from; ``languages`` are those the call's engines
    know, as primary subtags.
    """

    config: SessionConfig
    voices: tuple[str, ...]
    languages: tuple[str, ...] = ("en",)
    agent: bool = False
    transcription_model: str = "default"
    server_vad: TurnDetection = TurnDetection()
    semantic_vad: TurnDetection = TurnDetection(mode=TurnMode.SEMANTIC)

    @property
    def voice(self) -> str:
        return self.config.voice or self.voices[0]


# --- what is in force -----------------------------------------------------------------------------------------


class Transcription(msgspec.Struct, frozen=True):
    model: str
    language: str
    prompt: str = ""


class Session(msgspec.Struct, frozen=True):
    """Every setting resolved. ``voice`` is the name the client used, which may be an alias."""

    instructions: str
    turn: TurnDetection
    transcription: Transcription | None
    voice: str
    speed: float
    max_output_tokens: int | Literal["inf"]
    audio_output: bool = True
    input_format: WireFormat = WireFormat.PCM
    output_format: WireFormat = WireFormat.PCM
    tool_choice: Literal["auto", "none"] = "auto"
    truncation: Literal["auto", "disabled"] | RetentionRatio = "auto"
    tracing: Literal["auto"] | Tracing | None = None
    include: tuple[str, ...] = ()

    @classmethod
    def initial(cls, defaults: SessionDefaults) -> Session:
        config = defaults.config
        return cls(
            instructions=config.instructions,
            turn=config.turn,
            transcription=_default_transcription(defaults) if defaults.agent else None,
            voice=defaults.voice,
            speed=config.speed,
            max_output_tokens=config.max_output_tokens,
            audio_output=config.audio_output,
        )

    def config(self, defaults: SessionDefaults) -> SessionConfig:
        """What the call's session is to do: the defaults with this object's settings in them."""
        language = self.transcription.language if self.transcription else defaults.config.language
        return replace(
            defaults.config,
            instructions=self.instructions,
            voice=self.voice if self.voice in defaults.voices else defaults.voice,
            language=_primary(language),
            speed=self.speed,
            audio_output=self.audio_output,
            output_rate_hz=self.output_format.rate_hz,
            max_output_tokens=output_tokens(self.max_output_tokens),
            turn=self.turn,
            tools=() if self.tool_choice == "none" else defaults.config.tools,
        )

    def show(self) -> dict[str, Any]:
        """The object as echoed, but for ``id``, ``model`` and ``expires_at``."""
        return {
            "type": "realtime",
            "object": "realtime.session",
            "output_modalities": modalities(self.audio_output),
            "instructions": self.instructions,
            "audio": {
                "input": {
                    "format": self.input_format.show(),
                    "turn_detection": _show_turn(self.turn),
                    "transcription": self.transcription,
                    "noise_reduction": None,
                },
                "output": {"format": self.output_format.show(), "voice": self.voice, "speed": self.speed},
            },
            "tools": [],
            "tool_choice": self.tool_choice,
            "max_output_tokens": self.max_output_tokens,
            "truncation": self.truncation,
            "tracing": self.tracing,
            "include": self.include,
            "prompt": None,
        }


def modalities(audio_output: bool) -> list[str]:
    return ["audio"] if audio_output else ["text"]


def output_tokens(value: int | Literal["inf"]) -> int:
    return MAX_OUTPUT_TOKENS if value == "inf" else value


def _default_transcription(defaults: SessionDefaults) -> Transcription:
    return Transcription(defaults.transcription_model, defaults.config.language)


def _show_turn(turn: TurnDetection) -> dict[str, Any] | None:
    if turn.mode is TurnMode.MANUAL:
        return None
    rules = {"create_response": turn.create_response, "interrupt_response": turn.barge_in is not BargeIn.IGNORE}
    if turn.mode is TurnMode.SEMANTIC:
        return {"type": "semantic_vad", "eagerness": turn.eagerness.value, **rules}
    return {
        "type": "server_vad",
        "threshold": turn.threshold,
        "prefix_padding_ms": turn.prefix_padding_ms,
        "silence_duration_ms": turn.silence_duration_ms,
        "idle_timeout_ms": turn.idle_timeout_ms,
        **rules,
    }


# --- the merge ------------------------------------------------------------------------------------------------


class Locks(msgspec.Struct, frozen=True):
    """What can no longer change: audio came in, audio went out, a response is being made."""

    input_flowed: bool = False
    output_flowed: bool = False
    responding: bool = False


def merge(current: Session, patch: SessionPatch, defaults: SessionDefaults, locks: Locks) -> Session:
    """The session after an update. Raises :class:`Rejected`, and then nothing was applied."""
    _refuse_unsupported(patch)
    first = Session.initial(defaults)
    changes: dict[str, Any] = {}
    if patch.output_modalities is not UNSET:
        modality = patch.output_modalities
        changes["audio_output"] = first.audio_output if modality is None else modality == ["audio"]
    if patch.instructions is not UNSET:
        changes["instructions"] = patch.instructions or ""
    if patch.max_output_tokens is not UNSET:
        changes["max_output_tokens"] = _or(patch.max_output_tokens, first.max_output_tokens)
    if patch.truncation is not UNSET:
        changes["truncation"] = _or(patch.truncation, first.truncation)
    if patch.tracing is not UNSET:
        changes["tracing"] = patch.tracing
    if patch.include is not UNSET:
        changes["include"] = tuple(patch.include or ())
    if isinstance(patch.tool_choice, str):
        changes["tool_choice"] = patch.tool_choice
    audio = patch.audio or AudioPatch()
    changes |= _merge_input(current, audio.input or InputPatch(), defaults, locks)
    changes |= _merge_output(current, audio.output or OutputPatch(), defaults, locks)
    return replace(current, **changes)


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _refuse_unsupported(patch: SessionPatch) -> None:
    if patch.type == "transcription":
        raise Rejected(
            "transcription_sessions_not_supported", "only sessions of type realtime are offered", "session.type"
        )
    refuse_tools(patch.tools, patch.tool_choice, "session")
    refuse_prompt(patch.prompt, "session")


def refuse_tools(tools: list[Raw] | None, choice: str | dict[str, Raw] | None, path: str) -> None:
    """Raises :class:`Rejected` for tools, or a choice that needs one; ``path`` is the object they are in."""
    if tools:
        raise Rejected("tools_not_supported", "tools are not supported yet", f"{path}.tools")
    if isinstance(choice, dict) or choice == "required":
        raise Rejected("tools_not_supported", "tools are not supported yet", f"{path}.tool_choice")
    if choice not in (None, "auto", "none"):
        raise Rejected(
            "invalid_value", "tool_choice is auto, none, required or an object naming a tool", f"{path}.tool_choice"
        )


def refuse_prompt(prompt: dict[str, Raw] | None, path: str) -> None:
    """Raises :class:`Rejected` for a stored prompt."""
    if prompt is not None:
        raise Rejected("prompt_not_supported", "stored prompts are not supported; use instructions", f"{path}.prompt")


def _merge_input(current: Session, patch: InputPatch, defaults: SessionDefaults, locks: Locks) -> dict[str, Any]:
    path = "session.audio.input"
    changes: dict[str, Any] = {}
    if patch.format is not UNSET:
        changes["input_format"] = read_format(patch.format, f"{path}.format")
        if locks.input_flowed and changes["input_format"] is not current.input_format:
            raise Rejected("audio_format_locked", "the input format is fixed once audio came in", f"{path}.format")
    if isinstance(patch.noise_reduction, dict):
        raise Rejected("noise_reduction_not_supported", "noise reduction is not supported", f"{path}.noise_reduction")
    if patch.transcription is not UNSET:
        changes["transcription"] = _merge_transcription(current.transcription, patch.transcription, defaults)
    if patch.turn_detection is not UNSET:
        changes["turn"] = _merge_turn(current.turn, patch.turn_detection, defaults)
    return changes


def _merge_output(current: Session, patch: OutputPatch, defaults: SessionDefaults, locks: Locks) -> dict[str, Any]:
    path = "session.audio.output"
    changes: dict[str, Any] = {}
    if patch.format is not UNSET:
        changes["output_format"] = read_format(patch.format, f"{path}.format")
        if (locks.output_flowed or locks.responding) and changes["output_format"] is not current.output_format:
            raise Rejected("audio_format_locked", "the output format is fixed once audio goes out", f"{path}.format")
    if patch.voice is not UNSET:
        changes["voice"] = read_voice(patch.voice, defaults, f"{path}.voice")
        if locks.output_flowed and changes["voice"] != current.voice:
            raise Rejected("voice_locked", "the voice is fixed once the call has spoken", f"{path}.voice")
    if patch.speed is not UNSET:
        changes["speed"] = _or(patch.speed, defaults.config.speed)
        if locks.responding and changes["speed"] != current.speed:
            raise Rejected("speed_locked", "speed can only change between responses", f"{path}.speed")
    return changes


def read_format(patch: FormatPatch | None, path: str) -> WireFormat:
    """Raises :class:`Rejected` with ``unsupported_audio_format``."""
    if patch is None:
        return WireFormat.PCM
    try:
        wire = WireFormat(patch.type)
    except ValueError:
        message = "the type is audio/pcm, audio/pcmu or audio/pcma"
        raise Rejected("unsupported_audio_format", message, f"{path}.type") from None
    if patch.rate not in (None, 24_000 if wire is WireFormat.PCM else None):
        message = "audio/pcm has the rate 24000; audio/pcmu and audio/pcma have none to choose"
        raise Rejected("unsupported_audio_format", message, f"{path}.rate")
    return wire


def read_voice(voice: str | VoiceId | None, defaults: SessionDefaults, path: str) -> str:
    """The name as asked for. Raises :class:`Rejected` with ``unknown_voice``."""
    if voice is None:
        return defaults.voice
    name = voice.id if isinstance(voice, VoiceId) else voice
    if name not in defaults.voices and name not in STOCK_VOICES:
        raise Rejected("unknown_voice", f"the voices are {', '.join(defaults.voices)}", path)
    return name


def _merge_transcription(
    current: Transcription | None, patch: TranscriptionPatch | None, defaults: SessionDefaults
) -> Transcription | None:
    if patch is None:
        return None
    first = _default_transcription(defaults)
    given = {name: getattr(patch, name) for name in ("model", "language", "prompt")}
    changes = {name: value or getattr(first, name) for name, value in given.items() if value is not UNSET}
    merged = replace(current or first, **changes)
    if merged.language != first.language and _primary(merged.language) not in defaults.languages:
        known = ", ".join(defaults.languages)
        path = "session.audio.input.transcription.language"
        raise Rejected("language_not_supported", f"the languages are {known}", path)
    return merged


def _primary(language: str) -> str:
    """``en`` of ``en-GB``."""
    return language.partition("-")[0].lower()


SERVER_VAD_ONLY = ("threshold", "prefix_padding_ms", "silence_duration_ms", "idle_timeout_ms")


def _merge_turn(current: TurnDetection, patch: TurnDetectionPatch | None, defaults: SessionDefaults) -> TurnDetection:
    path = "session.audio.input.turn_detection"
    if patch is None:
        return replace(defaults.server_vad, mode=TurnMode.MANUAL, idle_timeout_ms=None)
    given = _given(patch)
    kind = given.pop("type", current.mode.value)
    if kind == TurnMode.MANUAL.value:
        raise Rejected("missing_required_parameter", "turn_detection is off: name the type", f"{path}.type")
    mode = TurnMode(kind)
    first = defaults.semantic_vad if mode is TurnMode.SEMANTIC else defaults.server_vad
    base = current if current.mode is mode else first
    for name in ("eagerness",) if mode is TurnMode.SERVER_VAD else SERVER_VAD_ONLY:
        if given.get(name) is not None:
            raise Rejected("unknown_parameter", f"{kind} has no {name}", f"{path}.{name}")
        given.pop(name, None)
    interrupts = _or(given.pop("interrupt_response", base.barge_in is not BargeIn.IGNORE), True)
    changes: dict[str, Any] = {name: _or(value, getattr(first, name)) for name, value in given.items()}
    changes["barge_in"] = BargeIn.ONSET if interrupts else BargeIn.IGNORE
    if "eagerness" in changes:
        changes["eagerness"] = Eagerness(changes["eagerness"])
    return replace(base, **changes)


def _given(patch: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name in patch.__struct_fields__ if (value := getattr(patch, name)) is not UNSET}
