"""The callers' voices: which there are, and what each says, kept for all callers of a process."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadtest.measure import voiced_spans
from loadtest.phone_chain import PhoneChain, speech_dbfs, through_phone
from loadtest.script import Line
from loadtest.voice import VoiceError, parse_voice, say_line, shipped_voices
from streaming.audio.code_words import PHRASES, phrase_word, speak

CodePlace = Literal["instead", "after", "never"]
"""Where a caller's code word is said: in place of a line's words, after them, or not in this line."""

_TRIAL = "Yes."
_BETWEEN_MS = 120
_LINES_KEPT = 1_024
_SILENT_DBFS = -26.0  # level of speech where there is none to measure: what telephony takes for nominal


@dataclass(frozen=True, slots=True)
class Voices:
    """``skipped`` says for a person which were asked for and are not there."""

    names: tuple[str, ...]
    skipped: tuple[str, ...] = ()


@functools.lru_cache(maxsize=32)
def find_voices(wanted: tuple[str, ...]) -> Voices:
    """Of those wanted, the ones that speak on this machine; without a wish those of the shipped lines. Blocks: every
    program is tried once. Raises :class:`VoiceError` where none is left."""
    names: list[str] = []
    skipped: list[str] = []
    for name in wanted or shipped_voices():
        try:
            if parse_voice(name)[0] is not None:
                say_line(_TRIAL, 8_000, name)
        except VoiceError as error:
            skipped.append(f"voice {name} left out: {error}")
        else:
            names.append(name)
    if not names:
        raise VoiceError("none of the scenario's voices is there: " + "; ".join(skipped))
    return Voices(tuple(names), tuple(skipped))


@functools.lru_cache(maxsize=_LINES_KEPT)
def spoken_line(text: str, voice: str, rate_hz: int, chain: PhoneChain | None) -> Line:
    """A line in a voice; the same object every time, so that its frames are made once. Blocks the first time. Raises
    :class:`VoiceError`."""
    pcm = say_line(text, rate_hz, voice)
    if not voiced_spans(pcm, rate_hz):  # nobody could answer it
        raise VoiceError(f"{voice} makes no sound of {text!r}")
    if chain is not None:
        pcm = through_phone(pcm, rate_hz, chain)
    pcm.setflags(write=False)
    return Line(text, pcm, len(pcm) * 1000 / rate_hz)


@functools.lru_cache(maxsize=_LINES_KEPT)
def speech_level_dbfs(texts: tuple[str, ...], voice: str, rate_hz: int, chain: PhoneChain | None) -> float:
    """How loud a caller speaks: the middle of its lines. Blocks as :func:`spoken_line`."""
    levels = [speech_dbfs(spoken_line(text, voice, rate_hz, chain).pcm, rate_hz) for text in texts]
    return statistics.median([level for level in levels if level is not None] or [_SILENT_DBFS])


def speaker(voice: str, rate_hz: int, chain: PhoneChain | None, code: str | None) -> Callable[[str, CodePlace], Line]:
    """One caller's mouth: makes its line of a text, with its code word, if it has one, at that place.

    What scripted engines know a word of its own for (:data:`~streaming.audio.code_words.PHRASES`) is said after the
    code word by that, as they don't understand the text.
    """
    own: dict[tuple[str | None, str], Line] = {}  # a caller's own lines are not shared, and cost memory: no two alike

    def line(text: str, place: CodePlace) -> Line:
        if code is None or place == "never":
            return spoken_line(text, voice, rate_hz, chain)
        said = spoken_line(text, voice, rate_hz, chain) if place == "after" else None
        phrase = next((phrase for phrase in PHRASES if phrase in text.lower()), "")
        key = (None if said is None else text), phrase
        if key not in own:
            own[key] = _with_code(said, code, phrase, rate_hz)
        return own[key]

    return line


def _with_code(said: Line | None, code: str, phrase: str, rate_hz: int) -> Line:
    gap = np.zeros(rate_hz * _BETWEEN_MS // 1000, dtype=np.int16)
    sounds = [] if said is None else [said.pcm, gap]
    sounds.append(speak(code, rate_hz))
    if phrase:
        sounds += [gap, speak(phrase_word(phrase), rate_hz)]
    pcm = np.concatenate(sounds)
    text = said.text if said is not None else phrase or None
    return Line(text, pcm, len(pcm) * 1000 / rate_hz, code)
