"""The shape of ``session.update``: every field of the session object that a client may send, with its limits.

Shapes are those of the ``openai`` package's ``RealtimeSessionCreateRequest``. ``UNSET`` is a field left out, which
is not the same as null. Fields of type None are known and not offered: clients that write out every field send null.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

MAX_OUTPUT_TOKENS = 4_096
"""The most a client may ask for, and what ``"inf"`` means."""

MAX_INSTRUCTIONS_CHARS = 64_000

Instructions = Annotated[str, Meta(max_length=MAX_INSTRUCTIONS_CHARS)]
ShortText = Annotated[str, Meta(max_length=1_024)]
OutputTokens = Annotated[int, Meta(ge=1, le=MAX_OUTPUT_TOKENS)] | Literal["inf"]
Modalities = Annotated[list[Literal["audio", "text"]], Meta(min_length=1, max_length=1)]
EXTENSIONS = "offhook"
"""In ``include``: what the protocol has no event or field for is told, too. Stock clients take offence at unknown
events, so they must be asked for."""

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
"""At most 16 pairs, keys of 64 and values of 512 characters."""


class FormatPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    rate: int | None = None


class TurnDetectionPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["server_vad", "semantic_vad"] | UnsetType = UNSET
    create_response: bool | UnsetType | None = UNSET
    interrupt_response: bool | UnsetType | None = UNSET
    threshold: Annotated[float, Meta(ge=0, le=1)] | UnsetType | None = UNSET
    prefix_padding_ms: Annotated[int, Meta(ge=0, le=2_000)] | UnsetType | None = UNSET
    silence_duration_ms: Annotated[int, Meta(ge=100, le=10_000)] | UnsetType | None = UNSET
    idle_timeout_ms: Annotated[int, Meta(ge=5_000, le=30_000)] | UnsetType | None = UNSET
    eagerness: Literal["low", "medium", "high", "auto"] | UnsetType | None = UNSET


class TranscriptionPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: ShortText | UnsetType | None = UNSET
    language: Annotated[str, Meta(pattern=r"^([A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*)?$")] | UnsetType | None = UNSET
    prompt: ShortText | UnsetType | None = UNSET
    delay: None = None
    keywords: None = None
    languages: None = None


class InputPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: FormatPatch | UnsetType | None = UNSET
    turn_detection: TurnDetectionPatch | UnsetType | None = UNSET
    transcription: TranscriptionPatch | UnsetType | None = UNSET
    noise_reduction: dict[str, Raw] | UnsetType | None = UNSET


class VoiceId(msgspec.Struct, frozen=True):
    id: str


class OutputPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: FormatPatch | UnsetType | None = UNSET
    voice: str | VoiceId | UnsetType | None = UNSET
    speed: Annotated[float, Meta(ge=0.25, le=1.5)] | UnsetType | None = UNSET


class AudioPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    input: InputPatch | None = None
    output: OutputPatch | None = None


class TokenLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    post_instructions: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None


class RetentionRatio(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    type: Literal["retention_ratio"]
    retention_ratio: Annotated[float, Meta(ge=0, le=1)]
    token_limits: TokenLimits | None = None


class Tracing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    workflow_name: ShortText | None = None
    group_id: ShortText | None = None
    metadata: Metadata | None = None


class SessionPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``session`` of a ``session.update``. An unknown field is an error: it would be a setting silently lost."""

    type: Literal["realtime", "transcription"]
    model: ShortText | None = None
    output_modalities: Modalities | UnsetType | None = UNSET
    instructions: Instructions | UnsetType | None = UNSET
    audio: AudioPatch | None = None
    tools: list[Raw] | None = None
    tool_choice: str | dict[str, Raw] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: OutputTokens | UnsetType | None = UNSET
    truncation: Literal["auto", "disabled"] | RetentionRatio | UnsetType | None = UNSET
    tracing: Literal["auto"] | Tracing | UnsetType | None = UNSET
    include: (
        Annotated[list[Literal["item.input_audio_transcription.logprobs", "offhook"]], Meta(max_length=2)]
        | UnsetType
        | None
    ) = UNSET
    prompt: dict[str, Raw] | None = None
    reasoning: None = None
