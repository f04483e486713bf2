"""The Kokoro bench on a tiny model: its figures are there, and its exactness check can tell."""

from __future__ import annotations

import pytest

from engines.bench import kokoro
from tests.engines.tiny_llama import needs_mlx
from tests.engines.tts.tiny_kokoro import CONFIG, patch_decoder

pytestmark = [needs_mlx, pytest.mark.timeout(120)]


async def test_it_measures_times_and_exactness(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_decoder(monkeypatch)
    monkeypatch.setattr(kokoro, "_REPEATS", 1)
    result = await kokoro.run([1, 2], [6], CONFIG)
    one, two = result["batches"]
    assert (one["batch"], two["batch"]) == (1, 2)
    assert one["id_bucket"] == two["id_bucket"] == 16
    assert 0 < one["audio_s"] < two["audio_s"]
    assert one["durations_equal"] == two["durations_equal"] == 1
    assert max(one["fixed_source_difference"], two["fixed_source_difference"]) < 1e-4
    assert result["library"][0]["library_ms"] > 0
    assert result["device"]
