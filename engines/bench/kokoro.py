"""What Kokoro costs on MLX, by batch and length, and how far a padded batch is from each row alone.

``python -m engines.bench.kokoro --batch 1,2,4,8 --phonemes 16,32,64,128 --json``: the real size with random weights (no
files), about three frames a phoneme as in speech. Per pair it tells the first and the median time of both halves; how
the rows differ from the same text alone and unpadded, with the source fixed in both (the network alone: a share of
the peak) and with its own (signal to difference, in dB); and what the library takes for one row after another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from engines.executor.thread import MlxExecutor
from engines.tts.kokoro_convert import CONFIG
from engines.tts.mlx_kokoro_rows import Buckets

if TYPE_CHECKING:
    from engines.tts.mlx_kokoro_net import KokoroNet

T = TypeVar("T")

_FRAMES_A_PHONEME = 3.0
_REPEATS = 7
_LETTERS = (
    '$;:,.!?—…"()“” \u0303ʣʥʦʨᵝꭧAIOQSTWYᵊabcdefhijklmnopqrstuvwxyzɑɐɒæβɔɕçɖðʤəɚɛɜɟɡɥɨɪʝɯɰŋɳɲɴøɸθœɹɾɻʁɽʂʃʈʧʊʋʌɣɤχʎʒʔ'
)
REAL_SIZE: dict[str, Any] = CONFIG | {
    "vocab": {letter: index for index, letter in enumerate(_LETTERS, start=1)},
    "sample_rate": 24000,
}


def random_model(config: dict[str, Any]) -> Any:
    """The library's model with weights at which every layer matters. For the MLX thread."""
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_unflatten
    from mlx_audio.tts.models.kokoro import Model, ModelConfig

    random = np.random.default_rng(11)
    model = Model(ModelConfig.from_dict(config))
    weights = []
    for name, array in tree_flatten(model.parameters()):
        shape = array.shape
        if "alpha" in name or name.endswith("weight_g"):
            value = np.abs(random.standard_normal(shape)) * 0.3 + 0.7
        elif len(shape) > 1:
            value = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        else:
            value = random.standard_normal(shape) * 0.1
        value *= _GAINS.get(name, 1.0)
        value += _OFFSETS.get(name, 0.0)
        if name == "predictor.duration_proj.linear_layer.bias":
            share = _FRAMES_A_PHONEME / config["max_dur"]
            value += np.log(share / (1 - share))
        weights.append((name, mx.array(value.astype(np.float32))))
    model.update(tree_unflatten(weights))
    mx.eval(model.parameters())
    return model


_GAINS = {
    "predictor.F0_proj.weight": 40.0,
    "predictor.duration_proj.linear_layer.weight": 0.3,
    "decoder.generator.conv_post.weight_g": 0.1,
}
_OFFSETS = {"predictor.F0_proj.bias": 180.0, "decoder.generator.conv_post.bias": -2.0}


