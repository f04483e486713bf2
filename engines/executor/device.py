"""MLX's process-wide state, as the executor's thread finds and leaves it. For that thread only."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from engines.executor import cuda_caches
from engines.executor.blas import preload_openblas
from engines.executor.cache import ClearCacheGuard

_RANDOM_SEED = 0
_CPU_CACHE_BYTES = 512 * 2**20
_GPU_CACHE_BYTES = 2 * 2**30
_GPU_CACHE_PART = 16
_UNKNOWN_MEMORY_BYTES = 16 * 2**30

_log = structlog.get_logger(__name__)


def prepare(cache_limit_bytes: int | None) -> Any:
    """Import MLX with its limits set. Returns ``mlx.core``.

    Without a limit MLX keeps every buffer it ever freed (133 GB in one run on CUDA). The default is 512 MB on a CPU; on
    a GPU 2 GiB, or a sixteenth of its memory if that is less.
    """
    blas = preload_openblas()
    cuda_caches.set_sizes()
    import mlx.core as mx

    kernels = cuda_caches.keep_kernels(mx)
    on_cpu = mx.default_device() == mx.cpu
    if cache_limit_bytes is None:
        share = max(memory_bytes() // _GPU_CACHE_PART, _CPU_CACHE_BYTES)
        cache_limit_bytes = _CPU_CACHE_BYTES if on_cpu else min(_GPU_CACHE_BYTES, share)
    mx.set_cache_limit(cache_limit_bytes)
    metal = mx.metal.is_available()
    working_set = mx.device_info().get("max_recommended_working_set_size") if metal else None
    if working_set is not None:
        mx.set_wired_limit(int(working_set))
    mx.random.seed(_RANDOM_SEED)  # the state left by an earlier thread would be a lazy array of that thread
    if on_cpu and blas is None and sys.platform == "linux":
        _log.warning("openblas not found: matrix products on the CPU are 10 to 30 times slower without it")
    _log.info("mlx executor started", device=str(mx.default_device()), blas=blas, cache_limit=cache_limit_bytes)
    if kernels is not None:
        _log.info("compiled kernels are kept", folder=str(kernels))
    return mx


def memory_bytes() -> int:
    """What the default device has. 16 GiB if it does not say: the least that a GPU worth the name has."""
    import mlx.core as mx

    info = mx.device_info()
    return int(info.get("memory_size") or info.get("total_memory") or _UNKNOWN_MEMORY_BYTES)


def memory() -> dict[str, int]:
    """MLX's own counters."""
    import mlx.core as mx

    return {"active_bytes": int(mx.get_active_memory()), "cache_bytes": int(mx.get_cache_memory())}


def drain_streams() -> None:
    """Finish all work in flight on the thread's streams."""
    import mlx.core as mx

    generate = sys.modules.get("mlx_lm.generate")
    if generate is not None:
        mx.synchronize(generate.generation_stream)  # bare synchronize() drains only the default stream
    mx.synchronize()


def release(guard: ClearCacheGuard | None) -> None:
    """The last job of the thread. In this order, or the process aborts or hangs at exit."""
    mx = sys.modules.get("mlx.core")
    if mx is None:
        return
    with logged("mlx did not shut down cleanly"):
        drain_streams()
        gc.collect()
        mx.eval(mx.random.state)
        mx.synchronize()
        if guard is not None:
            guard.uninstall()
        mx.clear_cache()
    with logged("mlx streams were not cleared"):
        mx.clear_streams()


@contextmanager
def logged(event: str) -> Iterator[None]:
    """Log an exception and go on: the steps after it must still happen."""
    try:
        yield
    except Exception:  # noqa: BLE001 (see above)
        _log.exception(event)
