"""The chat engine against a server that others wrote: mlx-lm's own, on a tiny random llama."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engines.api import EngineError
from engines.llm.openai_compatible import OpenAiLanguageModel
from streaming.jobs import GenerationDone, Message
from tests.engines.llm.chat import ask
from tests.engines.mlx_server import mlx_server
from tests.engines.tiny_llama import WORDS, needs_mlx, write_tiny_llama

pytestmark = [needs_mlx, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(180)]

TALK = (Message("system", "ba be bi"), Message("user", "bo bu bay"))


async def test_replies_of_a_real_server(tmp_path: Path) -> None:
    checkpoint = write_tiny_llama(tmp_path / "model", stops=False)
    async with mlx_server(checkpoint) as url:
        # The server loads what a request names: a folder is its own name.
        model = OpenAiLanguageModel(base_url=url, model=str(checkpoint), first_s=60.0)
        await model.start()
        try:
            first = ask(model, messages=TALK, max_tokens=12)
            done = await first.done()
            assert done.reason == "length"
            assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (14, 12)
            assert len(first.results) > 3, "it came in pieces"
            assert set(first.text.split()) <= {*WORDS, "system", "user", "assistant"}

            again = [ask(model, epoch=epoch, messages=TALK, max_tokens=12) for epoch in (2, 3)]
            for heard in again:
                assert isinstance(await heard.end(), GenerationDone)
                assert heard.text == first.text

            endless = ask(model, epoch=4, messages=TALK, max_tokens=3000)
            await endless.until(lambda: len(endless.results) >= 3)
            model.cancel("call", 4)
            count = len(endless.results)
            after = ask(model, epoch=5, messages=TALK, max_tokens=12)
            await after.done()
            assert after.text == first.text
            await asyncio.sleep(0)
            assert len(endless.results) == count

            unknown = OpenAiLanguageModel(base_url=url, model=str(tmp_path / "nothing"), attempts=1)
            with pytest.raises(EngineError, match="nothing") as caught:
                await unknown.start()
            assert caught.value.code == "no_model"
        finally:
            await model.close()
