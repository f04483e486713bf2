"""A BLAS worth the name for MLX on a Linux CPU."""

from __future__ import annotations

import ctypes
import os
import sys

_NAME = "libopenblas.so.0"
_preloaded: list[str] = []


def preload_openblas() -> str | None:
    """Put OpenBLAS before the reference BLAS that the Linux wheel of MLX bundles (10 to 30 times slower); works only
    before MLX is loaded. Returns its name, or None where there is none.

    One thread: its spinning workers fight every other library's for the cores.
    """
    if sys.platform != "linux":
        return None
    if "mlx.core" in sys.modules:
        return _preloaded[0] if _preloaded else None
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when the library is loaded
    try:
        ctypes.CDLL(_NAME, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return None
    finally:
        if before is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = before
    _preloaded.append(_NAME)
    return _NAME
