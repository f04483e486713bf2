from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

MAKEFILE = (Path(__file__).parents[2] / "Makefile").read_text("utf-8")
RUN = sorted(set(re.findall(r"-m (scripts\.\w+)", MAKEFILE)))


def test_no_script_is_run_by_its_path() -> None:
    """Its folder would come first where modules are looked for, and ``scripts/loadtest.py`` before the load test."""
    assert len(RUN) >= 5
    assert not re.findall(r"python\S* scripts/\S+\.py", MAKEFILE)


@pytest.mark.parametrize("module", [name for name in RUN if name != "scripts.loadtest"])  # that one has no options
def test_what_make_runs_starts(module: str) -> None:
    told = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, timeout=60)
    assert (told.returncode, told.stderr) == (0, "")
    assert "usage" in told.stdout.lower()
