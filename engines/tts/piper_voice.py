"""One Piper voice (VITS, exported to ONNX) straight on onnxruntime: phonemes in, samples and their timing out.

Facts of the format, from the voice's own config and graph: ids are ``^``, then each phoneme followed by the pad
``_``, then ``$``; inputs ``input`` (1, n) int64, ``input_lengths`` (1,) and ``scales`` (noise, length, duration
noise); output (1, 1, 1, samples) float. The duration predictor's result, frames an id, is an inner tensor of the
graph, and is made an output here: that gives the exact place of every word.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from engines.tts.g2p.english import SpokenWord

Floats = npt.NDArray[np.float32]

THREADS = 2
"""A caller hears silence until a first clause is spoken, and what can wait leaves the machine to it (engines/lane.py):
two threads make it in 123 ms where one takes 204 ms. With every core busy they cost 9 % of the speech made a second."""

_DURATIONS = "/Ceil_output_0"
_BEGIN, _PAD, _END, _SPACE = "^", "_", "$", " "


@dataclass(frozen=True, slots=True)
class Speech:
    """``samples`` as the model made them, shape (n,). ``word_ends`` are sample indexes, one a word, in order;
    empty if the voice's graph does not tell."""

    samples: Floats
    word_ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VoiceConfig:
    """What the file beside the model says. ``ids`` maps a phoneme to its ids."""

    rate_hz: int
    ids: dict[str, list[int]]
    noise: float
    length: float
    duration_noise: float

    @classmethod
    def read(cls, path: Path) -> VoiceConfig:
        raw = json.loads(path.read_text(encoding="utf-8"))
        inference = raw["inference"]
        return cls(
            rate_hz=int(raw["audio"]["sample_rate"]),
            ids=raw["phoneme_id_map"],
            noise=float(inference["noise_scale"]),
            length=float(inference["length_scale"]),
            duration_noise=float(inference["noise_w"]),
        )


@dataclass(frozen=True, slots=True)
class IdSequence:
    """The model's input, and for each word the index after its last id (its pad, but not its pause)."""

    ids: list[int]
    word_ends: tuple[int, ...]


def encode(words: Sequence[SpokenWord], ids: dict[str, list[int]]) -> IdSequence:
    """Words and their pauses as ids; phonemes that the voice lacks are left out."""
    pad = ids[_PAD]
    sequence = [*ids[_BEGIN], *pad]
    ends: list[int] = []
    for index, word in enumerate(words):
        for phoneme in (_SPACE if index else "") + word.ipa:
            if phoneme in ids:
                sequence += [*ids[phoneme], *pad]
        ends.append(len(sequence))
        if word.pause in ids:
            sequence += [*ids[word.pause], *pad]
    return IdSequence([*sequence, *ids[_END]], tuple(ends))


class PiperVoice:
    """Thread-safe: onnxruntime sessions are, and nothing else is held."""

    def __init__(self, session: Any, config: VoiceConfig) -> None:
        self._session = session
        self._config = config
        self._outputs = [output.name for output in session.get_outputs()]
        self._run_options = onnxruntime.RunOptions()
        # Gives the arena back after each run: 150 MB in all, where a few long texts made it 480 MB for good.
        self._run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    @classmethod
    def load(cls, folder: Path) -> PiperVoice:
        """Read the one ``*.onnx`` in ``folder`` and the ``.onnx.json`` beside it.

        Raises FileNotFoundError, or onnxruntime's own errors, if they are not a Piper voice.
        """
        model = next(iter(sorted(folder.glob("*.onnx"))), None)
        if model is None:
            raise FileNotFoundError(f"no .onnx file in {folder}")
        config = VoiceConfig.read(model.with_name(model.name + ".json"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = min(THREADS, os.cpu_count() or 1)
        options.inter_op_num_threads = 1
        options.enable_mem_pattern = False  # every text is a new shape: a plan a shape would only pile up
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        graph = model.read_bytes()
        providers = ["CPUExecutionProvider"]
        if _DURATIONS.encode() in graph:
            graph += _extra_output(_DURATIONS)
        session = onnxruntime.InferenceSession(graph, options, providers=providers)
        session._model_bytes = b""  # kept for a fallback to other providers that we never take: 60 MB
        return cls(session, config)

    @property
    def rate_hz(self) -> int:
        return self._config.rate_hz

    def speak(self, words: Sequence[SpokenWord], speed: float) -> Speech:
        """One inference. ``speed`` 2.0 is twice as fast."""
        config = self._config
        sequence = encode(words, config.ids)
        scales = [config.noise, config.length / speed, config.duration_noise]
        results = self._session.run(
            self._outputs,
            {
                "input": np.array([sequence.ids], np.int64),
                "input_lengths": np.array([len(sequence.ids)], np.int64),
                "scales": np.array(scales, np.float32),
            },
            self._run_options,
        )
        samples: Floats = np.asarray(results[0], np.float32).reshape(-1)
        return Speech(samples, self._word_ends(sequence, samples.size, results[1:]))

    @staticmethod
    def _word_ends(sequence: IdSequence, length: int, durations: list[Any]) -> tuple[int, ...]:
        if not durations:
            return ()
        frames = np.cumsum(np.asarray(durations[0], np.float64).reshape(-1))
        if frames.size != len(sequence.ids) or not frames[-1] > 0 or not math.isfinite(frames[-1]):
            return ()
        samples_a_frame = length / frames[-1]
        return tuple(round(frames[end - 1] * samples_a_frame) for end in sequence.word_ends)


def _extra_output(name: str) -> bytes:
    """Bytes that, appended to a serialized ModelProto, make the inner tensor ``name`` one more graph output.

    Protobuf merges a repeated message field: appending ``ModelProto{graph (7): GraphProto{output (12):
    ValueInfoProto{name (1)}}}`` needs no ONNX package and no changed copy of the file. Lengths stay under 128.
    """
    message = name.encode()
    for field in (1, 12, 7):
        message = bytes([field << 3 | 2, len(message)]) + message
    return message
