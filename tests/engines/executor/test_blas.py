"""OpenBLAS in front of MLX's own reference BLAS."""

from __future__ import annotations

import os
import sys

import pytest

from engines.executor import blas


def test_openblas_is_loaded_before_mlx_or_found_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    monkeypatch.setattr(blas, "_preloaded", [])
    seen: list[tuple[str, str | None]] = []

    def load(name: str, mode: int) -> None:
        seen.append((name, os.environ.get("OPENBLAS_NUM_THREADS")))
        if len(seen) == 1:
            raise OSError("no such library")

    monkeypatch.setattr("ctypes.CDLL", load)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    assert blas.preload_openblas() is None
    assert "OPENBLAS_NUM_THREADS" not in os.environ
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    assert blas.preload_openblas() == "libopenblas.so.0"
    assert os.environ["OPENBLAS_NUM_THREADS"] == "3"
    assert seen == [("libopenblas.so.0", "1")] * 2
    monkeypatch.setitem(sys.modules, "mlx.core", object())
    assert blas.preload_openblas() == "libopenblas.so.0"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert blas.preload_openblas() is None
