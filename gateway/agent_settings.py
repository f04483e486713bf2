"""What an agent can be told: the ``[agents.NAME]`` tables."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_settings import NoDecode

from gateway.engine_settings import comma_separated
from streaming.config import Eagerness

DEFAULT_INSTRUCTIONS = (
    "You are a helpful voice assistant on a phone call. Answer in one or two short spoken sentences, "
    "without lists, headings or symbols."
)
"""For a Realtime client that names no agent and sends no instructions."""

BAKERY_INSTRUCTIONS = (
    "You are the receptionist of Blue Door Bakery. Our opening hours are Monday to Saturday, eight a.m. to six p.m. "
    "We are closed on Sunday. Our shop is at twelve Harbour Street. We sell bread, cakes and croissants. "
    "Answer the caller in one short, friendly sentence."
)
"""Short, because a model without a kept cache reads it again at every turn."""

BAKERY_EXAMPLES = (("When are you open?", "We are open Monday to Saturday, from eight to six."),)
BAKERY_GREETING = "Hello, this is Blue Door Bakery. How can I help you?"
GOODBYE = "Goodbye."
APOLOGY = "I am sorry, I did not manage to answer that. Could you say it again?"


def _target(value: str) -> str:
    if not _ADDRESS.fullmatch(value):
        raise ValueError(f"{value!r} is neither a number such as +15551234567 nor a URI such as sip:sales@pbx.example")
    return value


ToolName = Literal["end_call", "transfer", "send_dtmf", "hold"]
ToolNames = Annotated[tuple[ToolName, ...], NoDecode, BeforeValidator(comma_separated)]
TargetName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w .-]+$")]
TransferTarget = Annotated[str, AfterValidator(_target)]
_ADDRESS = re.compile(r"\+?[0-9*#]{1,32}|(?:sips?|tel):[^\s<>\"]{1,250}", re.ASCII)

Line = Annotated[str, Field(min_length=1, max_length=1_000)]
Example = tuple[Line, Line]
"""What a caller might say, and how the agent would answer. Small models follow these better than instructions."""


class AgentSettings(BaseModel):
    """``[agents.NAME]``: who answers, and how. Chosen by ``?agent=NAME``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instructions: str = Field(default=DEFAULT_INSTRUCTIONS, description="the system prompt")
    examples: tuple[Example, ...] = Field(
        default=(), max_length=20, description="exchanges shown to the model: [[caller, agent], ...]"
    )
    greeting: str = Field(default="", description="spoken when the call is answered; empty: the caller speaks first")
    voice: str = Field(default="", description="a voice of the preset's text-to-speech; empty: its default")
    language: str = Field(default="en", description="BCP 47 tag")
    apology: str = Field(default=APOLOGY, description="spoken when an engine fails a turn; empty: silence")
    speed: float = Field(default=1.0, ge=0.25, le=1.5, description="of speech")
    speculate: bool = Field(default=True, description="transcribe and generate before the turn has surely ended")
    silence_ms: int = Field(default=300, ge=100, le=5_000, description="the least silence before a turn may end")
    eagerness: Eagerness = Field(
        default=Eagerness.HIGH,
        description="longest wait for a caller who sounds unfinished: low 8 s, medium 4, high 2, auto 4",
    )
    threshold: float = Field(default=0.5, gt=0, lt=1, description="voice activity probability that counts as speech")
    idle_timeout_ms: int | None = Field(
        default=None, ge=1_000, le=120_000, description="prompt a silent caller after this"
    )
    max_output_tokens: int = Field(default=96, ge=1, le=4_096, description="the longest reply")
    temperature: float = Field(default=0.0, ge=0, le=2, description="0: always the likeliest token")
    tools: ToolNames = Field(
        default=(),
        description="what the agent may do by itself: end_call, and on phones that can, transfer, send_dtmf, hold",
    )
    transfer_targets: dict[TargetName, TransferTarget] = Field(
        default_factory=dict,
        max_length=50,
        description='where transfer may lead, by name: { sales = "sip:sales@pbx.example" }; nowhere else',
    )
    goodbye: str = Field(default=GOODBYE, description="spoken when the model hangs up without a word; empty: silence")
    keypad_pause_ms: int = Field(
        default=2_000, ge=200, le=30_000, description="no key for this long ends an entry on the keypad"
    )
    keypad_end_key: Literal["#", "*", ""] = Field(
        default="#", description="the key that ends an entry at once; empty: none, only the pause"
    )

    @model_validator(mode="after")
    def _transfers_somewhere(self) -> Self:
        if "transfer" in self.tools and not self.transfer_targets:
            raise ValueError("the tool transfer needs transfer_targets: an agent transfers nowhere else")
        names = [name.casefold() for name in self.transfer_targets]
        if len(set(names)) < len(names):
            raise ValueError("names of transfer_targets differ by more than their case")
        return self


DEFAULT_AGENT = AgentSettings(
    instructions=BAKERY_INSTRUCTIONS, examples=BAKERY_EXAMPLES, greeting=BAKERY_GREETING, max_output_tokens=64
)
