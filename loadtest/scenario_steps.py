"""The steps of a scenario file, and how they become a caller's.

A step is a mapping with one key, or the key alone where it needs nothing: ``- wait_agent``, ``- say: Hello``,
``- interrupt: {say: Stop., after_ms: 800}``. ``docs/loadtest/scenarios.md`` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from loadtest.script import (
    Backchannel,
    HangUp,
    HoldLine,
    Interrupt,
    Line,
    Pause,
    Press,
    Repeat,
    Say,
    Step,
    Vanish,
    WaitAgent,
)
from loadtest.voices import CodePlace

Seconds = Annotated[float, Field(ge=0, le=86_400)]
Milliseconds = Annotated[float, Field(ge=0, le=600_000)]


def _pair(value: Any) -> Any:
    return (value, value) if isinstance(value, int | float) else value


def _rising(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] > value[1]:
        raise ValueError("the shorter of two lengths comes first")
    return value


SecondsRange = Annotated[tuple[Seconds, Seconds], BeforeValidator(_pair), AfterValidator(_rising)]
"""One length, or the shortest and the longest."""


class Strict(BaseModel):
    """Unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Words(Strict):
    """What is said: a text, or one of several (each caller has its own). ``code`` says where the caller's code word is,
    in runs that have them; ``answer`` whether the agent owes one."""

    text: tuple[Annotated[str, Field(min_length=1, max_length=2_000)], ...] = Field(min_length=1)
    code: CodePlace = "instead"
    answer: bool = True

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str | list) else value

    @field_validator("text", mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class Keys(Strict):
    keys: str
    answer: bool = True

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        if isinstance(value, int | float):
            raise ValueError("keys are words: put them into quotes")
        return {"keys": value} if isinstance(value, str) else value

    @field_validator("keys")
    @classmethod
    def _known(cls, value: str) -> str:
        return Press(value).keys


class SayStep(Strict):
    say: Words


class PressStep(Strict):
    press: Keys


class WaitOptions(Strict):
    bound_s: Seconds | None = None


class WaitStep(Strict):
    wait_agent: WaitOptions


class Interruption(Strict):
    """Spoken or pressed."""

    say: Words | None = None
    press: Keys | None = None
    after_ms: Milliseconds

    @model_validator(mode="after")
    def _one(self) -> Interruption:
        if (self.say is None) == (self.press is None):
            raise ValueError("an interruption is spoken (say) or pressed (press)")
        return self


class InterruptStep(Strict):
    interrupt: Interruption


class Murmur(Strict):
    say: tuple[str, ...] = ("Uh-huh.",)
    after_ms: Milliseconds

    @field_validator("say", mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class BackchannelStep(Strict):
    backchannel: Murmur


class PauseStep(Strict):
    """So long, or by chance between two lengths (each caller has its own)."""

    pause_s: SecondsRange


class HoldStep(Strict):
    hold_s: Seconds


class Nothing(Strict):
    pass


class VanishStep(Strict):
    vanish: Nothing


class HangUpStep(Strict):
    hang_up: Nothing


class RepeatStep(Strict):
    repeat: Repeated


_KINDS = "say press wait_agent interrupt backchannel pause_s hold_s vanish hang_up repeat".split()


def _kind(value: Any) -> str | None:
    if isinstance(value, Strict):
        return next(iter(type(value).model_fields))
    keys = list(value) if isinstance(value, dict) else []
    return keys[0] if len(keys) == 1 and keys[0] in _KINDS else None


def _unfolded(value: Any) -> Any:
    """``vanish`` and ``wait_agent:`` are as good as ``vanish: {}``."""
    if isinstance(value, str):
        return {value: {}}
    if isinstance(value, dict) and len(value) == 1 and None in value.values():
        return {key: {} for key in value}
    return value


StepModel = Annotated[
    Annotated[SayStep, Tag("say")]
    | Annotated[PressStep, Tag("press")]
    | Annotated[WaitStep, Tag("wait_agent")]
    | Annotated[InterruptStep, Tag("interrupt")]
    | Annotated[BackchannelStep, Tag("backchannel")]
    | Annotated[PauseStep, Tag("pause_s")]
    | Annotated[HoldStep, Tag("hold_s")]
    | Annotated[VanishStep, Tag("vanish")]
    | Annotated[HangUpStep, Tag("hang_up")]
    | Annotated[RepeatStep, Tag("repeat")],
    Discriminator(
        _kind,
        custom_error_type="step",
        custom_error_message=f"a step is one of {', '.join(_KINDS)}, and nothing beside it",
    ),
]


def _steps_unfolded(value: Any) -> Any:
    return [_unfolded(step) for step in value] if isinstance(value, list) else value


StepModels = Annotated[tuple[StepModel, ...], BeforeValidator(_steps_unfolded), Field(min_length=1, max_length=1_000)]


class Repeated(Strict):
    """So many times, or until the call's planned end."""

    steps: StepModels
    times: Annotated[int, Field(ge=1, le=100_000)] | None = None


RepeatStep.model_rebuild()

Speaker = Callable[[str, CodePlace], Line]
"""Makes a caller's line of a text."""


def build_steps(models: Sequence[StepModel], speak: Speaker, random: Random) -> tuple[Step, ...]:
    """One caller's steps: ``random`` chooses where it has a choice."""
    return tuple(_build(model, speak, random) for model in models)


def _build(model: StepModel, speak: Speaker, random: Random) -> Step:
    match model:
        case SayStep(say=words):
            return Say(_line(words, speak, random), words.answer)
        case PressStep(press=keys):
            return Press(keys.keys, keys.answer)
        case WaitStep(wait_agent=options):
            return WaitAgent(None if options.bound_s is None else options.bound_s * 1000)
        case InterruptStep(interrupt=Interruption(say=None, press=Keys() as keys, after_ms=after_ms)):
            return Interrupt(Press(keys.keys), after_ms, keys.answer)
        case InterruptStep(interrupt=Interruption(say=Words() as words, after_ms=after_ms)):
            return Interrupt(_line(words, speak, random), after_ms, words.answer)
        case BackchannelStep(backchannel=Murmur(say=texts, after_ms=after_ms)):
            return Backchannel(speak(random.choice(texts), "never"), after_ms)
        case PauseStep(pause_s=(shortest_s, longest_s)):
            return Pause(random.uniform(shortest_s, longest_s) * 1000)
        case HoldStep(hold_s=length_s):
            return HoldLine(length_s * 1000)
        case VanishStep():
            return Vanish()
        case HangUpStep():
            return HangUp()
        case RepeatStep(repeat=repeated):
            return Repeat(build_steps(repeated.steps, speak, random), repeated.times)
    raise AssertionError("a kind of step without a case")


def _line(words: Words, speak: Speaker, random: Random) -> Line:
    return speak(random.choice(words.text), words.code)


def each_step(models: Sequence[StepModel]) -> Iterator[StepModel]:
    """Every step, those that are repeated too."""
    for model in models:
        if isinstance(model, RepeatStep):
            yield from each_step(model.repeat.steps)
        else:
            yield model


def texts_of(models: Sequence[StepModel]) -> Iterator[str]:
    """All that may be said."""
    for model in each_step(models):
        match model:
            case SayStep(say=words) | InterruptStep(interrupt=Interruption(say=Words() as words)):
                yield from words.text
            case BackchannelStep(backchannel=murmur):
                yield from murmur.say


def presses_keys(models: Sequence[StepModel]) -> bool:
    """Whether it takes a phone."""
    return any(
        isinstance(model, PressStep) or (isinstance(model, InterruptStep) and model.interrupt.press is not None)
        for model in each_step(models)
    )
