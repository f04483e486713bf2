"""Code words: short sung words by which simulated callers know whose voice they hear.

A code word is twelve letters, six syllables of which three carry its number and three check it. Spoken, it is eight
notes of :data:`NOTE_MS`: a high and a low one that say "a code word begins", then one a syllable. A note is the pitch
of a voice (harmonics under the formants of a vowel), so the sound passes for speech where speech passes: through
telephone band and codecs, noise, and voice activity models.

The check is a Reed-Solomon code over GF(16) (Reed & Solomon 1960) of length 6, three of it data: two words differ in at
least four notes. So whatever a mixture or a splice of two words does to each note, one of them gives at least three,
and three notes belong to one word only: what comes out is one of the two, or none, never a third caller's.

What came out, in per cent of a few hundred words each (a damaged one is heard as a word and can't be told):

=============================================  =====  =======  ===========
a word that went through                       right  damaged  another one
=============================================  =====  =======  ===========
mu-law, 24 > 16 > 8 > 16 > 24 kHz, -35 dB        100        0            0
Opus at 32 kbit/s, 1 % of its frames concealed   100        0            0
the same, 10 % concealed                          97        3            0
5 % of its frames silent, or repeated            100        0            0
5 % of its frames taken out                       93        3            0
white noise at 5 dB                              100        0            0
white noise, or other speech, as loud as it       97        3            0
another word at half its level                    95        5            0
another word as loud, at the same moment           0      100  0, or that one
=============================================  =====  =======  ===========

In 18 000 mixtures of two and three words, splices and words in worse noise no third word came out. Minutes of speech,
noise and tones had none.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

Pcm16 = npt.NDArray[np.int16]
_Floats = npt.NDArray[np.float64]

PHRASES = ("tell me more", "goodbye")
"""What a caller asks a scripted engine for by a word of its own, after its code word."""
_ALL = 4096
WORDS = _ALL - 16
"""How many callers have one of their own; the last 16 are for phrases. With more notes of data there would be more, but
two words would share half of their notes, and of a mixture a third one's could come."""
NOTE_MS = 100
WORD_MS = 8 * NOTE_MS

_CONSONANTS = "bdfghjklmnprstvz"
_VOWELS = "aoieau"
"""One a syllable; no English word has them in this order."""
_DATA = 3
_CHECKED = len(_VOWELS)
_NOTES = 2 + _CHECKED
_LOW, _HIGH = 16, 17
"""The two notes that open a word, beside the sixteen that carry it."""
_PITCHES_HZ = 110.0 * 2.0 ** (np.array([*range(16), -2, 17]) / 12)
"""A semitone apart, from A2; a whole tone below them and above them the opening."""

# --- words


def code_word(number: int) -> str:
    """The word of a number: twelve lower-case letters. Raises :class:`ValueError` where there is none."""
    if not 0 <= number < WORDS:
        raise ValueError(f"code words are numbered from 0 to {WORDS - 1}")
    return _spelled(_symbols()[number])


def number_of(word: str) -> int | None:
    """The number, 0 to 4079, of a word in any case; None if it is no caller's code word."""
    place = _places().get(word.lower())
    return place if place is not None and place < WORDS else None


def phrase_word(phrase: str) -> str:
    """The word for one of :data:`PHRASES`. Raises :class:`ValueError` for anything else."""
    return _spelled(_symbols()[WORDS + PHRASES.index(phrase)])


def phrase_of(word: str) -> str | None:
    """Which of :data:`PHRASES` a word is for; None if it is for none."""
    place = _places().get(word.lower(), 0)
    return PHRASES[place - WORDS] if WORDS <= place < WORDS + len(PHRASES) else None


def _spelled(symbols: npt.NDArray[np.intp]) -> str:
    return "".join(_CONSONANTS[symbol] + vowel for symbol, vowel in zip(symbols, _VOWELS, strict=True))


@functools.cache
def _places() -> dict[str, int]:
    return {_spelled(symbols): place for place, symbols in enumerate(_symbols())}


