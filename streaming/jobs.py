"""What a call asks of an engine and what comes back: the only words the two sides share.

Every struct is frozen and made of scalars, strings and bytes, so that it can cross a socket to an engine host
unchanged. Times named ``deadline`` are absolute monotonic seconds on the clock of the event loop that made them;
positions named ``*_samples`` are sample indexes since the start of the call at :data:`INPUT_RATE_HZ`, unless the
field says otherwise.
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

INPUT_RATE_HZ = 16_000
"""Caller audio is brought to this rate once, at the leg; VAD, end-of-turn and speech-to-text all take it."""


class Priority(enum.IntEnum):
    """Which job goes first when both could run now; lower goes first. Within one priority: earliest deadline."""

    FINAL = 0
    """A transcript the turn is waiting for."""
    FIRST_AUDIO = 1
    """The first clause of a reply: the caller hears silence until it is there."""
    DECODE = 2
    """Tokens of a live reply."""
    PLAYOUT = 3
    """Later clauses, at most 3 s ahead of what the caller hears."""
    PARTIAL = 4
    """Words while the caller still speaks."""
    SPECULATIVE = 5
    """Work for a turn that may not have ended."""


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool. ``arguments`` is JSON text as the model wrote it, which need not be JSON."""

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True):
    """One message of a prompt. ``calls`` are those an assistant made after its words; a ``tool`` message is the result
    of the call ``call_id``, and follows at once on the message that called."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""


# --- speech-to-text -------------------------------------------------------------------------------------------


class OpenTranscription(msgspec.Struct, frozen=True):
    """Begin an utterance. Its audio follows block by block, the first sample being ``start_samples``."""

    call: str
    utterance: int
    start_samples: int
    language: str = "en"
    partials: bool = True


class FinalizeTranscription(msgspec.Struct, frozen=True):
    """Ask for the text of all audio fed so far. The stream stays open: a caller who goes on raises the revision."""

    utterance: int
    revision: int
    priority: Priority
    deadline: float


class PartialTranscript(msgspec.Struct, frozen=True):
    """The words so far. Replaces the partial before it."""

    utterance: int
    text: str


class FinalTranscript(msgspec.Struct, frozen=True):
    """The answer to one :class:`FinalizeTranscription`. Empty ``text`` means: no words in this audio."""

    utterance: int
    revision: int
    text: str


class TranscriptionFailed(msgspec.Struct, frozen=True):
    utterance: int
    revision: int
    code: str
    message: str


# --- end of turn ----------------------------------------------------------------------------------------------


class ScoreEndOfTurn(msgspec.Struct, frozen=True):
    """Ask how finished the caller sounds, from the audio between the two positions (at most the last 8 s)."""

    utterance: int
    revision: int
    start_samples: int
    end_samples: int


class EndOfTurnScored(msgspec.Struct, frozen=True):
    """Probability in 0..1 that the caller has finished."""

    utterance: int
    revision: int
    probability: float


# --- language model -------------------------------------------------------------------------------------------


class Tool(msgspec.Struct, frozen=True):
    """What the model may call. ``parameters`` is a JSON Schema of an object, as JSON text."""

    name: str
    description: str
    parameters: str


class Generate(msgspec.Struct, frozen=True):
    """Stream a reply to ``messages``. A second one for the same call and epoch is a defect."""

    call: str
    epoch: int
    messages: tuple[Message, ...]
    priority: Priority
    deadline: float
    max_tokens: int = 256
    temperature: float = 0.0
    tools: tuple[Tool, ...] = ()


class Token(msgspec.Struct, frozen=True):
    """The next piece of text; never an incomplete character."""

    epoch: int
    text: str


class ToolCalled(msgspec.Struct, frozen=True):
    """The model calls a tool: one whole call, among the tokens. Whether there is such a tool and whether it can be
    called like this is not the engine's to judge; what could not be read at all has no ``name``."""

    epoch: int
    call_id: str
    name: str
    arguments: str


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one generation. ``prefilled_tokens`` is what was really computed of the prompt: the rest
    came from the call's kept cache."""

    prompt_tokens: int = 0
    prefilled_tokens: int = 0
    completion_tokens: int = 0


class GenerationDone(msgspec.Struct, frozen=True):
    epoch: int
    reason: Literal["stop", "length"]
    usage: Usage


class GenerationFailed(msgspec.Struct, frozen=True):
    epoch: int
    code: str
    message: str


# --- text-to-speech -------------------------------------------------------------------------------------------


class Synthesize(msgspec.Struct, frozen=True):
    """Speak one segment. ``text`` is speakable text (numbers and symbols already spelled out)."""

    call: str
    epoch: int
    segment: int
    text: str
    voice: str
    priority: Priority
    deadline: float
    speed: float = 1.0
    language: str = "en"


class WordEnd(msgspec.Struct, frozen=True):
    """Where a word of :attr:`Synthesize.text` ends: in the text (characters) and in the segment's audio (ms)."""

    text_end: int
    audio_end_ms: float


class SynthesisChunk(msgspec.Struct, frozen=True):
    """Audio of a segment, in order: 16-bit little-endian mono PCM at ``rate_hz``. At most 200 ms a chunk unless
    the model makes whole segments. ``last`` closes the segment (its ``pcm`` may be empty). ``words`` may come with
    any chunk; without them, time is shared out by length of text."""

    epoch: int
    segment: int
    pcm: bytes
    rate_hz: int
    last: bool
    words: tuple[WordEnd, ...] = ()


class SynthesisFailed(msgspec.Struct, frozen=True):
    epoch: int
    segment: int
    code: str
    message: str


Transcript = PartialTranscript | FinalTranscript | TranscriptionFailed
Generation = Token | ToolCalled | GenerationDone | GenerationFailed
Synthesis = SynthesisChunk | SynthesisFailed
