from __future__ import annotations

import jinja2

from engines.llm.chatml import CHAT_TEMPLATE, ChatMl
from streaming.jobs import Message

MESSAGES = (
    Message("system", "Be brief."),
    Message("user", "Hello?"),
    Message("assistant", "Hello."),
    Message("user", "Say {{ nothing }}."),
)


def test_ids_and_the_jinja_template_say_the_same() -> None:
    chat = ChatMl(lambda text: [ord(letter) for letter in text], 1_000_001, 1_000_002)
    special = {1_000_001: "<|im_start|>", 1_000_002: "<|im_end|>"}
    told = "".join(special.get(token) or chr(token) for token in chat.prompt_ids(MESSAGES))
    template = jinja2.Template(CHAT_TEMPLATE)
    messages = [{"role": message.role, "content": message.content} for message in MESSAGES]
    assert told == template.render(messages=messages, add_generation_prompt=True)
    assert template.render(messages=[], add_generation_prompt=False) == ""