@functools.cache
def _symbols() -> npt.NDArray[np.intp]:
    """The notes of every word, shape (4096, 6): the values of a polynomial whose three coefficients are the number's
    hexadecimal digits. A fixed pattern on top keeps all distances, and spares word 0 from being one note six times."""
    power = [1]
    for _ in range(14):
        doubled = power[-1] << 1
        power.append(doubled ^ 0b10011 if doubled & 16 else doubled)
    log = {value: exponent for exponent, value in enumerate(power)}

    def times(a: int, b: int) -> int:
        return power[(log[a] + log[b]) % 15] if a and b else 0

    product = np.array([[times(a, b) for b in range(16)] for a in range(16)])
    number = np.arange(_ALL)
    places = np.array(power[:_CHECKED])
    squares = product[places, places]
    values = (
        (number & 15)[:, None]
        ^ product[(number >> 4 & 15)[:, None], places[None, :]]
        ^ product[(number >> 8)[:, None], squares[None, :]]
    )
    symbols: npt.NDArray[np.intp] = (values ^ np.array([3, 9, 14, 6, 11, 1])).astype(np.intp)
    return symbols


# --- speaking

_RMS = 2_600.0
"""Of the sound, int16: -22 dBFS, as speech is recorded."""
_GLIDE_MS = 20
_DIP_MS = 18
_DIP = 0.3
"""Between two syllables the voice falls to this."""
_HIGHEST_HZ = 3_450.0
_FORMANTS: dict[str, tuple[tuple[float, float], ...]] = {
    "a": ((730, 90), (1090, 110), (2440, 170)),
    "e": ((530, 80), (1840, 120), (2480, 170)),
    "i": ((300, 70), (2200, 120), (2950, 200)),
    "o": ((570, 80), (840, 90), (2410, 170)),
    "u": ((320, 70), (870, 90), (2240, 170)),
}
"""Centre and half width in Hz: Peterson & Barney 1952, men."""
_STRENGTHS = (1.0, 0.6, 0.35)
_FLOOR = 0.05
_OPENING_VOWELS = "oa"
"""With the step down, of all that was tried what Silero hears as one voice (it misses 130 ms at most; upwards it missed
up to 350, and a turn ended inside the word)."""
_CYCLE = 2_048
"""Samples of one period of a vowel, which are read at the pace of its pitch."""


