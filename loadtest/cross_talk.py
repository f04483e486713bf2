"""Whose voice was heard: the code words in a recording, and whether all of their samples were there.

A code word is decoded by :mod:`streaming.audio.code_words`, which forgives much: a word that is 20 ms short still says
whose it is. So its sound is also laid beside the sound that it should be: where the end of a word comes earlier or
later than its beginning says, samples were taken out of it or put in. Splices in its first and last note are
seldom seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadtest.measure import Span
from streaming.audio.code_words import WORD_MS, find, speak

Pcm16 = npt.NDArray[np.int16]
_Floats = npt.NDArray[np.float32]

SHIFT_MS = 5.0
"""Clocks of the two ends differ by less within a word."""

_MARGIN_MS = 60
_PARTS_MS = (100, 140, 200)
"""A splice is between the ends of the word: short ones see more of them, and long ones what a single note hides."""
_BLOCK_MS = 20_000
"""A long reply is searched in pieces: the search takes memory by the length."""
_LAG_RATE_HZ = 8_000
"""A code word has no sound above 3450 Hz."""
_SURE = 0.5
"""Of the correlation with the clean sound: below it, what is there is too far from it to tell a shift."""
_CLEARLY = 0.06


@dataclass(frozen=True, slots=True)
class HeardCode:
    """``word`` is None if it can't be told; ``whole``: nothing of it is missing, and nothing was put in."""

    word: str | None
    span: Span
    whole: bool


def heard_codes(agent: Pcm16, rate_hz: int, spans: Iterable[Span]) -> list[HeardCode]:
    """The code words in the given stretches of a recording, in order."""
    heard: list[HeardCode] = []
    for span in spans:
        for start, end in _blocks(span, len(agent), rate_hz):
            for found in find(agent[start:end], rate_hz):
                at = Span(start + found.start_sample, start + found.end_sample)
                if heard and at.start < heard[-1].span.end:
                    continue  # the pieces of a long reply overlap
                whole = found.word is not None and not shifted(agent, rate_hz, at, found.word)
                heard.append(HeardCode(found.word, at, whole))
    return heard


def shifted(agent: Pcm16, rate_hz: int, at: Span, word: str) -> bool:
    """Whether the end of a word that was heard at ``at`` comes at another time than its beginning says."""
    step = max(1, rate_hz // _LAG_RATE_HZ)
    clean = speak(word, rate_hz)[::step].astype(np.float32)
    rate_hz //= step
    margin = _MARGIN_MS * rate_hz // 1000
    begin = max(0, at.start - margin * step)
    heard = agent[begin : at.end + margin * step : step].astype(np.float32)
    near = int(SHIFT_MS * rate_hz / 1000)
    parts = (part_ms * rate_hz // 1000 for part_ms in _PARTS_MS)
    return any(_torn(heard, (at.start - begin) // step, clean, part, margin, near) for part in parts)


def _torn(heard: _Floats, start: int, clean: _Floats, part: int, margin: int, near: int) -> bool:
    """The first and the last ``part`` samples of ``clean`` are both there, but at lags that differ by more than
    ``near``."""
    first, last = (_likeness(heard, start + at, clean[at:][:part], margin) for at in (0, len(clean) - part))
    if min(float(first.max()), float(last.max())) < _SURE:
        return False
    nearby = np.lib.stride_tricks.sliding_window_view(np.pad(last, near), 2 * near + 1).max(axis=1)
    # A vowel is like itself one period later, so the likest lag of each alone may be wrong: is there none for both?
    return float(first.max() + last.max() - (first + nearby).max()) > _CLEARLY


def _likeness(heard: _Floats, start: int, clean: _Floats, margin: int) -> _Floats:
    """The correlation with ``clean`` at each lag from ``-margin`` to ``margin`` samples after ``start``."""
    padded = np.pad(heard, margin)
    window = padded[start : start + len(clean) + 2 * margin]
    window = np.pad(window, (0, len(clean) + 2 * margin - len(window)))
    products = np.correlate(window, clean, mode="valid")
    sums = np.concatenate(([0.0], np.cumsum(np.square(window, dtype=np.float64))))
    powers = np.maximum(sums[len(clean) :] - sums[: -len(clean)], 1.0)
    return np.asarray(products / np.sqrt(powers * float(np.sum(np.square(clean)))), dtype=np.float32)


def _blocks(span: Span, length: int, rate_hz: int) -> Sequence[tuple[int, int]]:
    """A stretch with a margin, in overlapping pieces: a word is whole in one of them."""
    margin, block = _MARGIN_MS * rate_hz // 1000, _BLOCK_MS * rate_hz // 1000
    begin, end = max(0, span.start - margin), min(length, span.end + margin)
    overlap = (WORD_MS + 2 * _MARGIN_MS) * rate_hz // 1000
    return [(start, min(end, start + block)) for start in range(begin, max(begin + 1, end - overlap), block - overlap)]
