"""The names of mlx-lm that the batches stand on. When an upgrade fails here, read ``engines/executor/batch.py`` and
``library_batch.py`` again before anything else: the tests of behaviour are in ``test_slots.py`` beside this and in
``tests/engines/llm``."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from engines.executor.batch import CACHE_CONTRACT, REQUIRED, REQUIRED_ARGUMENTS
from engines.executor.thread import MlxExecutor
from tests.engines.tiny_llama import needs_mlx

pytestmark = needs_mlx


def _find(path: str) -> Any:
    module, names = path.split(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name, None)
    return found


def _moved() -> list[str]:
    """What is no longer where the batches look for it."""
    absent = []
    for path, attributes in REQUIRED.items():
        found = _find(path)
        absent += [path] if found is None else [f"{path}.{name}" for name in attributes if not hasattr(found, name)]
    for path, arguments in REQUIRED_ARGUMENTS.items():
        found = _find(path)
        known = set(inspect.signature(found).parameters) if found is not None else set()
        absent += [f"{path}({name})" for name in arguments if name not in known]
    cache = _find("mlx_lm.models.cache:KVCache")()
    return absent + [f"KVCache.{name}" for name in CACHE_CONTRACT if not hasattr(cache, name)]


async def _on_the_thread() -> list[str]:
    executor = MlxExecutor()
    await executor.start()
    try:
        return await executor.run(_moved)
    finally:
        await executor.close()


async def test_mlx_lm_still_has_what_the_batches_use() -> None:
    assert await _on_the_thread() == []


async def test_what_moved_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REQUIRED, "mlx_lm.models.cache:KVCache", ("merge", "gone"))
    monkeypatch.setitem(REQUIRED, "mlx_lm.generate:Gone", ())
    monkeypatch.setitem(REQUIRED_ARGUMENTS, "mlx_lm.models.base:create_attention_mask", ("h", "gone"))
    assert sorted(await _on_the_thread()) == [
        "mlx_lm.generate:Gone",
        "mlx_lm.models.base:create_attention_mask(gone)",
        "mlx_lm.models.cache:KVCache.gone",
    ]


def test_importing_the_executor_imports_no_mlx() -> None:
    import subprocess
    import sys

    modules = "thread batch cache slots library_batch prefill rows_kv device".split()
    code = (
        f"import sys, {', '.join(f'engines.executor.{name}' for name in modules)}, engines.llm.mlx_lm;"
        "assert not any(name.split('.')[0] in ('mlx', 'mlx_lm', 'transformers') for name in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if done.stderr:
        pytest.fail(done.stderr)
