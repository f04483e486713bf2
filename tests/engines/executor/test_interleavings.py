"""Random inserts and cancels on the real thread: right words, nothing left behind, a clean exit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.tiny_llama import needs_mlx

pytestmark = [needs_mlx, pytest.mark.timeout(180)]


@pytest.mark.parametrize(
    ("count", "shapes"),
    [
        (40, "exact"),
        (40, "pad"),
        pytest.param(1000, "exact", marks=pytest.mark.slow),
        pytest.param(1000, "pad", marks=pytest.mark.slow),
    ],
)
def test_random_interleavings(count: int, shapes: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.engines.executor.interleavings", str(count), str(tmp_path), shapes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert done.stdout.splitlines()[-1] == "done"
