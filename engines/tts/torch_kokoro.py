"""Kokoro on PyTorch: the fallback of Kokoro on MLX, with the same folder, voices, rate and word times.

Needs torch and nothing of the model's own packages. A segment is one inference (Kokoro does not stream), cut into
several only past ``max_phonemes``. Measured on one CPU core: 0.7 s of it for each second of speech, a third of a second
a word, 0.85 s for "Sure."; 1.2 GB at its peak, in loading. So on a CPU it stands in for a call or two.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from engines.api import EngineError
from engines.lane import CpuLane
from engines.tts.kokoro_audio import spoken_pcm
from engines.tts.kokoro_text import MAX_PHONEMES, RATE_HZ, KokoroInput, KokoroText, voice_names
from engines.tts.lane_segments import Inferences, LaneSegments
from engines.tts.spoken_audio import bounded_speed, chunks
from streaming.jobs import Synthesis, SynthesisChunk, Synthesize

if TYPE_CHECKING:
    from torch import Tensor

Device = Literal["auto", "cpu", "cuda", "mps"]
VOICE_FILES = (".safetensors", ".pt")
MAX_SPEECH_S = 60.0
"""Of one inference: several times what its phonemes can last."""
_SEED = 20_240_601


class Voice(Protocol):
    """The model: :class:`TorchVoice`, or a stand-in under test."""

    @property
    def frame_samples(self) -> int: ...

    def speak(self, said: KokoroInput, voice: str, speed: float) -> tuple[npt.NDArray[np.float32], list[int]]:
        """Samples, and how many frames each id lasts."""


class Text(Protocol):
    def inputs(self, text: str) -> list[KokoroInput]: ...


@dataclass(frozen=True, slots=True)
class _Models:
    text: Text
    voice: Voice


class TorchVoice:
    """The checkpoint of a folder (``*.safetensors``, or the hub's ``.pth``) and its voices, on one device.

    Raises OSError, KeyError, ValueError or RuntimeError if they are not what they should be.
    """

    def __init__(self, model_dir: Path, voices: Sequence[str], device: Device, threads: int) -> None:
        import torch

        from engines.tts.torch_kokoro_model import KokoroNet

        self._threads = threads
        where = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
        self._net = KokoroNet(_checkpoint(model_dir), config, where)
        self._voices = {name: _voice(model_dir / "voices", name) for name in voices}

    @property
    def frame_samples(self) -> int:
        return self._net.frame_samples

    def speak(self, said: KokoroInput, voice: str, speed: float) -> tuple[npt.NDArray[np.float32], list[int]]:
        import torch

        if torch.get_num_threads() != self._threads:  # each thread has its own number: as many as cores, unasked
            torch.set_num_threads(self._threads)
        table = self._voices[voice]
        style = table[min(said.style, len(table) - 1)]
        limit = int(MAX_SPEECH_S * RATE_HZ / self._net.frame_samples)
        samples, frames = self._net.speak(list(said.ids), style, speed, seed=_SEED, max_frames=limit)
        return samples.numpy(), frames


class TorchKokoro:
    """A :class:`engines.api.TextToSpeech` over a checkpoint folder: ``config.json``, the weights and
    ``voices/NAME.safetensors`` or ``.pt``; ``lexicon_dir`` and ``g2p_dir`` hold the catalogue's ``misaki-en`` and
    ``g2p-en``. All work of all calls runs as jobs of ``lane``, ``threads`` cores each.

    ``device`` "auto" is CUDA where there is one, else the CPU. ``voices`` (default: the English ones that are there)
    names those to offer, the first being the default.
    """

    rate_hz = RATE_HZ

    def __init__(
        self,
        model_dir: Path,
        lexicon_dir: Path,
        g2p_dir: Path,
        lane: CpuLane,
        *,
        device: Device = "auto",
        threads: int = 1,
        voices: Sequence[str] = (),
        max_phonemes: int = 200,
        load: Callable[[Path, Sequence[str], Device, int], Voice] = TorchVoice,
    ) -> None:
        if device not in ("auto", "cpu", "cuda", "mps") or threads < 1 or not 1 <= max_phonemes <= MAX_PHONEMES:
            raise EngineError(
                "bad_options", "device is auto, cpu, cuda or mps; threads 1 or more; max_phonemes 1 to 510"
            )
        self._folders = (model_dir, lexicon_dir, g2p_dir)
        self._device: Device = device
        self._threads = threads
        self._max_phonemes = max_phonemes
        found = [name for suffix in VOICE_FILES for name in voice_names(model_dir, suffix)]
        self._voices = tuple(voices) or tuple(dict.fromkeys(found))
        self._make_voice = load
        self._models: _Models | None = None
        self._segments = LaneSegments(lane)

    @property
    def voices(self) -> tuple[str, ...]:
        return self._voices

    async def start(self) -> None:
        if not self._voices:
            raise EngineError("model_load_failed", f"there is no English voice in {self._folders[0] / 'voices'}")
        try:
            self._models = await asyncio.to_thread(self._load)
        except ModuleNotFoundError as error:
            raise EngineError("missing_extra", f"Kokoro on PyTorch needs {error.name}") from error
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            raise EngineError("model_load_failed", f"Kokoro: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        self._segments.clear()
        self._models = None

    def synthesize(self, request: Synthesize, deliver: Callable[[Synthesis], None]) -> None:
        """Codes of a failure: ``unknown_voice``, ``unsupported_language``, ``not_started``, ``overloaded``,
        ``bad_audio``, ``synthesis_failed``."""
        if request.voice not in self._voices:
            self._segments.refuse(request, deliver, "unknown_voice", f"no voice {request.voice!r}")
        elif request.language.partition("-")[0].lower() != "en":
            self._segments.refuse(request, deliver, "unsupported_language", "this voice speaks English only")
        elif self._models is None:
            self._segments.refuse(request, deliver, "not_started", "the engine was not started")
        else:
            self._segments.speak(request, deliver, _inferences(request, self._models))

    def cancel(self, call: str, epoch: int) -> None:
        self._segments.cancel(call, epoch)

    def _load(self) -> _Models:
        text = KokoroText.load(*self._folders, self._max_phonemes)
        voice = self._make_voice(self._folders[0], self._voices, self._device, self._threads)
        for words in ("Sure.", "Yes, we are open on Saturday."):
            for said in text.inputs(words):
                voice.speak(said, self._voices[0], 1.0)
        return _Models(text, voice)


def _inferences(request: Synthesize, models: _Models) -> Inferences:
    inputs, sent_samples = models.text.inputs(request.text), 0
    if not inputs:
        yield [SynthesisChunk(request.epoch, request.segment, b"", RATE_HZ, last=True)]
    for number, said in enumerate(inputs, start=1):
        samples, frames = models.voice.speak(said, request.voice, bounded_speed(request.speed))
        pcm, ends_ms = spoken_pcm(samples, frames, said, models.voice.frame_samples)
        last = number == len(inputs)
        yield chunks(request, pcm, RATE_HZ, last=last, words=said.words, ends_ms=ends_ms, before_samples=sent_samples)
        sent_samples += pcm.size


def _checkpoint(model_dir: Path) -> dict[str, Tensor]:
    import torch

    weights: dict[str, Tensor] = {}
    for path in sorted(model_dir.glob("*.safetensors")):
        from safetensors.torch import load_file

        weights.update(load_file(path))
    if weights:
        return weights
    for path in sorted(model_dir.glob("*.pth")):
        # One table a part of the network; trained on several GPUs, so some names begin with "module.".
        for part, table in torch.load(path, map_location="cpu", weights_only=True).items():
            weights.update({f"{part}.{name.removeprefix('module.')}": value for name, value in table.items()})
    if not weights:
        raise FileNotFoundError(f"no weights in {model_dir}")
    return weights


def _voice(folder: Path, name: str) -> Tensor:
    """A style for each length of text, shape (510, 256)."""
    import torch

    path = folder / f"{name}.safetensors"
    if path.is_file():
        from safetensors.torch import load_file

        table = load_file(path)["voice"]
    else:
        table = torch.load(folder / f"{name}.pt", map_location="cpu", weights_only=True)
    return table.reshape(len(table), -1)
