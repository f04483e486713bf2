"""The lexicon's alphabet against what espeak-ng writes for the same words."""

from __future__ import annotations

import pytest

from engines.tts.g2p.ipa import espeak_ipa


@pytest.mark.parametrize(
    ("lexicon", "espeak"),
    [
        ("kˈOl", "kˈoʊl"),
        ("nˈAm", "nˈeɪm"),
        ("tˈIm", "tˈaɪm"),
        ("hˈWs", "hˈaʊs"),
        ("vˈYs", "vˈɔɪs"),
        ("ʤˈʌʤ", "dʒˈʌdʒ"),
        ("ʧˈɜɹʧ", "tʃˈɜːtʃ"),
        ("hˈæpi", "hˈæpi"),
        ("ɹˈid", "ɹˈiːd"),
        ("wi", "wiː"),
        ("nˈʌmbəɹ", "nˈʌmbɚ"),
        ("mˈɛməɹi", "mˈɛmɚɹi"),
        ("hˈɜɹi", "hˈɜːɹi"),
        ("wˈɔɾəɹ", "wˈɔːɾɚ"),
        ("bˈʌʔn", "bˈʌʔn̩"),
        ("kˈɑɹ", "kˈɑːɹ"),
        ("fˈud", "fˈuːd"),
        ("pɹˈɛzᵊnt", "pɹˈɛzənt"),
        ("hˈWzᵻz", "hˈaʊzᵻz"),
    ],
)
def test_word(lexicon: str, espeak: str) -> None:
    assert espeak_ipa(lexicon) == espeak
