"""What the options of a Whisper decoder make of a model that only notes how it was opened and asked."""

from __future__ import annotations

import threading
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.api import EngineError
from engines.stt.faster_whisper import FasterWhisper
from engines.stt.whisper_decoder import FINAL, PARTIAL, WhisperDecoder
from tests.engines.manual_lane import ManualLane

pytest.importorskip("faster_whisper")
SECOND = 16_000


class Model:
    """One word a clip: how many frames its window has."""

    opened: dict[str, Any]
    asked: list[tuple[int, ...]]
    hold: threading.Event

    def __init__(self, folder: str, **options: Any) -> None:
        Model.opened = options
        Model.asked = []
        self.n_mels = 128
        self.is_multilingual = True

    def generate(self, features: Any, prompts: list[list[int]], **_: Any) -> list[Any]:
        Model.asked.append(features.shape)
        assert Model.hold.wait(10)
        one = types.SimpleNamespace(sequences_ids=[[5]], no_speech_prob=0.0, scores=[-0.1])
        return [one] * len(prompts)

    def unload_model(self) -> None: ...


class Tokenizer:
    @staticmethod
    def from_file(_: str) -> Tokenizer:
        return Tokenizer()

    def token_to_id(self, _: str) -> int:
        return 50

    def decode(self, ids: list[int]) -> str:
        return f"heard {ids}"


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many there are: an empty list, or one that a test fills."""
    import ctranslate2
    import tokenizers

    found: list[int] = []
    monkeypatch.setattr(ctranslate2.models, "Whisper", Model)
    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: len(found))
    monkeypatch.setattr(ctranslate2.StorageView, "from_array", staticmethod(lambda array: array))
    monkeypatch.setattr(tokenizers, "Tokenizer", Tokenizer)
    Model.hold = threading.Event()
    Model.hold.set()
    return found


def noise(seconds: int) -> Any:
    return np.random.default_rng(0).integers(-9000, 9000, seconds * SECOND).astype(np.int16)


def test_on_the_cpu_nothing_changes(gpus: list[int]) -> None:
    for options in ({}, {"device": "auto"}, {"device": "cpu"}):
        decoder = WhisperDecoder(Path("unused"), 3, **options)  # type: ignore[arg-type]
        assert Model.opened == {"device": "cpu", "compute_type": "int8", "inter_threads": 3, "intra_threads": 1}
        decoder.decode(noise(2), FINAL)
        decoder.decode(noise(2), PARTIAL)
        assert Model.asked == [(1, 128, 1300), (1, 128, 500)]


def test_on_cuda_every_window_is_whole(gpus: list[int]) -> None:
    gpus.append(0)
    for options in ({"device": "auto"}, {"device": "cuda"}):
        decoder = WhisperDecoder(Path("unused"), 3, **options)  # type: ignore[arg-type]
        assert Model.opened == {"device": "cuda", "compute_type": "float16", "inter_threads": 1, "intra_threads": 1}
        decoder.decode(noise(2), PARTIAL)
        assert Model.asked == [(1, 128, 3000)]
    decoder = WhisperDecoder(Path("unused"), 3, device="cuda", full_window=False, compute_type="int8_float16")
    assert Model.opened["compute_type"] == "int8_float16"
    decoder.decode(noise(2), FINAL)
    assert Model.asked == [(1, 128, 1300)]


def test_clips_that_come_at_once_are_one_batch_on_cuda(gpus: list[int]) -> None:
    gpus.append(0)
    decoder = WhisperDecoder(Path("unused"), 4, device="cuda", batch=3)
    Model.hold.clear()
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(decoder.decode, noise(1), FINAL)
        while not Model.asked:
            threading.Event().wait(0.001)
        others = [pool.submit(decoder.decode, noise(1 + index), FINAL) for index in range(4)]
        assert decoder._batched is not None
        while len(decoder._batched._waiting) < 4:
            threading.Event().wait(0.001)
        Model.hold.set()
        assert {call.result(10).text for call in (first, *others)} == {"heard [5]"}
    assert [shape[0] for shape in Model.asked] == [1, 3, 1]


def test_cuda_that_is_not_there(gpus: list[int]) -> None:
    with pytest.raises(EngineError, match="CUDA") as caught:
        WhisperDecoder(Path("unused"), 1, device="cuda")
    assert caught.value.code == "no_cuda"


async def test_the_engine_hands_its_options_on(gpus: list[int]) -> None:
    gpus.append(0)
    engine = FasterWhisper(Path("unused"), ManualLane(), device="auto", compute_type="bfloat16", batch=2)
    await engine.start()
    assert (Model.opened["device"], Model.opened["compute_type"]) == ("cuda", "bfloat16")
    await engine.close()
    for options in ({"device": "tpu"}, {"batch": 0}):
        with pytest.raises(EngineError) as caught:
            FasterWhisper(Path("unused"), ManualLane(), **options)
        assert caught.value.code == "bad_options"
