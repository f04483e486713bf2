"""Kokoro with random weights as an engine of its own: the real forward pass and batching, no files, no meaning.

Texts are spelled in the model's letters, a letter a phoneme, so no pronunciation is looked up. At random weights a text
takes any time to say: :class:`RandomKokoro` finds the speed at which each of its phrases takes as long as it should.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engines.bench.kokoro import REAL_SIZE, random_model
from engines.executor.thread import MlxExecutor
from engines.tts.g2p.english import SpokenWord
from engines.tts.kokoro_text import RATE_HZ, KokoroInput, KokoroText
from engines.tts.mlx_kokoro import MlxKokoro
from engines.tts.mlx_kokoro_rows import KokoroRows, _Loaded
from engines.tts.spoken_audio import bounded_speed

VOICE = "random"
WORD_LETTERS = 4
PHRASES = 4
"""Of each length, so that batches don't consist of one text."""
_STYLES = 510
_NARROW, _SIDE = 16, 8

NARROW: dict[str, Any] = REAL_SIZE | {
    "istftnet": REAL_SIZE["istftnet"]
    | {
        "upsample_initial_channel": _NARROW,
        "resblock_kernel_sizes": [3, 7],
        "resblock_dilation_sizes": [[1, 3, 5], [1, 2, 3]],
    },
    "dim_in": 8,
    "hidden_dim": _NARROW,
    "max_conv_dim": _NARROW,
    "n_layer": 2,
    "n_mels": 8,
    "plbert": REAL_SIZE["plbert"]
    | {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 2},
}
"""The same layers, for a CPU: about 1 % of the work."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """``speed`` is what :attr:`streaming.jobs.Synthesize.speed` must be for it to last as long as it should."""

    text: str
    speed: float = 1.0


class Spelled:
    """:class:`engines.tts.kokoro_text.Phonemes` for texts that are phonemes already."""

    def words(self, text: str) -> list[SpokenWord]:
        words, at = [], 0
        for word in text.split(" "):
            at += len(word)
            words.append(SpokenWord(word, at, ""))
            at += 1
        return words


class RandomRows(KokoroRows):
    def load_random(self, config: dict[str, Any]) -> None:
        """Make the weights and attach. For the executor's thread."""
        self._executor.require_thread()
        import mlx.core as mx

        from engines.tts.mlx_kokoro_net import KokoroNet

        with _narrow_decoder() if config is NARROW else _as_it_is():
            net = KokoroNet(random_model(config))
        table = mx.random.normal((_STYLES, 2 * config["style_dim"]), key=mx.random.key(1)) * 0.5
        mx.eval(table)
        self._loaded = _Loaded(net, {VOICE: table})
        self._executor.attach(self)

    def lasting(self, said: KokoroInput, ms: float) -> float:
        """The speed at which the text lasts about so long. For the executor's thread."""
        assert self._loaded is not None
        net, style = self._loaded.net, self._loaded.voices[VOICE][min(said.style, _STYLES - 1)]
        wanted = ms / 1000 * RATE_HZ / net.frame_samples
        speed = 1.0
        for _ in range(6):
            [spoken] = net.encode([said.ids], [style], [speed], self._buckets.for_ids(len(said.ids)))
            speed = bounded_speed(speed * spoken.frames / wanted)
        return speed


class RandomKokoro(MlxKokoro):
    """``lengths`` are pairs of phonemes and milliseconds: :attr:`phrases` has :data:`PHRASES` of each once started.
    Only the shapes that these can take are warmed."""

    def __init__(self, executor: MlxExecutor, config: dict[str, Any], lengths: Sequence[tuple[int, int]]) -> None:
        super().__init__(Path(), Path(), Path(), executor, voices=(VOICE,))
        self._random_rows = RandomRows(executor, self._buckets, self._segments.answer)
        self._rows = self._random_rows
        self._config = config
        self._lengths = lengths
        self.phrases: list[list[Phrase]] = []

    async def start(self) -> None:
        await self._executor.start()
        text = KokoroText(Spelled(), self._config["vocab"], self._buckets.max_phonemes)
        await self._executor.run(partial(self._random_rows.load_random, self._config))
        chance = random.Random(3)
        self.phrases = [
            [await self._phrase(text, chance, count, ms) for _ in range(PHRASES)] for count, ms in self._lengths
        ]
        buckets = self._buckets
        used = {("encode", buckets.for_ids(count + 2)) for count, _ in self._lengths}
        used |= {("speak", buckets.for_frames(ms // 25)) for _, ms in self._lengths}
        for name, batch, bucket in buckets.shapes():
            if (name, bucket) in used:
                await self._executor.run(partial(self._rows.warm, name, batch, bucket))
        self._text = text

    async def _phrase(self, text: KokoroText, chance: random.Random, count: int, ms: int) -> Phrase:
        letters = [letter for letter in self._config["vocab"] if letter.isalpha()]
        spelled = "".join(chance.choice(letters) if (at + 1) % (WORD_LETTERS + 1) else " " for at in range(count))
        [said] = text.inputs(spelled.strip())
        speed = await self._executor.run(partial(self._random_rows.lasting, said, ms))
        return Phrase(spelled.strip(), speed)


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


@contextmanager
def _narrow_decoder() -> Iterator[None]:
    """The library's decoder has its widths (1024, 512, 64) in its code: a narrow one in its place."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx_audio.tts.models.kokoro import istftnet, kokoro

    class NarrowDecoder(istftnet.Decoder):  # type: ignore[misc]
        def __init__(self, dim_in: int, style_dim: int, dim_out: int, **generator: Any) -> None:
            nn.Module.__init__(self)
            wide = 2 * _NARROW
            block = istftnet.AdainResBlk1d
            self.encode = block(dim_in + 2, wide, style_dim, conv_type=mx.conv1d)
            self.decode = [block(wide + 2 + _SIDE, wide, style_dim, conv_type=mx.conv1d) for _ in range(2)]
            self.decode.append(block(wide + 2 + _SIDE, _NARROW, style_dim, upsample=True, conv_type=mx.conv1d))
            self.F0_conv = istftnet.ConvWeighted(1, 1, kernel_size=3, stride=2, padding=1, groups=1)
            self.N_conv = istftnet.ConvWeighted(1, 1, kernel_size=3, stride=2, padding=1, groups=1)
            self.asr_res = [istftnet.ConvWeighted(dim_in, _SIDE, kernel_size=1, padding=0)]
            self.generator = istftnet.Generator(style_dim, **generator)

    real, kokoro.Decoder = kokoro.Decoder, NarrowDecoder
    try:
        yield
    finally:
        kokoro.Decoder = real
