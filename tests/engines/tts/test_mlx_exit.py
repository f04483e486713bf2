"""How the process ends with MLX voices in it. MLX aborts or hangs at exit when its streams are left open, so these run
whole processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.tiny_llama import needs_mlx

pytestmark = [needs_mlx, pytest.mark.timeout(180)]

PRELUDE = """
import asyncio, sys
from pathlib import Path
import pytest
from engines.executor.thread import MlxExecutor
from engines.tts.kokoro_text import KokoroText
from engines.tts.mlx_kokoro import MlxKokoro
from engines.tts.mlx_streaming import MlxStreamingTts
from streaming.jobs import Priority, Synthesize
from tests.engines.tts import test_mlx_kokoro, tiny_kokoro, tiny_voices

folder = Path(sys.argv[1])
patch = pytest.MonkeyPatch()
executor = MlxExecutor()

def write():
    tiny_voices.write_tiny_pocket(folder / "pocket")
    tiny_kokoro.patch_decoder(patch)
    tiny_kokoro.write_tiny_kokoro(folder / "kokoro")

async def speaking():
    "Both voices loaded, each with segments past their first chunk or still waiting."
    await executor.start()
    await executor.run(write)
    recording = tiny_voices.write_recording(folder / "bob.wav")
    voices = {"bob": {"ref_audio": str(recording)}}
    stream = MlxStreamingTts(folder / "pocket", executor, voices=voices)
    KokoroText.load = lambda *arguments: KokoroText(test_mlx_kokoro._Spelled(), tiny_kokoro.CONFIG["vocab"], 30)
    kokoro = MlxKokoro(folder / "kokoro", folder, folder, executor, id_buckets=(32,), frame_buckets=(96, 192),
                       max_batch=2)
    await stream.start()
    await kokoro.start()
    first = asyncio.Event()
    for engine in (stream, kokoro):
        for segment in range(4):
            text, voice = "Yes we are open on Saturday", engine.voices[0]
            request = Synthesize("c", 1, segment, text, voice, Priority.FIRST_AUDIO, 0.0)
            engine.synthesize(request, lambda result: first.set())
    await first.wait()
    return stream, kokoro
"""

CLOSED_IN_FLIGHT = """
async def main():
    for engine in await speaking():
        await engine.close()
    await executor.close()
"""

CLOSED_BY_THE_EXECUTOR = """
async def main():
    await speaking()
    await executor.close()
"""

NEVER_CLOSED = """
async def main():
    await speaking()
"""


@pytest.mark.parametrize("body", [CLOSED_IN_FLIGHT, CLOSED_BY_THE_EXECUTOR, NEVER_CLOSED])
def test_the_process_ends_cleanly(body: str, tmp_path: Path) -> None:
    code = f"{PRELUDE}\n{body}\nasyncio.run(main())\nprint('done')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines()[-1] == "done"
