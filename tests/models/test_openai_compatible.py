"""The cloud engines with real models behind them: SmolLM2 served by mlx-lm, asked over HTTP."""

from __future__ import annotations

import pytest

from engines import fetch
from engines.llm.convert import smollm2_mlx
from engines.llm.openai_compatible import OpenAiLanguageModel
from streaming.jobs import Message
from tests.engines.llm.chat import ask
from tests.engines.mlx_server import mlx_server
from tests.engines.tiny_llama import needs_mlx

pytestmark = [needs_mlx, pytest.mark.models, pytest.mark.slow, pytest.mark.timeout(300)]


async def test_a_served_model_answers_in_words() -> None:
    gguf = fetch.ensure("smollm2-gguf")
    folder = fetch.derived("smollm2-mlx-float32-1", lambda into: smollm2_mlx(gguf, into))
    async with mlx_server(folder, within_s=120) as url:
        model = OpenAiLanguageModel(base_url=url, model=str(folder), first_s=120.0, between_s=30.0)
        await model.start()
        try:
            system = Message("system", "You answer questions about geography in one short sentence.")
            heard = ask(model, messages=(system, Message("user", "What is the capital of France?")), max_tokens=24)
            heard.within_s = 200.0
            usage = (await heard.done()).usage
            assert "Paris" in heard.text
            assert usage.prompt_tokens > 20
            assert 0 < usage.completion_tokens <= 24
        finally:
            await model.close()
