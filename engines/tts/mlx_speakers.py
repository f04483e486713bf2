"""Models of mlx-audio that stream speech, one stream an instance (written against mlx-audio 0.6.2).

Their codecs keep the state of the stream they decode on the model itself: a second stream on it changes both. So there
are several instances over the same weights, and each speaks one segment at a time.

Import this on the MLX thread only. What a stream yields are NumPy arrays, evaluated.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx.utils import tree_flatten

from engines.tts.mlx_voices import Checkpoint
from engines.tts.reference_voice import ReferenceVoice

Floats = npt.NDArray[np.float32]

_QWEN_FRAMES_A_S = 12.5


class Speaker(Protocol):
    """One instance."""

    def stream(self, text: str, voice: str, language: str, interval_s: float, most_s: float) -> Iterator[Floats]:
        """Speech piece by piece, about ``interval_s`` each, at most ``most_s`` in all where the model can be told so.
        Begin no other stream of this speaker before it was closed and :meth:`rest` called."""

    def rest(self) -> None:
        """Forget the stream, and free what it held."""


def load_speakers(
    checkpoint: Checkpoint, references: Sequence[ReferenceVoice], instances: int, temperature: float | None
) -> list[Speaker]:
    """Load a checkpoint, and encode the voices, once for all instances.

    Raises whatever the library does, and ValueError for what it only prints.
    """
    models = [first := _load(checkpoint.folder)]
    for _ in range(instances - 1):
        # Lazy weights are never read: they are replaced by the first's before anything asks for them.
        another = _load(checkpoint.folder, lazy=True)
        another.update(first.parameters())
        models.append(another)
    if checkpoint.model_type == "pocket_tts":
        prompts = _pocket_prompts(first, checkpoint, references)
        return [PocketSpeaker(model, prompts, temperature) for model in models]
    if getattr(first, "speech_tokenizer", None) is None or getattr(first, "tokenizer", None) is None:
        raise ValueError(f"{checkpoint.folder} lacks its tokenizer or its folder speech_tokenizer")
    _no_progress_thread()
    for model in models[1:]:
        model._icl_cache = first._icl_cache  # recordings are encoded once
    return [QwenSpeaker(model, references, temperature) for model in models]


def _load(folder: Path, *, lazy: bool = False) -> Any:
    from mlx_audio.tts.utils import load_model

    model = load_model(folder, lazy=lazy)
    codec = getattr(model, "speech_tokenizer", None)
    if codec is not None:
        # A compiled wrapper hides the decoder from update(). Streams don't use it: it compiles the call of the whole.
        codec.decoder = codec.decoder.streaming_step.__self__
    return model


def _no_progress_thread() -> None:
    """Its generator makes a progress bar, a disabled one, and with it a thread that watches bars until the process
    ends."""
    import tqdm  # type: ignore[import-untyped]

    tqdm.tqdm.monitor_interval = 0


def shared_bytes(models: Sequence[Any]) -> tuple[int, int]:
    """The weights of the first model, and what the others have that is not the same array."""
    seen: set[int] = set()
    sizes = []
    for model in models:
        arrays = [array for _, array in tree_flatten(model.parameters())]
        sizes.append(sum(array.nbytes for array in arrays if id(array) not in seen))
        seen.update(id(array) for array in arrays)
    return sizes[0], sum(sizes[1:])


class PocketSpeaker:
    """Pocket TTS. A voice is the state of its language model after the recording: computed once, copied a stream."""

    def __init__(self, model: Any, prompts: Mapping[str, Any], temperature: float | None) -> None:
        self.model = model
        self._prompts = prompts
        if temperature is not None:
            model.temp = temperature

    def stream(self, text: str, voice: str, language: str, interval_s: float, most_s: float) -> Iterator[Floats]:
        # The model replaces a cache's arrays before it writes to them, so copies of the objects are enough.
        state = {"flow_cache": [copy.copy(layer) for layer in self._prompts[voice]["flow_cache"]]}
        count = max(1, int(interval_s * self.model.mimi.frame_rate))
        frames: list[mx.array] = []
        with contextlib.closing(self.model.generate_audio_stream(state, text)) as made:
            for frame in made:
                frames.append(frame)
                if len(frames) == count:
                    yield _samples(frames)
                    frames = []
        if frames:
            yield _samples(frames)

    def rest(self) -> None:
        self.model.mimi.reset_state()


def _pocket_prompts(model: Any, checkpoint: Checkpoint, references: Sequence[ReferenceVoice]) -> dict[str, Any]:
    prompts: dict[str, Any] = {}
    for reference in references:
        prompts[reference.name] = model.get_state_for_audio_prompt(mx.array(reference.samples))
    for name, path in checkpoint.voice_files.items():
        prompts.setdefault(name, model.get_state_for_audio_prompt(Path(path)))
    mx.eval([[layer.keys, layer.values] for prompt in prompts.values() for layer in prompt["flow_cache"]])
    model.mimi.reset_state()
    return prompts


class QwenSpeaker:
    """Qwen3-TTS: speakers of its own (CustomVoice) or cloned ones (Base)."""

    def __init__(self, model: Any, references: Sequence[ReferenceVoice], temperature: float | None) -> None:
        self.model = model
        self._references = {reference.name: (mx.array(reference.samples), reference.text) for reference in references}
        self._temperature = temperature

    def stream(self, text: str, voice: str, language: str, interval_s: float, most_s: float) -> Iterator[Floats]:
        cloned = self._references.get(voice)
        who = {"voice": voice} if cloned is None else {"ref_audio": cloned[0], "ref_text": cloned[1] or None}
        made = self.model.generate(
            " ".join(text.split()),
            **who,
            lang_code=language,
            temperature=self._temperature,
            max_tokens=max(1, int(most_s * _QWEN_FRAMES_A_S)),
            stream=True,
            streaming_interval=interval_s,
        )
        with contextlib.closing(made):
            for result in made:
                yield _samples([result.audio])

    def rest(self) -> None:
        self.model.speech_tokenizer.decoder.reset_streaming_state()


def _samples(parts: list[mx.array]) -> Floats:
    whole = mx.concatenate(parts) if len(parts) > 1 else parts[0]
    return np.array(whole.astype(mx.float32))
