"""``offhook doctor`` tells the truth: each preset's verdict against really opening it."""

from __future__ import annotations

import asyncio

import pytest

from engines.api import EngineError
from engines.checkup import Checkup
from engines.memory import RESERVE_MB, read_memory
from engines.opening import open_preset
from engines.registry import PRESETS, find_lineup

pytestmark = [pytest.mark.models, pytest.mark.timeout(400)]

TOO_MUCH_BYTES = 500_000_000


@pytest.mark.parametrize("preset", PRESETS)
async def test_a_verdict_is_what_opening_finds(preset: str) -> None:
    lineup = find_lineup(preset)
    verdict = await asyncio.to_thread(Checkup(read_memory(), RESERVE_MB).judge, lineup)
    if verdict.runs and verdict.fetch_bytes > TOO_MUCH_BYTES:
        pytest.skip(f"would fetch {verdict.fetch_bytes / 1e9:.1f} GB")
    hindrance = ""
    try:
        async with open_preset(preset) as engines:
            assert engines.health().healthy
    except EngineError as error:
        hindrance = f"{error.code}: {error}"
    assert verdict.runs is not bool(hindrance), (verdict.problems, hindrance)
