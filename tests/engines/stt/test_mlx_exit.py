"""How a process ends that heard through MLX: with utterances open and work in flight, its exit code is 0."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engines.stt.convert import whisper_mlx
from tests.engines.stt.tiny_streaming import needs_mlx_audio
from tests.engines.stt.tiny_whisper import needs_mlx_whisper, write_tiny_whisper

pytestmark = [needs_mlx_audio, needs_mlx_whisper, pytest.mark.timeout(120)]

PROGRAM = """
import asyncio, sys
from functools import partial
from pathlib import Path
import numpy as np
from engines.executor.thread import MlxExecutor
from engines.stt.mlx_streaming import MlxStreamingStt
from engines.stt.mlx_whisper import MlxWhisper
from streaming.jobs import FinalizeTranscription, OpenTranscription, Priority
from tests.engines.stt.tiny_streaming import write_tiny_nemotron

async def main():
    whisper, nemotron = Path(sys.argv[1]), Path(sys.argv[2])
    executor = MlxExecutor()
    await executor.start()
    await executor.run(partial(write_tiny_nemotron, nemotron))
    engines = [MlxWhisper(whisper, executor, windows_s=(4,)), MlxStreamingStt(nemotron, executor)]
    told = asyncio.Event()
    noise = (np.random.default_rng(0).standard_normal(64_000) * 5000).astype(np.int16)
    for engine in engines:
        await engine.start()
        for call in "ab":
            stream = engine.open(OpenTranscription(call, 1, 0), lambda transcript: told.set())
            stream.feed(noise)
            stream.finalize(FinalizeTranscription(1, 1, Priority.FINAL, 0.0))
    await told.wait()
    await executor.close()

asyncio.run(main())
"""


def test_the_process_ends_well(tmp_path: Path) -> None:
    source, whisper = tmp_path / "ct2", tmp_path / "whisper"
    whisper.mkdir()
    whisper_mlx(write_tiny_whisper(source), whisper)
    command = [sys.executable, "-c", PROGRAM, str(whisper), str(tmp_path / "nemotron")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
