"""Fitting a conversation into the context of a model that keeps a cache between turns: the oldest turns go first, the
system message and the last user message stay, and the cut moves rarely. (:mod:`engines.llm.history` is for models that
read everything anew: there the cut may move every turn, and fewer tokens is the aim.)"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engines.llm.history import ContextTooLongError
from streaming.jobs import Message

_MAX_CHARS_PER_TOKEN = 32
"""Text longer than this many characters a token of the budget is not even tokenised."""

_REFILL = 0.75
"""Once turns have to go, go down to this share of the budget: each cut makes the engine prefill the whole rest again,
so it must not happen every turn."""


@dataclass(frozen=True, slots=True)
class FittedPrompt:
    """``dropped`` counts the messages left out after the system messages; hand it in again at the next turn."""

    tokens: list[int]
    dropped: int


def fit_history(
    messages: Sequence[Message],
    encode: Callable[[Sequence[Message]], list[int]],
    max_tokens: int,
    dropped_before: int = 0,
) -> FittedPrompt:
    """The prompt of ``messages`` in at most ``max_tokens``. What remains begins with a user message. The cut of the
    turn before is kept while it still fits, so that the prompt's beginning (and a cache of it) stays the same.

    Raises :class:`ContextTooLongError`.
    """
    head = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    system, rest = messages[:head], messages[head:]
    cuts = [0, *(i for i, message in enumerate(rest) if message.role == "user" and i > 0)]
    max_chars = max_tokens * _MAX_CHARS_PER_TOKEN

    def prompt(cut: int) -> list[int] | None:
        kept = [*system, *rest[cut:]]
        return encode(kept) if sum(len(message.content) for message in kept) <= max_chars else None

    for cut in dict.fromkeys((0, dropped_before)):
        tokens = prompt(cut) if cut in cuts else None
        if tokens is not None and len(tokens) <= max_tokens:
            return FittedPrompt(tokens, cut)

    def roomy(cut: int) -> bool:
        tokens = prompt(cut)
        return tokens is not None and len(tokens) <= max_tokens * _REFILL

    cut = cuts[min(bisect_left(cuts, True, key=roomy), len(cuts) - 1)]
    tokens = prompt(cut)
    if tokens is None or len(tokens) > max_tokens:
        raise ContextTooLongError(f"the system message and the last user message are over {max_tokens} tokens")
    return FittedPrompt(tokens, cut)
