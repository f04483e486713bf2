"""A process that closes a preset while a reply is being generated ends well: nothing aborts, nothing hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.models, pytest.mark.timeout(300)]

CLOSES_IN_MID_REPLY = """
import asyncio, sys
from engines.opening import open_preset
from streaming.jobs import Generate, Message, Priority, Token

async def main():
    loop = asyncio.get_running_loop()
    async with open_preset(sys.argv[1]) as engines:
        began = asyncio.Event()
        def deliver(result):
            assert isinstance(result, Token), result
            began.set()
        story = (Message("user", "Tell me a long story."),)
        engines.llm.generate(Generate("c", 1, story, Priority.DECODE, loop.time() + 1, max_tokens=400), deliver)
        async with asyncio.timeout(60):
            await began.wait()

asyncio.run(main())
print("closed")
"""


@pytest.mark.parametrize("preset", ["embedded", pytest.param("mlx-cpu", marks=pytest.mark.slow)])
def test_closing_in_the_middle_of_a_reply_exits_with_0(preset: str) -> None:
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, "-c", CLOSES_IN_MID_REPLY, preset],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.splitlines()[-1] == "closed"
