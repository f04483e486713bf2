"""Kokoro's network in PyTorch against mlx-audio's, over one small checkpoint of random weights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engines.executor.thread import MlxExecutor
from engines.tts.kokoro_text import KokoroInput
from engines.tts.torch_kokoro import TorchVoice
from tests.engines.tiny_llama import needs_mlx
from tests.engines.tts.tiny_kokoro import CONFIG, FRAME_SAMPLES, patch_decoder, write_tiny_kokoro

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from engines.tts.torch_kokoro_model import TooLongError  # noqa: E402 (imports torch)

pytestmark = [needs_mlx, pytest.mark.timeout(120)]

TEXTS = ("hɛlO ðɛɹ.", "sO ɐ lɔŋɡəɹ sɛntəns, wɪθ mɔɹ.")
IDS = [[0, *(CONFIG["vocab"][letter] for letter in text), 0] for text in TEXTS]
NUMBERS = np.random.default_rng(3).standard_normal(1 << 16).astype(np.float32) * 0.3
VOICE = "am_adam"
EDGE = 400


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


def theirs(folder: Path, speed: float) -> list[tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]]:
    """The library's frames and samples, its source replaced by fixed numbers. For the executor's thread."""
    import mlx.core as mx
    from mlx_audio.tts.utils import load_model

    write_tiny_kokoro(folder)
    model = load_model(folder)
    numbers = mx.array(NUMBERS)
    model.decoder.generator.m_source = lambda f0: (numbers[None, : f0.shape[1], None], None, None)
    stored: Any = mx.load(str(folder / "voices" / f"{VOICE}.safetensors"))
    out = []
    for text in TEXTS:
        output = model(text, stored["voice"][len(text) - 1], speed, return_output=True)
        out.append((np.array(output.pred_dur), np.array(output.audio).reshape(-1)))
    return out


@pytest.mark.parametrize("speed", [1.0, 1.4])
async def test_the_library_says_the_same(folder: Path, executor: MlxExecutor, speed: float) -> None:
    expected = await executor.run(lambda: theirs(folder, speed))
    voice = TorchVoice(folder, (VOICE,), "cpu", 1)
    net: Any = voice._net
    net._source = lambda pitch, seed: torch.from_numpy(NUMBERS[: len(pitch) * FRAME_SAMPLES // 2].copy())
    assert voice.frame_samples == FRAME_SAMPLES
    for ids, (frames, samples) in zip(IDS, expected, strict=True):
        style = voice._voices[VOICE][len(ids) - 3]
        ours, durations = net.speak(ids, style, speed, seed=1, max_frames=1000)
        assert durations == frames.reshape(-1).tolist()
        assert ours.shape == samples.shape
        loudness = float(np.abs(samples).max())
        assert loudness > 0.01
        # The library mirrors the first samples of the source otherwise than PyTorch does, and than the training did.
        assert np.abs(ours.numpy() - samples)[EDGE:].max() < 5e-3 * loudness
        assert np.corrcoef(ours.numpy(), samples)[0, 1] > 0.999


async def test_the_seed_alone_decides_the_noise(folder: Path, executor: MlxExecutor) -> None:
    await executor.run(lambda: write_tiny_kokoro(folder))
    net: Any = TorchVoice(folder, (VOICE,), "cpu", 1)._net
    style = torch.zeros(256)
    first, again, other = (net.speak(IDS[0], style, 1.0, seed=seed, max_frames=1000)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


async def test_the_hubs_own_files_are_taken_too(folder: Path, executor: MlxExecutor) -> None:
    from safetensors.torch import load_file

    await executor.run(lambda: write_tiny_kokoro(folder))
    before: Any = TorchVoice(folder, (VOICE,), "cpu", 1)
    nested: dict[str, dict[str, Any]] = {}
    for name, value in load_file(folder / "model.safetensors").items():
        part, _, rest = name.partition(".")
        nested.setdefault(part, {})[f"module.{rest}"] = value
    torch.save(nested, folder / "kokoro-v1_0.pth")
    (folder / "model.safetensors").unlink()
    voice = folder / "voices" / f"{VOICE}.safetensors"
    torch.save(load_file(voice)["voice"], voice.with_suffix(".pt"))
    voice.unlink()
    after: Any = TorchVoice(folder, (VOICE,), "cpu", 1)
    style = before._voices[VOICE][3]
    assert torch.equal(style, after._voices[VOICE][3])
    one, other = (made._net.speak(IDS[0], style, 1.0, seed=1, max_frames=1000) for made in (before, after))
    assert one[1] == other[1]
    assert torch.allclose(one[0], other[0], atol=1e-4)


async def test_each_inference_keeps_to_its_threads(folder: Path, executor: MlxExecutor) -> None:
    await executor.run(lambda: write_tiny_kokoro(folder))
    voice: Any = TorchVoice(folder, (VOICE,), "cpu", 1)
    said = KokoroInput(tuple(IDS[0]), 3, (), "")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(torch.set_num_threads, 2).result()
        pool.submit(voice.speak, said, VOICE, 1.0).result()
        assert pool.submit(torch.get_num_threads).result() == 1


async def test_speech_without_end_is_refused(folder: Path, executor: MlxExecutor) -> None:
    await executor.run(lambda: write_tiny_kokoro(folder))
    net: Any = TorchVoice(folder, (VOICE,), "cpu", 1)._net
    with pytest.raises(TooLongError):
        net.speak(IDS[1], torch.zeros(256), 1.0, seed=1, max_frames=10)
