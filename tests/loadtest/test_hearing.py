from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from loadtest.hearing import hear_spans, open_hearing
from loadtest.measure import Span

RATE_HZ = 24_000


class CountingHearing:
    def text_of(self, pcm: npt.NDArray[np.int16], rate_hz: int) -> str:
        return f"{len(pcm) * 1000 // rate_hz} ms" if len(pcm) > RATE_HZ // 2 else ""


def test_silence_is_not_asked_about_and_speech_is_cut_out_with_a_margin() -> None:
    agent = np.zeros(RATE_HZ * 10, dtype=np.int16)
    agent[RATE_HZ * 3 : RATE_HZ * 4] = 9_000
    agent[RATE_HZ * 9 : RATE_HZ * 9 + 2_400] = 9_000
    spans = [Span(0, RATE_HZ * 2), Span(RATE_HZ * 2, RATE_HZ * 8), Span(RATE_HZ * 8, RATE_HZ * 10)]
    assert hear_spans(agent, RATE_HZ, spans, CountingHearing()) == [None, "1400 ms", None]


def test_without_a_model_or_the_library_there_are_no_ears(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert open_hearing(None) is None
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    assert open_hearing(tmp_path) is None


@pytest.mark.parametrize(("multilingual", "language"), [(True, None), (False, "en")])
def test_the_library_gets_16_khz_floats_with_silence_around_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, multilingual: bool, language: str | None
) -> None:
    asked: list[tuple[Any, dict[str, Any]]] = []

    class FakeModel:
        def __init__(self, path: str, **_options: object) -> None:
            assert path == str(tmp_path)
            self.model = types.SimpleNamespace(is_multilingual=multilingual)

        def transcribe(self, audio: Any, **options: Any) -> tuple[list[Any], None]:
            asked.append((audio, options))
            return [types.SimpleNamespace(text=" Hello"), types.SimpleNamespace(text=" there. ")], None

    monkeypatch.setitem(sys.modules, "faster_whisper", types.SimpleNamespace(WhisperModel=FakeModel))
    hearing = open_hearing(tmp_path)
    assert hearing is not None
    assert hearing.text_of(np.full(RATE_HZ, 16_384, dtype=np.int16), RATE_HZ) == "Hello there."
    ((audio, options),) = asked
    assert (len(audio), audio.dtype) == (8_000 + 16_000 + 8_000, np.float32)
    assert audio[16_000] == pytest.approx(0.5, abs=0.01)
    assert not audio[:7_900].any()
    assert not audio[-7_900:].any()
    assert options["language"] == language
