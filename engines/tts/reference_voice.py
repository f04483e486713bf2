"""Recordings that a voice is cloned from: read, checked and resampled once, at the start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engines.api import EngineError
from streaming.audio.level import rms_dbfs
from streaming.audio.resample import Resampler
from streaming.audio.wav import WavError, read_wav

MIN_S, MAX_S = 1.0, 30.0
MAX_VOICES = 32
_MAX_BYTES = 32 * 2**20
_MIN_DBFS = -60.0
_KNOWN = frozenset(("ref_audio", "ref_text"))


@dataclass(frozen=True, slots=True)
class ReferenceVoice:
    """``samples`` in -1..1, shape (n,), at the model's rate. ``text`` is what is said in them ("" if not known)."""

    name: str
    samples: npt.NDArray[np.float32]
    text: str


def read_references(voices: Mapping[str, Mapping[str, str]], rate_hz: int) -> list[ReferenceVoice]:
    """``{"name": {"ref_audio": "path.wav", "ref_text": "what it says"}}`` as voices; the text may be left out where the
    model needs none. Takes up to a second a voice: not for the event loop.

    Raises:
        EngineError: ``bad_voice``, saying which file and what is wrong with it.
    """
    if len(voices) > MAX_VOICES:
        raise EngineError("bad_voice", f"{len(voices)} reference voices: at most {MAX_VOICES} are taken")
    return [_read(name, fields, rate_hz) for name, fields in voices.items()]


def _read(name: str, fields: Mapping[str, str], rate_hz: int) -> ReferenceVoice:
    unknown = set(fields) - _KNOWN
    if unknown or "ref_audio" not in fields:
        raise EngineError("bad_voice", f"voice {name!r} takes ref_audio and ref_text, not {sorted(fields)}")
    path = Path(fields["ref_audio"]).expanduser()
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise EngineError("bad_voice", f"{path} is larger than {_MAX_BYTES // 2**20} MB")
        pcm, from_hz = read_wav(path.read_bytes())
    except (OSError, WavError) as error:
        raise EngineError("bad_voice", f"the recording of voice {name!r} can't be read: {path}: {error}") from error
    seconds = pcm.size / from_hz
    if not MIN_S <= seconds <= MAX_S:
        raise EngineError("bad_voice", f"{path} is {seconds:.1f} s long: a recording must be {MIN_S:g} to {MAX_S:g} s")
    if rms_dbfs(pcm) < _MIN_DBFS:
        raise EngineError("bad_voice", f"{path} is silent")
    try:
        resampler = Resampler(from_hz, rate_hz)
    except ValueError as error:
        raise EngineError("bad_voice", f"{path}: {error}") from error
    pcm = np.concatenate((resampler.process(pcm), resampler.flush()))
    return ReferenceVoice(name, (pcm / 32768).astype(np.float32), fields.get("ref_text", "").strip())
