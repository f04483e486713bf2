"""How much of a conversation is sent to a model that computes all of it anew each turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streaming.jobs import Message


class ContextTooLongError(Exception):
    """The instructions and the last words of the caller alone are more than the model may be asked to read."""


def bounded(
    messages: Sequence[Message],
    count_tokens: Callable[[Message], int],
    *,
    history_tokens: int,
    max_tokens: int,
    step: int = 1,
) -> list[Message]:
    """The system messages at the head, and as many of the newest turns as fit.

    A turn is a user message and all up to the next one; a turn is kept whole or dropped whole, oldest first, until
    the prompt is at most ``history_tokens``. The last turn always stays. What can't be dropped may take up to
    ``max_tokens``; beyond it :class:`ContextTooLongError` is raised. Messages are counted newest first and only until
    the budget is spent, so a conversation of hours costs no more than a short one.

    With a ``step`` the number of turns dropped is a multiple of it (the last turn stays all the same), so that the
    beginning of the prompt stays what it was for as many turns: for a model that keeps what it computed of it.
    """
    head = 0
    while head < len(messages) and messages[head].role == "system":
        head += 1
    used = sum(_counted(messages[:head], count_tokens, max_tokens))
    end = len(messages)
    kept = end
    while kept > head:
        start = kept - 1
        while start > head and messages[start].role != "user":
            start -= 1
        budget = max_tokens if kept == end else history_tokens
        cost = sum(_counted(messages[start:kept], count_tokens, budget - used))
        if used + cost > budget:
            if kept == end:
                raise ContextTooLongError(f"the prompt needs more than {max_tokens} tokens")
            break
        used += cost
        kept = start
    if used > max_tokens:
        raise ContextTooLongError(f"the prompt needs more than {max_tokens} tokens")
    return [*messages[:head], *messages[_stepped(messages, head, kept, step) :]]


def _stepped(messages: Sequence[Message], head: int, kept: int, step: int) -> int:
    """The cut at ``kept``, or the next after it that a multiple of ``step`` turns lie before."""
    if step == 1 or kept == head:
        return kept
    turns = [index for index in range(head, len(messages)) if index == head or messages[index].role == "user"]
    dropped = turns.index(kept)
    return turns[min(-(-dropped // step) * step, len(turns) - 1)]


def _counted(messages: Sequence[Message], count_tokens: Callable[[Message], int], budget: int) -> list[int]:
    """Token counts, given up once they exceed the budget (the sum then exceeds it too)."""
    counts: list[int] = []
    left = budget
    for message in reversed(messages):
        # No token of text is longer than this many characters on average: spare the tokeniser a novel.
        count = left + 1 if len(message.content) > max(left, 0) * 64 + 64 else count_tokens(message)
        counts.append(count)
        left -= count
        if left < 0:
            break
    return counts
