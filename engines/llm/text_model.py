"""What :class:`engines.llm.ctranslate2.CTranslate2LanguageModel` asks of the weights it speaks with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engines.llm.chatml import ChatMl
from streaming.jobs import Priority


@dataclass(frozen=True, slots=True)
class Wanted:
    """A reply to be said. Its functions are called on lane threads; only ``on_token`` may raise."""

    prompt: list[int]
    max_tokens: int
    temperature: float
    on_token: Callable[[int], bool]
    """Told each id as it comes. True: say no more."""
    on_end: Callable[[int, Exception | None], None]
    """Told once, when all is said: how many tokens of the prompt had to be computed, and what went wrong."""
    urgency: Callable[[], tuple[Priority, float] | None]
    """Its class and deadline as of now; None: nobody wants it any more."""


class Offer(Protocol):
    """The part of :class:`engines.lane.Slot` that whoever says replies needs."""

    def yield_if_needed(self) -> bool: ...

    def reprioritize(self, priority: Priority, deadline: float) -> None: ...


class TextModel(Protocol):
    """Tokens in, tokens out: :class:`engines.llm.ctranslate2_model.CTranslate2Model`,
    :class:`engines.llm.onnx_model.OnnxTextModel`, or a stand-in under test."""

    @property
    def chat(self) -> ChatMl: ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a reply and are no text."""

    def decode(self, ids: list[int]) -> str: ...

    def generate(self, wanted: Wanted, slot: Offer) -> None:
        """Say a reply, until ``max_tokens``, an end id, or ``on_token`` returns True; offer ``slot`` at each step. It
        may be handed to a thread that says others: it is over when ``on_end`` was told, which always is. Raises
        nothing."""

    def reorder(self) -> None:
        """The urgency of a reply under way has changed. From any thread."""

    def close(self) -> None: ...
