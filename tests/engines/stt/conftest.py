"""A Whisper with tiny random weights, on the real thread."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engines.executor.thread import MlxExecutor
from engines.stt import mlx_whisper_clips
from engines.stt.convert import whisper_mlx
from engines.stt.mlx_whisper import MlxWhisper
from engines.stt.whisper_decoder import DecodeOptions
from tests.engines.stt.tiny_whisper import MULTILINGUAL_TOKENS, tiny_variables, write_tiny_whisper
from tests.engines.stt.whisper_rig import WINDOWS_S


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, out = (tmp_path_factory.mktemp(name) for name in ("ct2", "mlx"))
    whisper_mlx(write_tiny_whisper(source), out)
    return out


@pytest.fixture(scope="session")
def multilingual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, out = (tmp_path_factory.mktemp(name) for name in ("ct2", "mlx"))
    whisper_mlx(write_tiny_whisper(source, tiny_variables(MULTILINGUAL_TOKENS)), out)
    return out


@pytest.fixture
def shorter_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random words loop often, and the full window is the one that costs."""
    monkeypatch.setattr(mlx_whisper_clips, "RETRY", DecodeOptions(300, 1.1))


@pytest.fixture
async def executor() -> AsyncIterator[MlxExecutor]:
    made = MlxExecutor()
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def whisper(executor: MlxExecutor, checkpoint: Path) -> AsyncIterator[MlxWhisper]:
    made = MlxWhisper(checkpoint, executor, windows_s=WINDOWS_S, tokens_per_quantum=4)
    await made.start()
    yield made
    await made.close()
