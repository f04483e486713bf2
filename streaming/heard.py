"""Which words of a reply were heard: the alignment of its text with its audio."""

from __future__ import annotations

from dataclasses import dataclass, field

from streaming.jobs import WordEnd
from streaming.text.speakable import Speakable

CHARS_PER_S = 14.0
"""Speaking rate assumed for a segment whose audio is not all there and whose model gives no word times."""


@dataclass(slots=True)
class _Spoken:
    start: int
    end: int
    raw: str
    speakable: Speakable
    audio_start: int = 0
    samples: int = 0
    complete: bool = False
    words: list[WordEnd] = field(default_factory=list)


class HeardLedger:
    """Segments of one reply in order, each with its span of the raw text and its samples (at ``rate_hz``)."""

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._segments: list[_Spoken] = []

    @property
    def samples(self) -> int:
        """Audio of the whole reply so far."""
        return self._segments[-1].audio_start + self._segments[-1].samples if self._segments else 0

    def add_segment(self, start: int, end: int, raw: str, speakable: Speakable) -> int:
        """Append a segment of the raw text ``[start, end)``; returns its index."""
        self._segments.append(_Spoken(start, end, raw, speakable, audio_start=self.samples))
        return len(self._segments) - 1

    def add_audio(self, segment: int, samples: int, words: tuple[WordEnd, ...], *, last: bool) -> None:
        """Audio of the newest segment that has any: segments are spoken one after another."""
        spoken = self._segments[segment]
        spoken.samples += samples
        spoken.words.extend(words)
        spoken.complete = last
        for earlier, later in zip(self._segments[segment:], self._segments[segment + 1 :], strict=False):
            later.audio_start = earlier.audio_start + earlier.samples

    def audio_start(self, segment: int) -> int:
        """Where the segment's audio begins."""
        return self._segments[segment].audio_start

    def raw_end(self, heard_samples: int) -> int:
        """The offset in the raw text up to which the caller has heard whole words.

        A word counts once half of it was played. Without word times the time is shared out by length of text.
        """
        heard = 0
        for spoken in self._segments:
            played = heard_samples - spoken.audio_start
            if played <= 0 or spoken.samples == 0:
                if spoken.complete and spoken.samples == 0 and heard_samples >= spoken.audio_start and heard:
                    heard = spoken.end
                    continue
                break
            if spoken.complete and played >= spoken.samples:
                heard = spoken.end
                continue
            return max(heard, self._raw_end_within(spoken, played))
        return heard

    def _raw_end_within(self, spoken: _Spoken, played: int) -> int:
        played_ms = played * 1000 / self._rate_hz
        if spoken.words:
            text_end, start_ms = 0, 0.0
            for word in spoken.words:
                if (start_ms + word.audio_end_ms) / 2 > played_ms:
                    break
                text_end, start_ms = word.text_end, word.audio_end_ms
            return spoken.start + (spoken.speakable.raw_end(text_end) if text_end else 0)
        total_ms = spoken.samples * 1000 / self._rate_hz if spoken.complete else 0.0
        total_ms = max(total_ms, 0 if spoken.complete else len(spoken.raw) * 1000 / CHARS_PER_S)
        chars = int(len(spoken.raw) * min(1.0, played_ms / total_ms))
        return spoken.start + _word_boundary(spoken.raw, chars)


def _word_boundary(raw: str, chars: int) -> int:
    """The end of the last word that ``raw[:chars]`` covers at least half of."""
    end, position = 0, 0
    while position < len(raw):
        while position < len(raw) and raw[position].isspace():
            position += 1
        start = position
        while position < len(raw) and not raw[position].isspace():
            position += 1
        if position == start or (start + position) / 2 > chars:
            break
        end = position
    return end
