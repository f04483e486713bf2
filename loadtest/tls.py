"""Whom a caller believes: the system's certificates, read once a process. Reading them takes tens of ms."""

from __future__ import annotations

import asyncio
import functools
import os
import ssl


async def tls_context() -> ssl.SSLContext:
    """Off the loop, where it is not there yet."""
    return await asyncio.to_thread(_context, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@functools.lru_cache(4)
def _context(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    """The two are what :mod:`ssl` itself looks at."""
    return ssl.create_default_context()
