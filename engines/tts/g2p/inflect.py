"""Regular English endings on a known stem, in the lexicon's alphabet.

The rules are the common ones of English phonology (-s: /s/ after voiceless, /ᵻz/ after a sibilant, else /z/; -ed:
/t/, /ᵻd/, /d/; -ing adds /ɪŋ/); a final /t/ after a vowel is flapped before the new vowel, as US speech does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_SIBILANTS = frozenset("szʃʒʧʤ")
_VOICELESS = frozenset("ptkfθ")
_FLAP_AFTER = frozenset("AIOWYiuæɑəɛɪɹʊʌ")
_DOUBLED = re.compile(r"([bdgklmnprtvz])\1$")

Ending = Callable[[str], str]


def plural(stem: str) -> str:
    """-s, -es, -'s."""
    if stem[-1] in _SIBILANTS:
        return stem + "ᵻz"
    return stem + ("s" if stem[-1] in _VOICELESS else "z")


def past(stem: str) -> str:
    """-ed."""
    if stem[-1] in "td":
        return _flapped(stem) + "ᵻd"
    return stem + ("t" if stem[-1] in _VOICELESS or stem[-1] in "sʃʧ" else "d")


def progressive(stem: str) -> str:
    """-ing."""
    return _flapped(stem) + "ɪŋ"


def agent(stem: str) -> str:
    """-er."""
    return _flapped(stem) + "əɹ"


def adverb(stem: str) -> str:
    """-ly."""
    return stem + ("i" if stem.endswith("l") else "li")


def _flapped(stem: str) -> str:
    if len(stem) > 1 and stem[-1] == "t" and stem[-2] in _FLAP_AFTER:
        return stem[:-1] + "ɾ"
    return stem


def stems(word: str) -> Iterator[tuple[str, Ending]]:
    """Spellings ``word`` may be inflected from, likeliest first, each with what its ending adds."""
    for apostrophe in ("'s", "s'"):
        if word.endswith(apostrophe) and len(word) > 2:
            yield word[:-2] if apostrophe == "'s" else word[:-1], plural if apostrophe == "'s" else str
            return
    lower = word.lower()
    if lower.endswith("s") and not lower.endswith(("ss", "us", "is")) and len(word) > 3:
        yield word[:-1], plural
        if lower.endswith("ies"):
            yield word[:-3] + "y", plural
        elif lower.endswith("es"):
            yield word[:-2], plural
    for suffix, ending in (("ed", past), ("ing", progressive), ("er", agent)):
        if lower.endswith(suffix) and len(word) > len(suffix) + 2:
            bare = word[: -len(suffix)]
            yield bare + "e", ending
            yield bare, ending
            if _DOUBLED.search(bare.lower()):
                yield bare[:-1], ending
            if bare.lower().endswith("i"):
                yield bare[:-1] + "y", ending
    if lower.endswith("ly") and len(word) > 4:
        yield word[:-2], adverb
