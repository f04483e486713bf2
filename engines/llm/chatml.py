"""The ChatML prompt format, in one place: what the converter writes as a chat template and what engines send.

Source: the ``tokenizer.chat_template`` field of SmolLM2's GGUF. One difference: that template invents a system
message ("You are a helpful AI assistant named SmolLM ...") for a prompt without one, which would speak on a call;
ours adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streaming.jobs import Message

START = "<|im_start|>"
END = "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The same format as Jinja, for libraries that want it so."""

Encode = Callable[[str], list[int]]
"""Text to token ids, with no special tokens read out of the text: a caller's words can't end a message."""


class ChatMl:
    """Messages to token ids."""

    def __init__(self, encode: Encode, start_id: int, end_id: int) -> None:
        self._encode = encode
        self._start_id = start_id
        self.end_id = end_id
        self._newline = encode("\n")
        self._assistant = [start_id, *encode("assistant\n")]

    def message_ids(self, message: Message) -> list[int]:
        """One whole message."""
        body = self._encode(f"{message.role}\n{message.content}")
        return [self._start_id, *body, self.end_id, *self._newline]

    @property
    def reply_ids(self) -> list[int]:
        """What follows the last message and asks for a reply."""
        return list(self._assistant)

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """A whole prompt that ends where the assistant's words begin."""
        return [token for message in messages for token in self.message_ids(message)] + self._assistant
