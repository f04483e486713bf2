"""The sound of a call in the report: a stretch of its recording to look at and to play, small enough for a page.

What is heard is 8 kHz PCM in a WAV, caller left and agent right: every browser plays it, and none need fetch anything.
"""

from __future__ import annotations

import base64
import io
import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from streaming.audio.resample import Resampler

Pcm16 = npt.NDArray[np.int16]

CLIP_MS = 30_000
"""The longest stretch of one call."""

BUDGET_BYTES = 10_000_000
"""Of all sound on a page, as it is written there."""

_RATE_HZ = 8_000
_RATES_HZ = frozenset({8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000})
_BEFORE_MS = 5_000
_COLUMNS = 500
_HEIGHT = 100


@dataclass(frozen=True, slots=True)
class Clip:
    """A stretch of a recording, both sides at one rate; ``from_ms`` is where it begins, ``of_ms`` how long all is."""

    caller: Pcm16
    agent: Pcm16
    rate_hz: int
    from_ms: float
    of_ms: float

    @property
    def length_ms(self) -> float:
        return len(self.caller) * 1000 / self.rate_hz

    @property
    def whole(self) -> bool:
        return self.length_ms >= self.of_ms - 1


def read_clip(folder: Path, name: str, focus_ms: float) -> Clip | None:
    """The whole of a short recording; of a longer one :data:`CLIP_MS` from shortly before ``focus_ms``. None if it
    isn't there, lies elsewhere, or is no stereo PCM16 WAV. Blocks for the disk."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        return None
    try:
        with wave.open(str(path), "rb") as recording:
            rate_hz, frames = recording.getframerate(), recording.getnframes()
            if recording.getnchannels() != 2 or recording.getsampwidth() != 2 or rate_hz not in _RATES_HZ:
                return None
            wanted = CLIP_MS * rate_hz // 1000
            start = max(0, min(int((focus_ms - _BEFORE_MS) * rate_hz / 1000), frames - wanted))
            recording.setpos(start)
            samples = np.frombuffer(recording.readframes(wanted), dtype="<i2")
    except (OSError, EOFError, wave.Error):
        return None
    both = samples[: len(samples) // 2 * 2].reshape(-1, 2).astype(np.int16)
    if len(both) == 0:
        return None
    return Clip(both[:, 0], both[:, 1], rate_hz, start * 1000 / rate_hz, frames * 1000 / rate_hz)


def data_uri(clip: Clip) -> str:
    """A ``data:`` URI of a WAV to play."""
    sides = [_at_8_khz(side, clip.rate_hz) for side in (clip.caller, clip.agent)]
    written = io.BytesIO()
    with wave.open(written, "wb") as out:
        out.setnchannels(2)
        out.setsampwidth(2)
        out.setframerate(_RATE_HZ)
        out.writeframes(np.column_stack(sides).astype("<i2").tobytes())
    return "data:audio/wav;base64," + base64.b64encode(written.getvalue()).decode("ascii")


def outline(pcm: Pcm16, loudest: int) -> str:
    """The path of a waveform in a box of 500 by 100: lowest to highest sample of each column, ``loudest`` from edge to
    edge. Empty of silence."""
    columns = min(_COLUMNS, len(pcm))
    if columns == 0 or loudest <= 0:
        return ""
    starts = np.arange(columns) * len(pcm) // columns
    scale = _HEIGHT / 2 / loudest
    highest = np.rint(_HEIGHT / 2 - np.maximum.reduceat(pcm, starts) * scale).astype(int)
    lowest = np.rint(_HEIGHT / 2 - np.minimum.reduceat(pcm, starts) * scale).astype(int)
    if (lowest == highest).all():
        return ""
    step = _COLUMNS / columns
    upper = [f"{index * step:.0f} {y}" for index, y in enumerate(highest)]
    lower = [f"{index * step:.0f} {y + 1}" for index, y in reversed(list(enumerate(lowest)))]
    return "M" + "L".join(upper + lower) + "Z"


def _at_8_khz(pcm: Pcm16, rate_hz: int) -> Pcm16:
    if rate_hz == _RATE_HZ:
        return pcm
    resampler = Resampler(rate_hz, _RATE_HZ)
    return np.concatenate((resampler.process(pcm), resampler.flush()))
