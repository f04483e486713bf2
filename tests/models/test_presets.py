"""A whole preset with its real weights."""

from __future__ import annotations

import pytest

from engines import registry
from engines.api import EngineSet
from engines.opening import open_preset

pytestmark = pytest.mark.models


@pytest.mark.timeout(300)  # the first run fetches and converts
async def test_the_embedded_preset_opens_warm_and_closes_twice() -> None:
    async with open_preset("embedded") as engines:
        assert isinstance(engines, EngineSet)
        assert engines.turn is not None
        assert engines.tts.rate_hz == 22_050
        assert engines.tts.voices
    for kind in registry.KINDS:
        await getattr(engines, kind).close()
