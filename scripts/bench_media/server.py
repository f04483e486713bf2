"""The server process: ``server CORE stock|ours|pipecat SPEECH``. It answers offers, and tells what it used."""

from __future__ import annotations

import importlib
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

from scripts.bench_media.talk import Pattern, Speech
from scripts.bench_media.wire import Message, run_child
from scripts.loopback import only_loopback

MODULES = {"stock": "stock", "ours": "ours", "pipecat": "smallwebrtc"}


class Conversation:
    """What the server's calls share: the agents' speech, when they talk, and how much was heard of the callers."""

    def __init__(self, speech: Speech) -> None:
        self.speech = speech
        self.heard_samples = 0
        self._pattern = Pattern(1, 0)
        self._since_s = time.monotonic()

    def set_pattern(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._since_s = time.monotonic()

    def talking(self, call: int) -> bool:
        return self._pattern.talking((time.monotonic() - self._since_s) * 1000, call)


class Server(Protocol):
    """One way to answer calls."""

    async def answer(self, offer_sdp: str, call: int) -> str: ...


def make_server(kind: str, conversation: Conversation) -> Server:
    """Only the one that is asked for is imported: each needs what the other's environment may lack."""
    server: Server = importlib.import_module(f"scripts.bench_media.{MODULES[kind]}").Server(conversation)
    return server


async def serve(arguments: Sequence[str]) -> Callable[[Message], Awaitable[Message]]:
    kind, speech_path = arguments
    only_loopback()
    conversation = Conversation(Speech.load(Path(speech_path)))
    server = make_server(kind, conversation)
    calls = 0

    async def answer(message: Message) -> Message:
        nonlocal calls
        if message["do"] == "answer":
            calls += 1
            return {"sdp": await server.answer(message["sdp"], calls)}
        if message["do"] == "talk":
            conversation.set_pattern(Pattern(message["on_ms"], message["off_ms"]))
            return {}
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "cpu_s": used.ru_utime + used.ru_stime,
            "at_s": time.monotonic(),
            "heard_samples": conversation.heard_samples,
        }

    return answer


if __name__ == "__main__":
    run_child(serve)
