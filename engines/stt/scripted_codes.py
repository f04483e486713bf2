"""A speech-to-text that understands code words and nothing else: the ears of the ``null`` preset.

What it hears is told by its sound alone: the code words in it (:mod:`streaming.audio.code_words`), or else only how
long it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from engines.api import Pcm16
from streaming.audio.code_words import PHRASES, Finder, Found, find, phrase_of, phrase_word, speak
from streaming.jobs import (
    INPUT_RATE_HZ,
    FinalizeTranscription,
    FinalTranscript,
    OpenTranscription,
    PartialTranscript,
    Transcript,
)

SILENT_BELOW_DBFS = -45.0
MURMUR_MS = 600
"""A shorter sound without a code word is a murmur, which says: go on."""
MURMUR = "mm-hm"
OTHERWISE = "hello there"
"""What a longer one says."""
MAX_HEARD_S = 20
"""Of an utterance, only its end is listened to."""
_SILENT_BELOW = 32768.0**2 * 10 ** (SILENT_BELOW_DBFS / 10)
_WINDOW = 512
"""Samples. Audio comes so, but for its beginning: in one piece with the silence before it, which is no voice."""
_CODE = "my code word is"
_BROKEN = "broken"
_PARTIAL_EVERY_MS = 300


def understood(found: Sequence[Found], voiced_ms: float) -> str:
    """What audio says in which these code words were found, and so much was louder than :data:`SILENT_BELOW_DBFS`."""
    phrases = [phrase for heard in found if heard.word is not None and (phrase := phrase_of(heard.word)) is not None]
    codes = [heard.word or _BROKEN for heard in found if heard.word is None or phrase_of(heard.word) is None]
    if codes or phrases:
        return ", ".join([*([f"{_CODE} {' '.join(codes)}"] if codes else []), *phrases])
    if not voiced_ms:
        return ""
    return MURMUR if voiced_ms < MURMUR_MS else OTHERWISE


class CodeWordStt:
    """A fake :class:`engines.api.SpeechToText`. A final comes ``final_delay_s`` after it was asked for.

    A final is ready when it is asked for: what is said is listened to as it comes, some 0.15 ms of work each 320 ms.
    Partials cost nothing: after :data:`MURMUR_MS` of voice they say one by one the words that come before a code word.
    """

    def __init__(self, *, final_delay_s: float = 0.0) -> None:
        self._final_delay_s = final_delay_s

    async def start(self) -> None:
        """The tables that the first word needs are made off the loop: calls may be up when an engine starts."""
        word = phrase_word(PHRASES[0])
        await asyncio.to_thread(lambda: understood(find(speak(word, INPUT_RATE_HZ), INPUT_RATE_HZ), 0.0))

    async def close(self) -> None: ...

    def open(self, request: OpenTranscription, deliver: Callable[[Transcript], None]) -> CodeWordUtterance:
        return CodeWordUtterance(request, deliver, self._final_delay_s)


class CodeWordUtterance:
    """A fake :class:`engines.api.TranscriptionStream`."""

    def __init__(self, request: OpenTranscription, deliver: Callable[[Transcript], None], final_delay_s: float) -> None:
        self._request = request
        self._deliver = deliver
        self._final_delay_s = final_delay_s
        self._loop = asyncio.get_running_loop()
        self._finder: Finder | None = Finder(INPUT_RATE_HZ, last_ms=MAX_HEARD_S * 1000)
        """None: closed."""
        self._voiced_samples = 0
        self._understood: tuple[int, str] | None = None
        self._words_shown = 0

    def feed(self, pcm: Pcm16) -> None:
        if self._finder is None:
            return
        self._finder.hear(pcm)
        windows = (pcm[at : at + _WINDOW] for at in range(0, len(pcm), _WINDOW))
        if voiced := sum(len(window) for window in windows if _power(window) >= _SILENT_BELOW):
            self._voiced_samples += voiced
            self._show_words()

    def finalize(self, request: FinalizeTranscription) -> None:
        if self._finder is None:
            return
        if self._understood is None or self._understood[0] != self._voiced_samples:
            self._understood = self._voiced_samples, understood(self._finder.found(), self._voiced_ms)
        final = FinalTranscript(request.utterance, request.revision, self._understood[1])
        self._loop.call_later(self._final_delay_s, self._answer, final)

    def close(self) -> None:
        self._finder = None

    @property
    def _voiced_ms(self) -> float:
        return self._voiced_samples * 1000 / INPUT_RATE_HZ

    def _show_words(self) -> None:
        words = _CODE.split()
        known = min(len(words), int((self._voiced_ms - MURMUR_MS) // _PARTIAL_EVERY_MS) + 1)
        if self._request.partials and known > self._words_shown:
            self._words_shown = known
            self._loop.call_soon(self._answer, PartialTranscript(self._request.utterance, " ".join(words[:known])))

    def _answer(self, transcript: Transcript) -> None:
        if self._finder is not None:
            self._deliver(transcript)


def _power(pcm: Pcm16) -> float:
    """Mean square; 0 of an empty block. Asked of every window of a caller who speaks: decibels would cost more."""
    samples = pcm.astype(np.float64)
    return float(np.vdot(samples, samples)) / len(samples) if len(samples) else 0.0
