"""Between messages and tokens, for a tokenizer as ``mlx_lm.load`` makes it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from engines.executor.cache import common_prefix
from streaming.jobs import Message

_INCOMPLETE = "\ufffd"
_PROBES = ("", "0", "Zebra")
"""Users' words with nothing in common: what prompts share that differ in them is not the user's."""
_MAX_REMEMBERED = 64


class Words:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.stop_tokens = frozenset(int(token) for token in tokenizer.eos_token_ids)
        self.special_tokens = frozenset(int(token) for token in tokenizer.all_special_ids)
        self._special_texts = tuple(text for text in tokenizer.all_special_tokens if len(text) > 1)
        self._system: OrderedDict[tuple[str, ...], list[int]] = OrderedDict()

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """The prompt of a conversation that the model is to go on with."""
        turns = [{"role": message.role, "content": self._plain(message.content)} for message in messages]
        tokens: list[int] = self._tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, enable_thinking=False
        )
        return list(tokens)

    def system_prefix(self, messages: Sequence[Message]) -> list[int]:
        """The tokens that every prompt beginning with these system messages begins with, whatever the user says:
        found by encoding them with several users' words, so none of the caller's are in it. Empty without any."""
        head = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
        if head == 0:
            return []
        key = tuple(message.content for message in messages[:head])
        known = self._system.get(key)
        if known is None:
            known, *others = (self.encode([*messages[:head], Message("user", probe)]) for probe in _PROBES)
            for other in others:
                del known[common_prefix(known, other) :]
            self._system[key] = known
            if len(self._system) > _MAX_REMEMBERED:
                self._system.popitem(last=False)
        self._system.move_to_end(key)
        return known

    def detokenizer(self) -> Any:
        return self._tokenizer.detokenizer

    def text(self, detokenizer: Any, token: int, *, last: bool) -> str:
        """The text that this token completes; never a part of a character."""
        if token not in self.stop_tokens and token not in self.special_tokens:  # a marker is not speech
            detokenizer.add_token(token)
        if last:
            detokenizer.finalize()
        text: str = detokenizer.last_segment
        return text.rstrip(_INCOMPLETE) if last else text

    def _plain(self, text: str) -> str:
        """The text with the template's markers broken up: a caller's words can't end a message."""
        for marker in self._special_texts:
            text = text.replace(marker, f"{marker[:1]} {marker[1:]}")
        return text
