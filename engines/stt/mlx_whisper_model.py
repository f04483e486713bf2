"""Whisper's weights on MLX, run as pieces that an executor can schedule: one window's encoding, one decode step.

The weights, the mel spectrogram and the vocabulary are mlx-whisper's; the forward passes are ours, for two reasons. Its
encoder takes 30 s windows only, most of them padding: here a window is as long as its bucket, and its positions are
the first ones of the table. Its decoder runs one clip to the end: here the clips of all calls decode as one batch that
rows join and leave (:class:`engines.stt.mlx_whisper_batch.DecodeBatch`).

Everything here is for the executor's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engines.api import EngineError, Pcm16
from engines.stt.whisper_decoder import FRAME_SAMPLES, FULL_WINDOW_FRAMES

Keys = Sequence[tuple[Any, Any]]
"""What each decoder layer attends to: keys and values, shape (batch, heads, positions, width)."""

_FRAMES_PER_POSITION = 2


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the batch and its owner must know of the tokens. ``suppressed`` holds 0 and -inf, shape (tokens,)."""

    end: int
    no_speech: int
    languages: frozenset[str]
    suppressed: npt.NDArray[np.float32]
    suppressed_first: npt.NDArray[np.float32]


class WhisperModel:
    """Raises :class:`EngineError` (``bad_weights``) when ``model_dir`` holds no mlx-whisper checkpoint."""

    def __init__(self, model_dir: Path) -> None:
        import mlx.core as mx
        from mlx_whisper import load_models, tokenizer

        # The CPU's 16-bit kernels are scalar loops.
        self.on_cpu: bool = mx.default_device() == mx.cpu
        dtype = mx.float32 if self.on_cpu else mx.float16
        try:
            model = load_models.load_model(str(model_dir), dtype)
        except Exception as error:  # what a broken file makes the loader raise is not documented
            raise EngineError("bad_weights", f"{model_dir} holds no MLX Whisper model: {error}") from error
        model.set_dtype(dtype)
        mx.eval(model.parameters())
        self.dims: Any = model.dims
        self.dtype = dtype
        self._encoder: Any = model.encoder
        self._decoder: Any = model.decoder
        self._multilingual: bool = model.is_multilingual
        self._languages: int = model.num_languages
        self._tokenizers: Any = tokenizer.get_tokenizer
        self.vocabulary = self._read_vocabulary()

    def encode(self, pcm: Pcm16, frames: int) -> Keys:
        """What the decoder attends to of a clip, in a window of ``frames`` (10 ms each); a longer clip is cut off.
        Evaluated; the batch axis is 1."""
        import mlx.core as mx
        import mlx.nn as nn
        from mlx_whisper.audio import log_mel_spectrogram

        heard = pcm[: frames * FRAME_SAMPLES].astype(np.float32) / 32768.0
        mel = log_mel_spectrogram(np.pad(heard, (0, frames * FRAME_SAMPLES - heard.size)), self.dims.n_mels)
        # Like the windows of 30 s that Whisper knows best from other engines: nothing, not silence, after the clip.
        used = min(frames, -(-heard.size // FRAME_SAMPLES))
        within = mx.arange(frames)[:, None] < used
        x = mx.where(within, mel[:frames], 0.0).astype(self.dtype)[None]
        encoder = self._encoder
        x = nn.gelu(encoder.conv1(x))
        x = nn.gelu(encoder.conv2(x))
        x = x + encoder._positional_embedding[: x.shape[1]]
        for block in encoder.blocks:
            normed = block.attn_ln(x)
            attention = block.attn
            keys, values = self._split(attention.key(normed)), self._split(attention.value(normed))
            x = x + self._attend(attention, normed, keys, values, None)
            x = x + block.mlp2(nn.gelu(block.mlp1(block.mlp_ln(x))))
        x = encoder.ln_post(x)
        keys_of = [
            (self._split(block.cross_attn.key(x)), self._split(block.cross_attn.value(x)))
            for block in self._decoder.blocks
        ]
        mx.eval(keys_of)
        return keys_of

    def decode(self, tokens: Any, positions: Any, own: Any, own_mask: Any, heard: Keys, heard_mask: Any) -> Any:
        """Logits, shape (batch, tokens, vocabulary), lazy. ``own(layer, keys, values)`` stores the keys and values of
        ``tokens`` and returns those of the whole row."""
        import mlx.nn as nn

        decoder = self._decoder
        x = decoder.token_embedding(tokens) + decoder.positional_embedding[positions]
        for layer, block in enumerate(decoder.blocks):
            normed = block.attn_ln(x)
            keys, values = own(layer, self._split(block.attn.key(normed)), self._split(block.attn.value(normed)))
            x = x + self._attend(block.attn, normed, keys, values, own_mask)
            x = x + self._attend(block.cross_attn, block.cross_attn_ln(x), *heard[layer], heard_mask)
            x = x + block.mlp2(nn.gelu(block.mlp1(block.mlp_ln(x))))
        return decoder.token_embedding.as_linear(decoder.ln(x))

    def prompt(self, language: str) -> list[int]:
        """The tokens before the first word: start, and for a multilingual model the language and the task."""
        found = self._tokenizers(
            self._multilingual, num_languages=self._languages, language=language, task="transcribe"
        )
        return list(found.sot_sequence_including_notimestamps)

    def text(self, tokens: Sequence[int]) -> str:
        found = self._tokenizers(self._multilingual, num_languages=self._languages)
        return str(found.decode([token for token in tokens if token < self.vocabulary.end])).strip()

    def _read_vocabulary(self) -> Vocabulary:
        tokenizer = self._tokenizers(self._multilingual, num_languages=self._languages)
        suppressed = np.zeros(self.dims.n_vocab, np.float32)
        suppressed[list(tokenizer.non_speech_tokens)] = -np.inf
        suppressed[tokenizer.eot + 1 :] = -np.inf  # we ask for no timestamps, and no marker is a word
        first = suppressed.copy()
        first[[*tokenizer.encode(" "), tokenizer.eot]] = -np.inf
        languages = tokenizer.all_language_codes if self._multilingual else ("en",)
        return Vocabulary(tokenizer.eot, tokenizer.no_speech, frozenset(languages), suppressed, first)

    def _split(self, x: Any) -> Any:
        """(batch, positions, state) to (batch, heads, positions, width). All layers have heads of one width."""
        batch, positions, state = x.shape
        heads = self.dims.n_text_head * state // self.dims.n_text_state
        return x.reshape(batch, positions, heads, -1).transpose(0, 2, 1, 3)

    def _attend(self, attention: Any, x: Any, keys: Any, values: Any, mask: Any) -> Any:
        import mlx.core as mx

        queries = self._split(attention.query(x))
        mixed = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=queries.shape[-1] ** -0.5, mask=mask)
        return attention.out(mixed.transpose(0, 2, 1, 3).reshape(x.shape))


def window_frames(samples: int, pad_frames: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds a clip and its padding; the largest if none does."""
    wanted = min(FULL_WINDOW_FRAMES, samples // FRAME_SAMPLES + pad_frames)
    return next((frames for frames in buckets if frames >= wanted), buckets[-1])
