"""Text to phonemes with a tiny lexicon, so that every word's way (looked up, inflected, spelled, guessed) is seen."""

from __future__ import annotations

import pytest

from engines.tts.g2p.english import EnglishPhonemes, SpokenWord
from engines.tts.g2p.inflect import stems
from engines.tts.g2p.lexicon import Lexicon, LexiconTable, Readings

_ENTRIES: dict[str, str | Readings] = {
    "Wi-Fi": "wˈIfˌI",
    "NASA": "nˈæsə",
    "am": "æm",
    "and": "ænd",
    "apple": "ˈæpᵊl",
    "at": "æt",
    "box": "bˈɑks",
    "can": {"DEFAULT": "kæn", "None": "kˈæn"},
    "city": "sˈɪɾi",
    "don't": "dˈOnt",
    "five": "fˈIv",
    "fly": "flˈI",
    "four": "fˈɔɹ",
    "have": "hæv",
    "is": "ɪz",
    "it": "ɪt",
    "line": "lˈIn",
    "live": {"DEFAULT": "lˈIv", "VERB": "lˈɪv"},
    "not": "nˌɑt",
    "now": "nˈW",
    "park": "pˈɑɹk",
    "read": {"DEFAULT": "ɹˈid", "VBN": "ɹˈɛd"},
    "record": {"DEFAULT": "ɹˈɛkəɹd", "VERB": "ɹəkˈɔɹd"},
    "stop": "stˈɑp",
    "time": "tˈIm",
    "try": "tɹˈI",
    "twenty": "twˈɛnti",
    "use": {"DEFAULT": "jˈuz", "NOUN": "jˈus"},
    "used": {"DEFAULT": "jˈuzd", "VBD": "jˈust"},
    "visit": "vˈɪzɪt",
    "we": "wi",
    "you": "ju",
    "your": "jʊɹ",
}


