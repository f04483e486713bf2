"""Whisper with random weights as an engine: the real windows, batch and thread; its words mean nothing.

Random weights never end a transcript and loop, which the real engine answers with a second, longer attempt. Here every
clip is decoded to a fixed number of tokens, once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engines.executor.thread import MlxExecutor
from engines.stt.mlx_whisper import MlxWhisper
from engines.stt.mlx_whisper_batch import Row
from engines.stt.mlx_whisper_clips import WhisperClips, _Loaded, _Task
from engines.stt.mlx_whisper_model import Keys

TURBO: dict[str, int] = {
    "n_mels": 128,
    "n_audio_ctx": 1500,
    "n_audio_state": 1280,
    "n_audio_head": 20,
    "n_audio_layer": 32,
    "n_vocab": 51866,
    "n_text_ctx": 448,
    "n_text_state": 1280,
    "n_text_head": 20,
    "n_text_layer": 4,
}
"""Whisper large-v3-turbo's."""
NARROW = TURBO | {
    "n_mels": 80,
    "n_audio_state": 32,
    "n_audio_head": 2,
    "n_audio_layer": 2,
    "n_vocab": 51865,
    "n_text_state": 32,
    "n_text_head": 2,
    "n_text_layer": 2,
}
"""Two layers, for a CPU."""
TOKENS = 15
"""Of a transcript: four seconds of speech."""


def write_random_whisper(folder: Path, dimensions: dict[str, int]) -> None:
    """A checkpoint folder as mlx-whisper takes it, in 16 bits. For the MLX thread."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_whisper.whisper import ModelDimensions, Whisper

    mx.random.seed(5)
    model = Whisper(ModelDimensions(**dimensions), mx.float16)
    model.set_dtype(mx.float16)
    weights: Any = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "weights.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps({"model_type": "whisper"} | dimensions))


class _FixedClips(WhisperClips):
    def _row(self, loaded: _Loaded, task: _Task, heard: Keys) -> Row:
        row = super()._row(loaded, task, heard)
        row.most_tokens = min(TOKENS, row.most_tokens)
        return row

    def _judge(self, loaded: _Loaded, task: _Task, row: Row) -> None:
        task.row = None
        task.clip.text = loaded.batch.hypothesis(row).text
        if task.next_clip():
            raise AssertionError("an utterance of this bench is one clip")
        self._end(task, task.outcome())


class RandomWhisper(MlxWhisper):
    """Over a folder of :func:`write_random_whisper`. ``windows_s`` are warmed, and the full window."""

    def __init__(self, model_dir: Path, executor: MlxExecutor, windows_s: tuple[int, ...]) -> None:
        super().__init__(model_dir, executor, windows_s=windows_s)
        self._clips = _FixedClips(executor, self._clips._limits, self._on_outcome)
