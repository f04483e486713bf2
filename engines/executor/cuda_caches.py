"""MLX's caches on CUDA, sized for a server that meets many shapes and goes on for weeks.

MLX makes kernels at first use (half a second to four seconds each), keeps cuDNN plans and CUDA graphs by shape, and by
default raises "Cache thrashing is happening" once a cache of plans or graphs has missed twice its size since the start:
a check for benchmarks, fatal to a server, whose every later forward pass would fail. What a user has set stays.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import structlog

from engines.fetch import cache_folder

SIZES = {
    "MLX_ENABLE_CACHE_THRASHING_CHECK": "0",
    "MLX_CUDA_CONV_CACHE_SIZE": "8192",  # the default is 128, and each bucket of speech has dozens of convolutions
    "MLX_CUDA_SDPA_CACHE_SIZE": "2048",
    "MLX_CUDA_FFT_CACHE_SIZE": "1024",
    "MLX_CUDA_GRAPH_CACHE_SIZE": "2000",
}
"""Entries. They are read when MLX's streams are made, so they are set before it is imported."""
KERNELS = "MLX_PTX_CACHE_DIR"

_log = structlog.get_logger(__name__)


def set_sizes(environ: MutableMapping[str, str] = os.environ) -> None:
    """Before MLX is imported."""
    for name, value in SIZES.items():
        environ.setdefault(name, value)


def keep_kernels(mx: Any, environ: MutableMapping[str, str] = os.environ) -> Path | None:
    """Before MLX's first kernel is made: keep them in Offhook's cache, so that the next start finds them. A folder for
    each version and architecture: MLX names the files by neither. Returns where, or None where nothing is kept."""
    if environ.get(KERNELS) or not mx.cuda.is_available():
        return None
    architecture = str(mx.device_info(mx.gpu).get("architecture", "unknown"))
    folder = cache_folder(environ) / "mlx-kernels" / f"{importlib.metadata.version('mlx')}-{architecture}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _drop_unfinished(folder)
    except OSError as error:
        _log.warning("kernels are not kept for the next start", folder=str(folder), error=str(error))
        return None
    environ[KERNELS] = str(folder)
    return folder


def _drop_unfinished(folder: Path) -> None:
    """What a process that was killed left half written would fail every later start. The source is written last."""
    for kernel in folder.rglob("*.ptx"):
        if not kernel.with_suffix(".cu").exists():
            kernel.unlink(missing_ok=True)
