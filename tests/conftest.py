"""Every test leaves the process as it found it: no task, no thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Iterator

import hypothesis
import pytest

# These machines are shared: how long an example takes says nothing of the code.
hypothesis.settings.register_profile(
    "shared-machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("shared-machine")

_GRACE_S = 2.0
"""How long a thread that was told to end may take."""
_TURNS = 20
"""How many turns of the loop a cancelled task may take."""


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves threads behind; an async one also for tasks."""
    before = set(threading.enumerate())
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("no_leaked_tasks")
    yield
    for thread in _new_threads(before):
        thread.join(_GRACE_S)
    left = [thread.name for thread in _new_threads(before) if thread.is_alive()]
    assert not left, f"threads left behind: {left}"


def _new_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    # The default executor's threads belong to the test's loop, which joins them when it closes.
    return [t for t in threading.enumerate() if t not in before and not t.name.startswith("asyncio_")]


@pytest.fixture
async def no_leaked_tasks() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    for _ in range(_TURNS):
        left = asyncio.all_tasks() - before - {asyncio.current_task()}
        if not left:
            return
        await asyncio.sleep(0)
    names = [f"{task.get_name()}: {task.get_coro()}" for task in left]
    for task in left:
        task.cancel()
    pytest.fail(f"tasks left behind: {names}")
