"""``python -m engines.probe JSON``: try one backend in a process of its own, and say on standard output what came.

A library may end the process that imports it, or print there; what counts is the last line, and that there is one.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from typing import Any, NoReturn

LAST_LINE = "offhook-probe "
START_S = 75.0
"""Longer than an engine waits for a server that loads its model."""


def main() -> NoReturn:
    what: dict[str, Any] = json.loads(sys.argv[1])
    try:
        answer = {"ok": True, **(_try_mlx() if what.get("mlx") else _try_backend(what))}
    except Exception as error:  # noqa: BLE001 (whatever it is, is the answer)
        code = getattr(error, "code", None)
        answer = {"ok": False, "why": f"{code}: {error}" if code else f"{type(error).__name__}: {error}"}
    print(LAST_LINE + json.dumps(answer), flush=True)  # noqa: T201 (our protocol)
    os._exit(0)  # a library that aborts at exit is none that aborts at import


def _try_backend(what: dict[str, Any]) -> dict[str, Any]:
    from engines.registry import load_reference

    for package in what["imports"]:
        importlib.import_module(package)
    factory = load_reference(what["factory"])
    if what.get("cuda"):
        import ctranslate2

        if ctranslate2.get_cuda_device_count() < 1:
            raise RuntimeError("there is no CUDA device that CTranslate2 can use")
    if what.get("start"):
        asyncio.run(_start(factory(**what["options"])))
    return {}


async def _start(engine: Any) -> None:
    try:
        async with asyncio.timeout(START_S):
            await engine.start()
    finally:
        await engine.close()


def _try_mlx() -> dict[str, Any]:
    from engines.executor.blas import preload_openblas

    blas = preload_openblas()
    import mlx.core as mx

    info = mx.device_info()
    memory = int(info.get("max_recommended_working_set_size") or info.get("total_memory") or 0)
    name = str(info.get("device_name", info.get("architecture", "")))
    return {"device": str(mx.default_device()), "name": name, "memory_mb": memory >> 20, "blas": blas}


if __name__ == "__main__":
    main()
