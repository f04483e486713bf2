"""How the process ends. MLX aborts or hangs at exit when its streams are left open, so these run whole processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.tiny_llama import needs_mlx, write_tiny_llama

pytestmark = [needs_mlx, pytest.mark.timeout(120)]

PRELUDE = """
import asyncio, sys
from pathlib import Path
from engines.api import EngineError
from engines.executor.thread import MlxExecutor
from engines.llm.mlx_lm import MlxLanguageModel
from streaming.jobs import Generate, GenerationFailed, Message, Priority
from tests.engines import tiny_llama

executor = MlxExecutor()
model = MlxLanguageModel(Path(sys.argv[1]), executor)

def ask(epoch, deliver):
    message = Message("user", "ba be bi")
    model.generate(Generate("c", epoch, (message,), Priority.FIRST_AUDIO, 0.0, 4000), deliver)

async def speaking():
    "Three generations in flight, each past its first token."
    tokens = [asyncio.Event() for _ in range(3)]
    for epoch, event in enumerate(tokens):
        ask(epoch, lambda result, event=event: event.set())
    for event in tokens:
        await event.wait()
"""

CLOSED_IN_FLIGHT = """
async def main():
    await model.start()
    await speaking()
    await model.close()
    await executor.close()
"""

NEVER_CLOSED = """
async def main():
    await model.start()
    await speaking()
"""

FAILED_START = """
async def main():
    try:
        await model.start()
    except EngineError as error:
        assert error.code == "load_failed", error.code
    else:
        raise AssertionError("a folder without weights was loaded")
    await model.close()
    await executor.close()
"""

DEATH = """
def die():
    raise SystemExit("dead")

async def main():
    await model.start()
    await speaking()
    failed = asyncio.get_running_loop().create_future()
    ask(9, lambda result: isinstance(result, GenerationFailed) and not failed.done() and failed.set_result(result.code))
    try:
        await executor.run(die)
    except Exception as error:
        assert error.code == "executor_dead"
    assert await failed == "executor_dead"
    late = asyncio.get_running_loop().create_future()
    ask(10, lambda result: late.set_result(result.code))
    assert await late == "executor_dead"
    await model.close()
    await executor.close()
"""


def run(body: str, folder: Path) -> None:
    code = f"{PRELUDE}\n{body}\nasyncio.run(main())\nprint('done')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines()[-1] == "done"


@pytest.mark.parametrize("attempt", [0, *(pytest.param(again, marks=pytest.mark.slow) for again in (1, 2))])
def test_closed_with_generations_in_flight(attempt: int, tmp_path: Path) -> None:
    run(CLOSED_IN_FLIGHT, write_tiny_llama(tmp_path, stops=False))


def test_never_closed(tmp_path: Path) -> None:
    run(NEVER_CLOSED, write_tiny_llama(tmp_path, stops=False))


def test_after_a_failed_start(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    (folder / "model.safetensors").write_bytes(b"not weights")
    run(FAILED_START, folder)


def test_after_the_thread_died(tmp_path: Path) -> None:
    run(DEATH, write_tiny_llama(tmp_path, stops=False))


def test_closed_by_the_executor_alone_with_generations_in_flight(tmp_path: Path) -> None:
    run(CLOSED_IN_FLIGHT.replace("    await model.close()\n", ""), write_tiny_llama(tmp_path, stops=False))
