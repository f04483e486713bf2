"""From the lexicon's alphabet to the IPA that espeak writes for US English, which Piper voices were trained on.

Facts of the target, from reading espeak-ng's output: long vowels carry ``ː``; an unstressed final or prevocalic /i/
is short (``hˈæpi``) but that of a one-vowel word is not (``wiː``); /ər/ is ``ɚ`` and stressed /ɜr/ is ``ɜː``, with
an ``ɹ`` more before a vowel.
"""

from __future__ import annotations

import re

STRESS = "ˈˌ"
VOWELS = frozenset("AIOWYaiuæɑɔəɛɜɪʊʌᵊᵻɐ")
"""Vowels of the lexicon's alphabet."""

_IPA_VOWELS = "aeiouæɐɑɔəɚɛɜɪʊʌᵻ"
_LETTERS = str.maketrans(
    {
        "A": "eɪ",
        "I": "aɪ",
        "O": "oʊ",
        "W": "aʊ",
        "Y": "ɔɪ",
        "ʤ": "dʒ",
        "ʧ": "tʃ",
        "ᵊ": "ə",
        "T": "ɾ",
        "g": "ɡ",
        "ɑ": "ɑː",
        "ɔ": "ɔː",
        "u": "uː",
    }
)
_LONG_I = re.compile(r"(?<=[ˈˌ])i")
_R_COLOURED = re.compile(rf"əɹ(?=([ˈˌ]?[{_IPA_VOWELS}])?)")
_NURSE = re.compile(rf"ɜɹ(?=([ˈˌ]?[{_IPA_VOWELS}])?)")
_SYLLABIC_N = re.compile(rf"ʔn(?![ˈˌ]?[{_IPA_VOWELS}])")


def espeak_ipa(phonemes: str) -> str:
    """One word in the lexicon's alphabet, e.g. ``kˈOlɪŋ`` for "coaling", as espeak-style IPA."""
    if sum(phoneme in VOWELS for phoneme in phonemes) == 1:
        ipa = phonemes.replace("i", "iː")
    else:
        ipa = _LONG_I.sub("iː", phonemes)
    ipa = ipa.translate(_LETTERS)
    ipa = _R_COLOURED.sub(lambda r: "ɚɹ" if r[1] else "ɚ", ipa)
    ipa = _NURSE.sub(lambda r: "ɜːɹ" if r[1] else "ɜː", ipa)
    return _SYLLABIC_N.sub("ʔn̩", ipa)