@functools.lru_cache(maxsize=128)
def speak(word: str, rate_hz: int) -> Pcm16:
    """The sound of a code word: :data:`WORD_MS` long, shape (n,), read-only, and always the same. Costs 1 ms the first
    time. Raises :class:`ValueError` if it is none."""
    place = _places().get(word.lower())
    if place is None:
        raise ValueError("not a code word")
    notes = [_HIGH, _LOW, *map(int, _symbols()[place])]
    note_samples = rate_hz * NOTE_MS // 1000
    pitch = _glided(notes, note_samples, rate_hz * _GLIDE_MS // 1000)
    phase = np.cumsum(pitch / rate_hz) % 1.0 * _CYCLE
    before = phase.astype(np.intp).reshape(_NOTES, note_samples)
    periods = [_period(note, vowel) for note, vowel in zip(notes, _OPENING_VOWELS + _VOWELS, strict=True)]
    left, right = (
        np.array([period[at] for period, at in zip(periods, ats, strict=True)]) for ats in (before, before + 1)
    )
    sound = (left + (right - left) * (phase.reshape(before.shape) - before)).ravel()
    sound *= _syllables(note_samples, rate_hz * _DIP_MS // 1000)
    sound *= _RMS / np.sqrt(np.mean(np.square(sound)))
    pcm: Pcm16 = np.rint(sound).astype(np.int16)
    pcm.setflags(write=False)
    return pcm


@functools.lru_cache(maxsize=128)
def _period(note: int, vowel: str) -> _Floats:
    """One period of a vowel sung at a pitch, shape (_CYCLE + 1,): its last sample is its first."""
    harmonics = np.arange(1, int(_HIGHEST_HZ / _PITCHES_HZ[note]) + 1)
    frequencies = harmonics * _PITCHES_HZ[note]
    spectrum = np.zeros(_CYCLE // 2 + 1, complex)
    spectrum[harmonics] = -1j * _FLOOR  # a sine
    for strength, (centre, half_width) in zip(_STRENGTHS, _FORMANTS[vowel], strict=True):
        spectrum[harmonics] -= 1j * strength / (1 + np.square((frequencies - centre) / half_width))
    period = np.fft.irfft(spectrum)
    return np.append(period, period[0])


def _glided(notes: list[int], note_samples: int, glide_samples: int) -> _Floats:
    """The pitch at every sample. A voice slides from note to note; it does not leap."""
    pitch = np.repeat(_PITCHES_HZ[notes], note_samples)
    way = 0.5 - 0.5 * np.cos(np.pi * (np.arange(glide_samples) + 0.5) / glide_samples)
    for number, (left, right) in enumerate(itertools.pairwise(_PITCHES_HZ[notes]), start=1):
        begin = number * note_samples - glide_samples // 2
        pitch[begin : begin + glide_samples] = left * (right / left) ** way
    return pitch


def _syllables(note_samples: int, dip_samples: int) -> _Floats:
    """How loud the voice is: it begins and ends in silence, and dips between syllables."""
    rise = 0.5 - 0.5 * np.cos(np.pi * (np.arange(dip_samples) + 0.5) / dip_samples)
    note = np.ones(note_samples)
    note[:dip_samples] = _DIP + (1 - _DIP) * rise
    note[-dip_samples:] = note[:dip_samples][::-1]
    level = np.tile(note, _NOTES)
    level[:dip_samples] = rise
    level[-dip_samples:] = rise[::-1]
    return level


# --- finding

_WINDOW_MS = 64
_STEP_MS = 20
_STEPS_A_NOTE = NOTE_MS // _STEP_MS
_BAND_HZ = (270.0, 3_300.0)
"""What a telephone passes."""
_SURE = 0.35
"""A note is heard if its comb fits so well (correlation), and better than any other's by :data:`_CLEARLY`."""
_CLEARLY = 0.08
_WINDOWS_AT_ONCE = 16
_QUIET = 0.03
"""Of the loudest: what is softer is silence."""


class Found(msgspec.Struct, frozen=True):
    """A code word that was heard; ``word`` is None if it was one and can't be told: damaged, or mixed with another.
    ``pcm[start_sample:end_sample]`` is its sound, to within 20 ms."""

    word: str | None
    start_sample: int
    end_sample: int


class Finder:
    """Finds code words in 16-bit audio as it comes, so that no long piece of it is gone through at once: some 0.4 ms a
    second. ``last_ms``: only the words in about so much of it, its end, are kept track of."""

    def __init__(self, rate_hz: int, *, last_ms: int | None = None) -> None:
        self._rate_hz = rate_hz
        self._most_windows = last_ms // _STEP_MS if last_ms is not None else None
        self._step = rate_hz * _STEP_MS // 1000
        self._window = rate_hz * _WINDOW_MS // 1000
        self._block = (_WINDOWS_AT_ONCE - 1) * self._step + self._window
        self._heard_samples = 0
        self._unscored: list[Pcm16] = []
        self._unscored_samples = 0
        self._scored: deque[tuple[_Floats, _Floats]] = deque()
        self._windows = 0
        self._dropped_windows = 0

    def hear(self, pcm: Pcm16) -> None:
        """What comes next, shape (n,); it is copied."""
        self._heard_samples += len(pcm)
        self._unscored.append(pcm.copy())
        self._unscored_samples += len(pcm)
        if self._unscored_samples >= 2 * self._block:  # later than need be: the silence after a word is for nobody
            self._score(self._block)

    def found(self) -> tuple[Found, ...]:
        """The code words that were heard so far, in order. A word that breaks off (a reply that was interrupted) is
        none. Positions count from the first sample ever heard."""
        self._score(self._window)
        starts = self._windows - (_NOTES - 1) * _STEPS_A_NOTE
        if starts <= 0:
            return ()
        scores = np.concatenate([block for block, _ in self._scored])
        strength = np.concatenate([block for _, block in self._scored])
        loud = strength > _QUIET * max(1.0, float(strength.max()))
        high, low, *notes = (scores[_STEPS_A_NOTE * note :][:starts] for note in range(_NOTES))
        opened = (low.argmax(axis=1) == _LOW) & (high.argmax(axis=1) == _HIGH)
        opened &= np.minimum(low[:, _LOW], high[:, _HIGH]) > _SURE
        begins = np.flatnonzero(opened)
        fits = low[begins, _LOW] + high[begins, _HIGH]
        fits += np.sum([note[begins, :_LOW].max(axis=1) for note in notes], axis=0)
        found: list[Found] = []
        word_over = 0
        for start in _best_of_each(begins, fits):
            if start < word_over or not loud[start : start + _NOTES * _STEPS_A_NOTE : _STEPS_A_NOTE].all():
                continue
            word = _word(np.array([note[start, :_LOW] for note in notes]))
            word_over = start + (_NOTES - 1) * _STEPS_A_NOTE if word is not None else word_over
            found.append(self._placed(word, start))
        return tuple(found)

    def _placed(self, word: str | None, start: int) -> Found:
        first_ms = (self._dropped_windows + start) * _STEP_MS - (NOTE_MS - _WINDOW_MS) / 2
        first = round(first_ms * self._rate_hz / 1000)
        return Found(word, max(0, first), min(self._heard_samples, first + WORD_MS * self._rate_hz // 1000))

    def _score(self, least_samples: int) -> None:
        """Of what is unscored, in pieces of so many samples at least."""
        if self._unscored_samples < least_samples:
            return
        pcm = np.concatenate(self._unscored)
        at = 0
        while len(pcm) - at >= least_samples:
            piece = pcm[at : at + self._block]
            self._scored.append(_scores(piece, self._rate_hz))
            scored = len(self._scored[-1][0])
            self._windows += scored
            at += scored * self._step
        self._unscored, self._unscored_samples = [pcm[at:]], len(pcm) - at
        while self._most_windows is not None and self._windows - len(self._scored[0][0]) >= self._most_windows:
            dropped = len(self._scored.popleft()[0])
            self._windows -= dropped
            self._dropped_windows += dropped


def find(pcm: Pcm16, rate_hz: int) -> tuple[Found, ...]:
    """The code words in a recording of shape (n,): see :class:`Finder`. Takes some 7 kB of memory a second of it."""
    finder = Finder(rate_hz)
    finder.hear(pcm)
    return finder.found()


def _best_of_each(begins: npt.NDArray[np.intp], fits: _Floats) -> Iterator[int]:
    """Where words begin: of the places less than a note apart the one that fits best."""
    if len(begins):
        for group in np.split(np.arange(len(begins)), np.flatnonzero(np.diff(begins) >= _STEPS_A_NOTE) + 1):
            yield int(begins[group[fits[group].argmax()]])


def _word(scores: _Floats) -> str | None:
    """By the scores of its notes, shape (6, 16)."""
    ranked = np.sort(scores, axis=1)
    clear = (ranked[:, -1] > _SURE) & (ranked[:, -1] - ranked[:, -2] > _CLEARLY)
    if np.count_nonzero(clear) < _CHECKED - 1:
        return None
    fits = (_symbols()[:, clear] == scores.argmax(axis=1)[clear]).all(axis=1)
    places = np.flatnonzero(fits)
    return _spelled(_symbols()[places[0]]) if len(places) == 1 else None


def _scores(pcm: Pcm16, rate_hz: int) -> tuple[_Floats, _Floats]:
    """How well each pitch fits each window of :data:`_WINDOW_MS`, a step apart: shape (windows, 18); and how loud each
    is. For a few windows only: so many that no linear algebra library takes threads for it."""
    templates, window, band = _templates(rate_hz)
    step = rate_hz * _STEP_MS // 1000
    count = (len(pcm) - len(window)) // step + 1
    windows = np.ndarray((count, len(window)), pcm.dtype, pcm, strides=(step * pcm.itemsize, pcm.itemsize))
    spectrum = np.sqrt(np.abs(np.fft.rfft(windows * window, axis=1)[:, band]))
    strength = np.linalg.norm(spectrum, axis=1)
    spectrum -= spectrum.mean(axis=1, keepdims=True)
    spectrum /= np.maximum(np.linalg.norm(spectrum, axis=1, keepdims=True), 1e-9)
    return spectrum @ templates.T, strength


@functools.lru_cache(maxsize=8)
def _templates(rate_hz: int) -> tuple[_Floats, _Floats, slice]:
    samples = rate_hz * _WINDOW_MS // 1000
    window = np.hanning(samples)
    frequencies = np.fft.rfftfreq(samples, 1 / rate_hz)
    band = slice(int(np.searchsorted(frequencies, _BAND_HZ[0])), int(np.searchsorted(frequencies, _BAND_HZ[1])))
    times = np.arange(samples) / rate_hz
    templates = []
    for pitch in _PITCHES_HZ:
        harmonics = np.arange(1, int(_HIGHEST_HZ / pitch) + 1)[:, None] * pitch
        comb = np.sqrt(np.abs(np.fft.rfft(np.sin(2 * np.pi * harmonics * times) * window, axis=1)).max(axis=0)[band])
        comb -= comb.mean()
        templates.append(comb / np.linalg.norm(comb))
    return np.array(templates), window, band
