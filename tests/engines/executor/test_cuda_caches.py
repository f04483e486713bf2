"""How MLX's caches on CUDA are set, told to a stand-in for MLX."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines.executor import cuda_caches
from engines.executor.cuda_caches import KERNELS, SIZES


@pytest.fixture(autouse=True)
def _a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.2.3")


def mlx(*, cuda: bool = True) -> Any:
    return SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: cuda), gpu="gpu", device_info=lambda device: {"architecture": "sm_90"}
    )


def test_what_a_user_has_set_stays() -> None:
    environ = {"MLX_CUDA_GRAPH_CACHE_SIZE": "7"}
    cuda_caches.set_sizes(environ)
    assert environ == SIZES | {"MLX_CUDA_GRAPH_CACHE_SIZE": "7"}
    assert environ["MLX_ENABLE_CACHE_THRASHING_CHECK"] == "0"


def test_kernels_are_kept_by_version_and_architecture(tmp_path: Path) -> None:
    environ = {"OFFHOOK_CACHE": str(tmp_path)}
    folder = cuda_caches.keep_kernels(mlx(), environ)
    assert folder == tmp_path / "mlx-kernels" / "1.2.3-sm_90"
    assert folder.is_dir()
    assert environ[KERNELS] == str(folder)
    assert cuda_caches.keep_kernels(mlx(), environ) is None, "set already"


def test_a_kernel_left_half_written_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "mlx-kernels" / "1.2.3-sm_90"
    (folder / "a-long-name").mkdir(parents=True)
    for name in ("whole.ptx", "whole.cu", "half.ptx", "a-long-name/half.ptx"):
        (folder / name).write_text("kernel")
    cuda_caches.keep_kernels(mlx(), {"OFFHOOK_CACHE": str(tmp_path)})
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == ["whole.cu", "whole.ptx"]


def test_without_cuda_nothing_is_kept(tmp_path: Path) -> None:
    environ = {"OFFHOOK_CACHE": str(tmp_path)}
    assert cuda_caches.keep_kernels(mlx(cuda=False), environ) is None
    assert KERNELS not in environ


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environ = {"OFFHOOK_CACHE": str(tmp_path / "file")}
    assert cuda_caches.keep_kernels(mlx(), environ) is None
    assert KERNELS not in environ