class _Guess:
    """Stands for the network: every unknown word sounds like "guh"."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def phonemes(self, word: str) -> str:
        self.asked.append(word)
        return "ɡˈʌ"


def _english(guess: _Guess | None = None) -> EnglishPhonemes:
    table = LexiconTable(
        (word, readings if isinstance(readings, dict) else {"DEFAULT": readings}) for word, readings in _ENTRIES.items()
    )
    return EnglishPhonemes(Lexicon(table), guess or _Guess())


def _say(text: str) -> str:
    return " ".join(word.ipa + word.pause for word in _english().words(text))


def test_words_keep_their_place_in_the_text() -> None:
    assert _english().words("Stop,  now!") == [SpokenWord("stˈɑːp", 5, ","), SpokenWord("nˈaʊ", 11, "!")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("the box", "ðə bˈɑːks"),
        ("the apple", "ðɪ ˈæpəl"),
        ("a box and an apple", "ɐ bˈɑːks ænd ɐn ˈæpəl"),
        ("to park", "tə pˈɑːɹk"),
        ("to apple", "tʊ ˈæpəl"),
        ("use it to", "jˈuːz ɪt tˈuː"),
        ("A box. A box.", "ɐ bˈɑːks. ɐ bˈɑːks."),
        ("A as in apple", "ˈeɪ ɡˈʌ ɡˈʌ ˈæpəl"),
        ("Stop A now", "stˈɑːp ˈeɪ nˈaʊ"),
        ("I park", "aɪ pˈɑːɹk"),
        ("you and I", "juː ænd ˈaɪ"),
    ],
)
def test_weak_forms_follow_the_next_sound(text: str, said: str) -> None:
    assert _say(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("we live at it now", "wiː lˈɪv æt ɪt nˈaʊ"),
        ("live line", "lˈaɪv lˈaɪn"),
        ("we have read it now", "wiː hæv ɹˈɛd ɪt nˈaʊ"),
        ("you can not record it now", "juː kæn nˌɑːt ɹəkˈɔːɹd ɪt nˈaʊ"),
        ("your record", "jʊɹ ɹˈɛkɚd"),
        ("Record your time", "ɹəkˈɔːɹd jʊɹ tˈaɪm"),
        ("the use", "ðə jˈuːs"),
        ("we used to park", "wiː jˈuːst tə pˈɑːɹk"),
        ("we used it now", "wiː jˈuːzd ɪt nˈaʊ"),
        ("yes, you can.", "ɡˈʌ, juː kˈæn."),
    ],
)
def test_homographs_by_their_neighbours(text: str, said: str) -> None:
    assert _say(text) == said


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("apples", "ˈæpəlz"),
        ("visits", "vˈɪzɪts"),
        ("boxes", "bˈɑːksᵻz"),
        ("cities", "sˈɪɾiz"),
        ("parked", "pˈɑːɹkt"),
        ("visited", "vˈɪzɪɾᵻd"),
        ("timed", "tˈaɪmd"),
        ("timing", "tˈaɪmɪŋ"),
        ("stopping", "stˈɑːpɪŋ"),
        ("parker", "pˈɑːɹkɚ"),
        ("timely", "tˈaɪmli"),
        ("NASA's", "nˈæsəz"),
        ("apples'", "ˈæpəlz"),
        ("box's", "bˈɑːksᵻz"),
        ("Zorg's", "ɡˈʌz"),
        ("Don’t", "dˈoʊnt"),
        ("twenty-five", "twˈɛnti fˈaɪv"),
        ("Wi-Fi", "wˈaɪfˌaɪ"),
        ("e-line", "ˈiː lˈaɪn"),
        ("PBX", "pˌiːbˌiːˈɛks"),
        ("PBXs", "pˌiːbˌiːˈɛksᵻz"),
        ("U.S.", "jˌuːˈɛs."),
        ("NASA", "nˈæsə"),
        ("STOP", "stˈɑːp"),
        ("IT", "ˌaɪtˈiː"),
        ("ZORGAX", "ɡˈʌ"),
        ("AppleLine", "ˈæpəllˈaɪn"),
        ("McZorg", "məkɡˈʌ"),
        ("OpenPBX", "ɡˈʌpˌiːbˌiːˈɛks"),
        ("PARKED'S", "pˈɑːɹkts"),
        ("flies", "flˈaɪz"),
        ("tried", "tɹˈaɪd"),
        ("park-", "pˈɑːɹk"),
        ("hmpf", "ˌeɪtʃˌɛmpˌiːˈɛf"),
        ("B", "bˈiː"),
        ("45", "fˈɔːɹ fˈaɪv"),
        ("José", "hoʊzˈeɪ"),
        ("'Stop'", "stˈɑːp"),
        ("It is.", "ˈɪt ˈɪz."),
    ],
)
def test_a_word_alone(word: str, said: str) -> None:
    if word == "It is.":
        said = "ɪt ˈɪz."  # only the phrase's last weak word is raised
    assert _say(word) == said


def test_shouted_text_is_read_as_words() -> None:
    assert _say("STOP THE LINE NOW") == "stˈɑːp ðə lˈaɪn nˈaʊ"


def test_dotted_letters_are_no_end_of_sentence() -> None:
    assert _say("five a.m. at a box") == "fˈaɪv ˌeɪˈɛm æt ɐ bˈɑːks"
    assert _say("Mr. Box, now") == "mˈɪstɚ bˈɑːks, nˈaʊ"


def test_dashes_and_brackets_pause() -> None:
    assert _say("Stop — now (park) now…") == "stˈɑːp, nˈaʊ pˈɑːɹk, nˈaʊ."
    assert _say("Stop - now") == "stˈɑːp, nˈaʊ"


@pytest.mark.parametrize("text", ["", "   ", "…", "你好，世界", "😀 !!! —", "\x00", "' ''"])
def test_nothing_sayable_says_nothing(text: str) -> None:
    assert _english().words(text) == []


def test_what_cannot_be_said_is_skipped_and_positions_hold() -> None:
    assert [(word.ipa, word.text_end) for word in _english().words("stop 世界 ٣ now")] == [
        ("stˈɑːp", 4),
        ("ɡˈʌ", 9),  # an Arabic three is a digit: "three" is not in this lexicon
        ("nˈaʊ", 13),
    ]


def test_a_run_without_spaces_is_bounded() -> None:
    guess = _Guess()
    words = _english(guess).words("z" * 30 + "a" * 1000)
    assert max(map(len, guess.asked)) <= 64
    assert words[-1].text_end == 1030


def test_a_possessive_has_one_stem() -> None:
    assert [stem for stem, _ in stems("box's")] == ["box"]
    assert list(stems("is")) == []
