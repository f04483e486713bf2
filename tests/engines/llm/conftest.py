"""Tiny checkpoints, and engines on them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engines.llm.mlx_bench import Bench, bench
from tests.engines.tiny_llama import write_tiny_llama


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="session")
def byte_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("bytes"), byte_level=True)


@pytest.fixture(scope="session")
def endless_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("endless"), stops=False)


@pytest.fixture
async def b(checkpoint: Path) -> AsyncIterator[Bench]:
    made = await bench(checkpoint, prefill_chunk_tokens=8)
    yield made
    await made.close()


@pytest.fixture
async def endless(endless_checkpoint: Path) -> AsyncIterator[Bench]:
    """No reply stops before its limit."""
    made = await bench(endless_checkpoint, prefill_chunk_tokens=8)
    yield made
    await made.close()
