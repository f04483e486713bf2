"""Real engines stand in for ones that fail: nothing of them is loaded before, and all is said and heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engines.llm.scripted import ScriptedLlm
from engines.opening import open_engines
from engines.registry import BackendSpec, find_lineup
from engines.stt.scripted import ScriptedStt
from engines.tts.scripted import ScriptedTts
from streaming.audio.level import rms_dbfs
from streaming.jobs import (
    FinalizeTranscription,
    FinalTranscript,
    Generate,
    GenerationDone,
    Message,
    OpenTranscription,
    Priority,
    Synthesize,
    Token,
)
from tests.models.speech import say

pytestmark = [pytest.mark.models, pytest.mark.timeout(300)]

HERE = __name__
WAIT_S = 60.0


class BrokenStt(ScriptedStt):
    def __init__(self) -> None:
        super().__init__(fault="fail")


class BrokenLlm(ScriptedLlm):
    def __init__(self) -> None:
        super().__init__(fault="fail_first")


class BrokenTts(ScriptedTts):
    def __init__(self) -> None:
        super().__init__(fail_segments={0: "engine_error"})


async def results(ask: Callable[[Callable[[Any], None]], object], is_last: Callable[[Any], bool]) -> list[Any]:
    """What a request delivers, up to its end."""
    queue: asyncio.Queue[Any] = asyncio.Queue()
    got: list[Any] = []
    ask(queue.put_nowait)
    async with asyncio.timeout(WAIT_S):
        while not got or not is_last(got[-1]):
            got.append(await queue.get())
    return got


async def test_the_embedded_engines_stand_in() -> None:
    chains = dict(find_lineup("embedded").chains)
    for kind in ("stt", "llm", "tts"):
        chains[kind] = (BackendSpec(f"broken-{kind}", kind, f"{HERE}:Broken{kind.capitalize()}"), *chains[kind])
    async with open_engines(replace(find_lineup("embedded"), chains=chains)) as engines:
        assert engines.tts.rate_hz == 24_000
        messages = (Message("system", "You answer in one sentence."), Message("user", "What is the capital of France?"))
        reply = await results(
            lambda deliver: engines.llm.generate(Generate("c", 1, messages, Priority.DECODE, 0.0, 40), deliver),
            lambda result: not isinstance(result, Token),
        )
        assert isinstance(reply[-1], GenerationDone)
        assert "Paris" in "".join(token.text for token in reply[:-1])

        voice = engines.tts.voices[0]
        spoken = await results(
            lambda deliver: engines.tts.synthesize(
                Synthesize("c", 1, 0, "The bakery opens at eight.", voice, Priority.FIRST_AUDIO, 0.0), deliver
            ),
            lambda chunk: getattr(chunk, "last", True),
        )
        assert {chunk.rate_hz for chunk in spoken} == {22_050}
        assert rms_dbfs(np.frombuffer(b"".join(chunk.pcm for chunk in spoken), np.int16)) > -40

        def listen(deliver: Callable[[Any], None]) -> None:
            stream = engines.stt.open(OpenTranscription("c", 1, 0, partials=False), deliver)
            stream.feed(say("How long does delivery usually take?"))
            stream.finalize(FinalizeTranscription(1, 1, Priority.FINAL, 0.0))

        heard = await results(listen, lambda result: True)
        assert isinstance(heard[0], FinalTranscript)
        assert "delivery" in heard[0].text
