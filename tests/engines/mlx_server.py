"""``mlx_lm.server``, which speaks OpenAI's protocol, as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from tests.engines.http_server import free_port

_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "MLX_DISABLE_COMPILE": "1"}
if sys.platform == "linux":
    _ENVIRONMENT["LD_PRELOAD"] = (
        "libopenblas.so.0"  # ten times the speed of the BLAS in MLX's wheel; passed over where it is not
    )


@contextlib.asynccontextmanager
async def mlx_server(checkpoint: Path, within_s: float = 60.0) -> AsyncIterator[str]:
    """Its base URL, once it answers."""
    port = free_port()
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(checkpoint), "--port", str(port)]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **_ENVIRONMENT},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(within_s), httpx.AsyncClient(trust_env=False) as client:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get(f"{url}/health")).status_code == 200:
                        break
                assert process.returncode is None, "the server ended"
                await asyncio.sleep(0.2)
        yield f"{url}/v1"
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 10)
            except TimeoutError:
                process.kill()
                await process.wait()