class Bench:
    """For the MLX thread."""

    def __init__(self, config: dict[str, Any], buckets: Buckets) -> None:
        import mlx.core as mx

        from engines.tts.mlx_kokoro_net import KokoroNet

        self._mx = mx
        self._buckets = buckets
        self.model = random_model(config)
        self.net: KokoroNet = KokoroNet(self.model)
        self._letters = [letter for letter in config["vocab"] if letter.isalpha()]
        self._vocab = config["vocab"]
        self._style = mx.random.normal((1, 2 * config["style_dim"]), key=mx.random.key(1)) * 0.5
        self._random = np.random.default_rng(2)

    def measure(self, batch: int, phonemes: int) -> dict[str, float]:
        """Rows of ``phonemes`` and a few fewer, so that all but one are padded."""
        texts = [self._text(max(1, phonemes - 2 * at)) for at in range(batch)]
        bucket = self._buckets.for_ids(phonemes + 2)
        self._mx.reset_peak_memory()
        spoken, encode_first_ms, encode_ms = self._timed(lambda: self._encode(texts, bucket))
        frames = self._buckets.for_frames(max(one.frames for one in spoken))
        _, speak_first_ms, speak_ms = self._timed(lambda: self.net.speak(spoken, frames))
        audio_s = sum(one.frames for one in spoken) * self.net.frame_samples / 24_000
        return {
            "batch": batch,
            "phonemes": phonemes,
            "id_bucket": bucket,
            "frame_bucket": frames,
            "audio_s": round(audio_s, 2),
            "encode_first_ms": encode_first_ms,
            "encode_ms": encode_ms,
            "speak_first_ms": speak_first_ms,
            "speak_ms": speak_ms,
            "ms_a_row": round((encode_ms + speak_ms) / batch, 2),
            "peak_gb": round(self._mx.get_peak_memory() / 1e9, 2),
            **self._differences(texts, bucket, frames),
        }

    def library(self, phonemes: int) -> dict[str, float]:
        """One row through the library's own forward pass."""
        text = self._text(phonemes)
        _, first_ms, ms = self._timed(lambda: self.model(text, self._style, 1.0, return_output=True))
        return {"phonemes": phonemes, "library_first_ms": first_ms, "library_ms": ms}

    def _text(self, count: int) -> str:
        return "".join(self._random.choice(self._letters, count))

    def _encode(self, texts: Sequence[str], bucket: int) -> list[Any]:
        ids = [[0, *(self._vocab[letter] for letter in text), 0] for text in texts]
        return self.net.encode(ids, [self._style[0]] * len(texts), [1.0] * len(texts), bucket)

    def _timed(self, act: Callable[[], T]) -> tuple[T, float, float]:
        """The result, the first time and the median of the later ones, in ms."""
        times = []
        for _ in range(_REPEATS + 1):
            began = time.perf_counter()
            result = act()
            times.append((time.perf_counter() - began) * 1e3)
        return result, round(times[0], 1), round(statistics.median(times[1:]), 2)

    def _differences(self, texts: Sequence[str], bucket: int, frames: int) -> dict[str, float]:
        """Of the batch's last row, the most padded one."""
        together = self._encode(texts, bucket)
        [alone] = self._encode(texts[-1:], len(texts[-1]) + 2)
        if together[-1].durations.tolist() != alone.durations.tolist():
            return {"durations_equal": 0}
        end = alone.frames * self.net.frame_samples
        padded, solo = self.net.speak(together, frames)[-1, :end], self.net.speak([alone], alone.frames)[0]
        noise = float(np.mean((padded - solo) ** 2))
        decibels = 10 * np.log10(float(np.mean(solo**2)) / noise) if noise else 200.0
        vocoder = self.net._decoder.vocoder
        real, vocoder._source = vocoder._source, self._fixed_source  # type: ignore[method-assign]
        try:
            padded, solo = self.net.speak(together, frames)[-1, :end], self.net.speak([alone], alone.frames)[0]
        finally:
            vocoder._source = real  # type: ignore[method-assign]
        return {
            "durations_equal": 1,
            "own_source_db": round(float(decibels), 1),
            "fixed_source_difference": float(np.abs(padded - solo).max() / np.abs(solo).max()),
        }

    def _fixed_source(self, pitch: Any) -> Any:
        mx = self._mx
        samples = pitch.shape[1] * self.net.frame_samples // 2
        wave = mx.sin(mx.arange(samples) * (2 * np.pi * 180 / 24_000)) * 0.3
        return mx.broadcast_to(wave[None], (pitch.shape[0], samples))


async def run(batches: Sequence[int], phonemes: Sequence[int], config: dict[str, Any]) -> dict[str, Any]:
    """Every pair on an executor of its own; see the module."""
    executor = MlxExecutor()
    await executor.start()
    made: list[Bench] = []
    buckets = Buckets()
    try:
        await executor.run(lambda: made.append(Bench(config, buckets)))
        pairs = [await executor.run(partial(made[0].measure, batch, count)) for count in phonemes for batch in batches]
        library = [await executor.run(partial(made[0].library, count)) for count in phonemes]
        device = await executor.run(_device)
    finally:
        await executor.run(made.clear)
        await executor.close()
    return {"device": device, "batches": pairs, "library": library}


def _device() -> str:
    import mlx.core as mx

    name = mx.device_info().get("device_name", "")
    return f"{mx.default_device()} {name}".strip()


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m engines.bench.kokoro", description=__doc__)
    parser.add_argument("--batch", type=_numbers, default=[1, 2, 4, 8])
    parser.add_argument("--phonemes", type=_numbers, default=[14, 30, 62, 126])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    result = asyncio.run(run(arguments.batch, arguments.phonemes, REAL_SIZE))
    if arguments.json:
        sys.stdout.write(json.dumps(result) + "\n")
        return
    for row in (*result["batches"], *result["library"]):
        sys.stdout.write("  ".join(f"{name} {value}" for name, value in row.items()) + "\n")


if __name__ == "__main__":
    main()
