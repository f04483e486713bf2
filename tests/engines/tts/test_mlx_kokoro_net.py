"""Kokoro's batched forward pass against the library's own, which takes one row, unpadded.

The source's phase is a discontinuous function of its pitch (an angle jumps at half a turn), so any rounding of the
pitch may change single values of it, in the library as here. So the vocoder is compared with one fixed source in both,
to the rounding of float32, and the source by itself with the formula in float64.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engines.executor.thread import MlxExecutor
from tests.engines.tiny_llama import needs_mlx
from tests.engines.tts.tiny_kokoro import CONFIG, FRAME_SAMPLES, patch_decoder, write_tiny_kokoro

pytestmark = [needs_mlx, pytest.mark.timeout(120)]

TEXTS = ("hɛlO ðɛɹ.", "ɐ", "aɪ æm əlIv", "sO ɐ lɔŋɡəɹ sɛntəns, wɪθ mɔɹ.")
IDS = [[0, *(CONFIG["vocab"][letter] for letter in text), 0] for text in TEXTS]
NUMBERS = np.random.default_rng(3).standard_normal(1 << 16).astype(np.float32) * 0.3


@pytest.fixture
async def executor() -> AsyncIterator[MlxExecutor]:
    executor = MlxExecutor()
    await executor.start()
    yield executor
    await executor.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: MlxExecutor) -> Path:
    patch_decoder(monkeypatch)
    return tmp_path


class Pair:
    """The library's model and ours over the same weights. For the executor's thread."""

    def __init__(self, folder: Path) -> None:
        import mlx.core as mx
        from mlx_audio.tts.utils import load_model

        from engines.tts.mlx_kokoro_net import KokoroNet

        write_tiny_kokoro(folder)
        self.model = load_model(folder)
        self.net = KokoroNet(self.model)
        stored: Any = mx.load(str(folder / "voices" / "af_heart.safetensors"))
        self.voice = stored["voice"]

    def fix_source(self) -> None:
        """The same numbers as the source of both."""
        import mlx.core as mx

        numbers = mx.array(NUMBERS)
        self.model.decoder.generator.m_source = lambda f0: (numbers[None, : f0.shape[1], None], None, None)
        vocoder: Any = self.net._decoder.vocoder
        vocoder._source = lambda pitch: mx.broadcast_to(
            numbers[None, : pitch.shape[1] * vocoder.samples_a_pitch],
            (pitch.shape[0], pitch.shape[1] * vocoder.samples_a_pitch),
        )

    def style(self, row: int) -> Any:
        return self.voice[len(TEXTS[row]) - 1]

    def alone(self, row: int, speed: float = 1.0) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        output = self.model(TEXTS[row], self.style(row), speed, return_output=True)
        return np.array(output.pred_dur), np.array(output.audio).reshape(-1)

    def together(
        self, rows: list[int], id_bucket: int, frame_bucket: int, speeds: list[float] | None = None
    ) -> list[tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]]:
        styles = [self.style(row)[0] for row in rows]
        spoken = self.net.encode([IDS[row] for row in rows], styles, speeds or [1.0] * len(rows), id_bucket)
        audio = self.net.speak(spoken, frame_bucket)
        results = []
        for one, samples in zip(spoken, audio, strict=True):
            end = one.frames * FRAME_SAMPLES
            assert not samples[end:].any(), "sound in the padding"
            results.append((one.durations, samples[:end]))
        return results


async def test_padded_rows_in_one_batch_are_what_the_library_makes_of_each_alone(
    executor: MlxExecutor, folder: Path
) -> None:
    def compare() -> list[float]:
        pair = Pair(folder)
        pair.fix_source()
        worst = []
        for row, (durations, samples) in enumerate(pair.together([0, 1, 2, 3], 48, 128)):
            expected_durations, expected = pair.alone(row)
            assert durations.tolist() == expected_durations.tolist()
            assert samples.shape == expected.shape
            assert np.abs(expected).max() > 0.01
            worst.append(float(np.abs(samples - expected).max() / np.abs(expected).max()))
        return worst

    assert max(await executor.run(compare)) < 1e-4


async def test_each_row_has_its_own_speed(executor: MlxExecutor, folder: Path) -> None:
    def compare() -> float:
        pair = Pair(folder)
        pair.fix_source()
        slow, fast = pair.together([0, 0], 16, 96, [0.5, 1.5])
        assert slow[0].sum() > fast[0].sum()
        worst = 0.0
        for speed, (durations, samples) in ((0.5, slow), (1.5, fast)):
            expected_durations, expected = pair.alone(0, speed)
            assert durations.tolist() == expected_durations.tolist()
            worst = max(worst, float(np.abs(samples - expected).max() / np.abs(expected).max()))
        return worst

    assert await executor.run(compare) < 1e-4


async def test_what_pads_a_row_does_not_matter(executor: MlxExecutor, folder: Path) -> None:
    """With its own source, in other company and another bucket: the same words, all but single angles the same."""

    def compare() -> list[float]:
        pair = Pair(folder)
        noise = []
        for others, id_bucket, frame_bucket in (([], 32, 96), ([3, 0], 48, 128)):
            [alone] = pair.together([2], len(IDS[2]), int(pair.alone(2)[0].sum()))
            durations, samples = pair.together([2, *others], id_bucket, frame_bucket)[0]
            assert durations.tolist() == alone[0].tolist()
            difference = float(np.sqrt(np.mean((samples - alone[1]) ** 2)))
            noise.append(difference / float(np.sqrt(np.mean(alone[1] ** 2))))
        return noise

    assert max(await executor.run(compare)) < 0.1


async def test_the_source_is_exact_however_long_the_row(executor: MlxExecutor, folder: Path) -> None:
    """Two rows of 700 and 1200 pitch values, voiced and not, the shorter one padded: against float64."""
    random = np.random.default_rng(5)
    pitch = (random.uniform(80, 400, (2, 1200, 1)) * (random.uniform(size=(2, 1200, 1)) > 0.2)).astype(np.float32)
    pitch[0, 700:] = 0

    def compare() -> list[float]:
        import mlx.core as mx

        pair = Pair(folder)
        vocoder: Any = pair.net._decoder.vocoder
        made = np.array(vocoder._source(mx.array(pitch)))
        noise, merge = np.array(vocoder._noise), vocoder._merge
        weight, bias = np.array(merge.weight, np.float64), np.array(merge.bias, np.float64)
        worst = []
        for row, frames in enumerate((700, 1200)):
            expected = _source(pitch[row, :frames, 0], vocoder.samples_a_pitch, noise, weight, bias)
            worst.append(float(np.abs(made[row, : expected.size] - expected).max()))
        return worst

    assert max(await executor.run(compare)) < 2e-3


def _source(
    pitch: npt.NDArray[np.float32],
    step: int,
    noise: npt.NDArray[np.float32],
    weight: npt.NDArray[np.float64],
    bias: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """The library's formula: phases summed a frame, spread evenly between the frames' middles."""
    turns = (pitch[:, None].astype(np.float64) * np.arange(1, 10) / 24000) % 1
    phase = np.cumsum(turns, axis=0) * step
    at = np.maximum((np.arange(len(pitch) * step) + 0.5) / step - 0.5, 0)
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, len(pitch) - 1)
    part = (at - low)[:, None]
    sines = np.sin(2 * np.pi * (phase[low] * (1 - part) + phase[high] * part)) * 0.1
    voiced = np.repeat(pitch > 10, step)[:, None]
    level = np.where(voiced, 0.003, 0.1 / 3)
    heard = np.tile(noise, (2, 1))[: len(sines)]
    result: npt.NDArray[np.float64] = np.tanh((sines * voiced + level * heard) @ weight.T + bias)[:, 0]
    return result


async def test_the_noise_is_the_same_every_time(executor: MlxExecutor, folder: Path) -> None:
    def twice() -> list[npt.NDArray[np.float32]]:
        pair = Pair(folder)
        return [pair.together([1], 16, 48)[0][1] for _ in range(2)]

    first, second = await executor.run(twice)
    assert np.array_equal(first, second)
