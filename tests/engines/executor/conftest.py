"""An executor."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from engines.executor.thread import MlxExecutor


@pytest.fixture
async def executor() -> AsyncIterator[MlxExecutor]:
    made = MlxExecutor(inbox_limit=8)
    await made.start()
    yield made
    await made.close()
