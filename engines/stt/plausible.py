"""Which of a Whisper hypothesis' words were spoken: Whisper puts words to silence, coughs and music.

Its own signals tell: the probability it gives to "no speech", and how sure it was of its words. Thresholds were set
on synthetic speech (two synthesisers, 16 kHz and 8 kHz mu-law) against silence, noise, hum, tones, coughs, breaths,
clicks and chords: every sound without words had a no-speech probability of 0.80 to 0.98, every spoken line, down
to a lone "no", at most 0.62. A famous phantom alone proves nothing: callers do say "thank you" and "bye".
"""

from __future__ import annotations

import re

from engines.api import Pcm16
from engines.stt.whisper_decoder import Hypothesis
from streaming.audio.level import rms_dbfs

INAUDIBLE_DBFS = -65.0
"""Below this there is nothing to decode: digital silence, comfort noise."""

_NO_SPEECH = 0.72
_NO_SPEECH_UNLESS_SURE_OF = 4
"""With this many different words, said surely, a high no-speech probability is not believed."""
_SURE_LOG_PROBABILITY = -0.45
_GUESSED_LOG_PROBABILITY = -2.5
_GUESSED_NO_SPEECH = 0.4
"""Words this unsure are a guess, if there may be no speech at all: noise gave -1.9 to -5 with a no-speech probability
of 0.59 and more. A lone "stop" cut off right at its end is as unsure (-3.2), but gives no more than 0.30."""
_WEAK_NO_SPEECH = 0.45
_WEAK_LOG_PROBABILITY = -1.9
_PHANTOM_NO_SPEECH = 0.4
_PHANTOM_LOG_PROBABILITY = -1.6

PHANTOMS = frozenset(
    {
        "you",
        "bye",
        "bye bye",
        "thank you",
        "thank you very much",
        "thank you for watching",
        "thanks for watching",
        "thank you so much for watching",
        "please subscribe",
        "subscribe",
        "like and subscribe",
        "see you next time",
        "see you in the next video",
        "i'll see you next time",
        "music",
        "applause",
        "silence",
        "the end",
        "so",
        "oh",
        "hmm",
        "mm",
        "okay",
        "i'm sorry",
        "subtitles by the amara org community",
    }
)
"""What Whisper writes most often where nobody spoke (without case and punctuation)."""

_SOUND_TAG = re.compile(r"\[[^\]]*\]|\([^)]*\)|\*[^*]+\*|[♪♫]+")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_SPACES = re.compile(r"\s+")


def audible(pcm: Pcm16) -> bool:
    """Whether a clip is worth decoding at all."""
    return rms_dbfs(pcm) >= INAUDIBLE_DBFS


def verdict(hypothesis: Hypothesis, *, partial: bool, retried: bool = False) -> str | None:
    """The words that were spoken; None when the clip must be decoded again, in the window that does not loop (not for
    a partial, whose words will be replaced)."""
    text = spoken_text(hypothesis)
    if not loops(text):
        return text
    return without_loop(text) if partial or retried else None


def spoken_text(hypothesis: Hypothesis) -> str:
    """The hypothesis without sound tags; empty if its words were most likely not spoken."""
    text = _SPACES.sub(" ", _SOUND_TAG.sub(" ", hypothesis.text)).strip()
    words = _words(text)
    if not words:
        return ""
    no_speech, sureness = hypothesis.no_speech_probability, hypothesis.average_log_probability
    if sureness <= _GUESSED_LOG_PROBABILITY and no_speech >= _GUESSED_NO_SPEECH:
        return ""
    if no_speech >= _NO_SPEECH:
        sure = sureness >= _SURE_LOG_PROBABILITY and len(set(words)) >= _NO_SPEECH_UNLESS_SURE_OF and not loops(text)
        return text if sure else ""
    if no_speech >= _WEAK_NO_SPEECH and sureness <= _WEAK_LOG_PROBABILITY and len(words) > 1:
        return ""
    phantom = " ".join(words) in PHANTOMS
    if phantom and (no_speech >= _PHANTOM_NO_SPEECH or sureness <= _PHANTOM_LOG_PROBABILITY):
        return ""
    return text


def loops(text: str) -> bool:
    """Whether a group of words comes again and again at the end, as the decoder does when it has lost its place.

    A digit or a letter may repeat: phone numbers do. So may a short word, up to five times ("no, no, no").
    """
    return _loop(_words(text)) is not None


def without_loop(text: str) -> str:
    """``text`` up to and with the first time round of its loop."""
    words = _words(text)
    found = _loop(words)
    if found is None:
        return text
    start, length = found
    ends = [match.end() for match in _WORD.finditer(text)]
    return text[: ends[start + length - 1]].rstrip()


def _loop(words: list[str]) -> tuple[int, int] | None:
    """(index of the first word, words in the group) of the loop at the end of ``words``, the last round maybe cut."""
    count = len(words)
    for length in range(1, count // 2 + 1):
        start = count - length
        while start > 0 and words[start - 1] == words[start - 1 + length]:
            start -= 1
        repeated = count - start
        if repeated < _loop_words(words[start : start + length]):
            continue
        return start, length
    return None


def _loop_words(group: list[str]) -> int:
    """How many words a run of this group needs before it counts as a loop."""
    if all(len(word) == 1 or word.isdigit() for word in group):
        return 16 * len(group)
    return {1: 6, 2: 8}.get(len(group), 3 * len(group) - 1) if len(group) < 5 else 2 * len(group)


def _words(text: str) -> list[str]:
    return [match.group().lower().replace("’", "'") for match in _WORD.finditer(text)]
