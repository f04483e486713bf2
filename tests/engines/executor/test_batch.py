"""The names of mlx-lm that the adapter stands on. When an upgrade fails here, read ``engines/executor/batch.py`` again
before anything else: its tests of behaviour are in ``tests/engines/llm/test_mlx_lm.py``."""

from __future__ import annotations

import importlib
import inspect

import pytest

from engines.executor.batch import REQUIRED, REQUIRED_ARGUMENTS
from engines.executor.thread import MlxExecutor
from tests.engines.tiny_llama import needs_mlx

pytestmark = needs_mlx


async def test_mlx_lm_still_has_what_the_adapter_uses() -> None:
    def missing() -> list[str]:
        absent = []
        for path, attributes in REQUIRED.items():
            module, name = path.split(":")
            found = getattr(importlib.import_module(module), name, None)
            absent += [path] if found is None else [f"{path}.{a}" for a in attributes if not hasattr(found, a)]
        return absent

    def arguments() -> dict[str, set[str]]:
        from mlx_lm.generate import GenerationBatch, PromptProcessingBatch

        return {
            "prompt": set(inspect.signature(PromptProcessingBatch).parameters),
            "response": set(inspect.signature(GenerationBatch.Response).parameters),
        }

    executor = MlxExecutor()
    await executor.start()
    try:
        assert await executor.run(missing) == []
        found = await executor.run(arguments)
    finally:
        await executor.close()
    assert set(REQUIRED_ARGUMENTS) <= found["prompt"]
    assert {"uid", "token", "finish_reason", "prompt_cache", "all_tokens"} <= found["response"]


def test_importing_the_executor_imports_no_mlx() -> None:
    import subprocess
    import sys

    code = (
        "import sys, engines.executor.thread, engines.executor.batch, engines.executor.cache, engines.llm.mlx_lm;"
        "assert not any(name.split('.')[0] in ('mlx', 'mlx_lm', 'transformers') for name in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if done.stderr:
        pytest.fail(done.stderr)
